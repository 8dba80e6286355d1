package agent

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Unit is one config tree, group, service or candidate. Its Run is called
// again in every new session, never twice at the same time.
type Unit interface {
	// Run works within the session until ctx or the session ends, and sends
	// what it finds.
	Run(ctx context.Context, s *session.Session, up func(view.Update)) error
}

type unitFunc func(ctx context.Context, s *session.Session, up func(view.Update)) error

// Run implements [Unit].
func (f unitFunc) Run(ctx context.Context, s *session.Session, up func(view.Update)) error {
	return f(ctx, s, up)
}

// unitSpec is a unit as the settings want it.
type unitSpec struct {
	kind, name string
	key        any // its configuration, as plain values: a unit whose key is equal keeps running
	// make makes the unit; former is the value of the unit that it replaces,
	// nil when it replaces none.
	make func(former any) unitParts
}

// unitParts is a unit that was made of a specification.
type unitParts struct {
	unit Unit // nil: it needs no session
	// life, when set, runs as long as the unit is wanted, over all sessions.
	life func(ctx context.Context)
	// leave, when set, is called before the unit is stopped for good.
	leave func(ctx context.Context)
	// replaces, when set, reports whether a unit of the given new key can take
	// over from this one, which then does not leave.
	replaces func(key any) bool
	// joined, when set, waits until the unit is where the former one of the same name need
	// not stay any more, so that a move leaves no gap.
	joined func(ctx context.Context, former any)
	// value is the thing itself, for status and orders.
	value any
}

func (u unitSpec) id() string { return u.kind + "." + u.name }

// supervisor keeps the units of the settings running in each session. Only
// one goroutine at a time calls apply and stop.
type supervisor struct {
	log      *slog.Logger
	conds    *condition.Set
	metrics  *metrics
	sessions interface {
		Session(ctx context.Context) (*session.Session, error)
	}
	up func(view.Update)

	mu    sync.Mutex // mu guards units for readers; apply and stop are one goroutine.
	units map[string]*runningUnit

	moves sync.WaitGroup // of units whose next one has not joined yet
	hurry []func()       // end the waits of moves
	after sync.WaitGroup // of what whenMoved calls
}

// runningUnit is a unit with its goroutines.
type runningUnit struct {
	spec   unitSpec
	parts  unitParts
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// apply makes the set of running units the given one: units that are not
// wanted any more, or whose configuration changed, are stopped, new ones
// started, all others left alone. A unit that moves leaves after its next one has joined.
func (s *supervisor) apply(ctx context.Context, specs []unitSpec) {
	want := map[string]unitSpec{}
	for _, spec := range specs {
		want[spec.id()] = spec
	}
	s.settle()
	former, moved := map[string]any{}, map[string]*runningUnit{}
	var stopping sync.WaitGroup
	for id, u := range s.units {
		spec, ok := want[id]
		if ok && reflect.DeepEqual(u.spec.key, spec.key) {
			delete(want, id)
			continue
		}
		if ok && u.parts.replaces != nil && u.parts.replaces(spec.key) {
			former[id], u.parts.leave = u.parts.value, nil
		}
		s.remove(id)
		if ok && u.parts.leave != nil && u.parts.joined != nil {
			former[id], moved[id] = u.parts.value, u
			continue
		}
		stopping.Go(func() { u.stop(ctx) })
	}
	stopping.Wait()
	for _, spec := range specs {
		if _, ok := want[spec.id()]; ok {
			s.start(ctx, spec, former[spec.id()])
		}
	}
	for id, u := range moved {
		s.move(context.WithoutCancel(ctx), u, s.units[id])
	}
}

// move lets a unit leave after the next one has joined.
func (s *supervisor) move(ctx context.Context, u, next *runningUnit) {
	wait, cancel := context.WithCancel(ctx)
	s.hurry = append(s.hurry, cancel)
	s.moves.Go(func() {
		defer cancel()
		next.parts.joined(wait, u.parts.value)
		u.stop(ctx)
	})
}

// settle ends the moves that are under way.
func (s *supervisor) settle() {
	for _, end := range s.hurry {
		end()
	}
	s.moves.Wait()
	s.after.Wait()
	s.hurry = nil
}

// whenMoved calls fn when the moves of the last apply are over.
func (s *supervisor) whenMoved(fn func()) {
	s.after.Go(func() {
		s.moves.Wait()
		fn()
	})
}

func (s *supervisor) start(ctx context.Context, spec unitSpec, former any) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	u := &runningUnit{spec: spec, parts: spec.make(former), cancel: cancel}
	s.mu.Lock()
	s.units[spec.id()] = u
	s.mu.Unlock()
	if u.parts.unit != nil {
		u.wg.Go(func() { s.keep(ctx, u) })
	}
	if u.parts.life != nil {
		u.wg.Go(func() { u.parts.life(ctx) })
	}
}

func (s *supervisor) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.units, id)
}

// kind names the units of one kind, whose values are of type T.
type kind[T any] string

// of returns the value of a running unit; false: there is none.
func (k kind[T]) of(s *supervisor, name string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.units[string(k)+"."+name]
	if u == nil {
		var none T
		return none, false
	}
	v, ok := u.parts.value.(T)
	return v, ok
}

// keep runs the unit in one session after the other.
func (s *supervisor) keep(ctx context.Context, u *runningUnit) {
	failures := 0
	for ctx.Err() == nil {
		sess, err := s.sessions.Session(ctx)
		if err != nil {
			if ctx.Err() == nil && !pace.Sleep(ctx, time.Second) {
				return
			}
			continue
		}
		began := time.Now()
		err = s.once(ctx, u, sess)
		if ctx.Err() != nil || sess.Context().Err() != nil {
			failures = 0
			continue
		}
		if time.Since(began) > time.Minute {
			failures = 0
		}
		failures++
		if err == nil {
			err = errors.New("ended without a reason")
		}
		s.conds.Open(condition.UnitFailed, u.spec.id(), err.Error())
		s.metrics.unitErrors.WithLabelValues(u.spec.kind, u.spec.name).Inc()
		s.log.Warn("unit failed", "unit", u.spec.id(), "err", err, "failures", failures)
		if !pace.Sleep(ctx, pace.Backoff(failures, 200*time.Millisecond, 30*time.Second)) {
			break
		}
	}
	s.conds.Close(condition.UnitFailed, u.spec.id())
}

// steady is how long a unit that failed must run before that is over: one that
// fails at once again and again is one condition, not many.
const steady = 10 * time.Second

// once runs the unit in one session.
func (s *supervisor) once(ctx context.Context, u *runningUnit, sess *session.Session) error {
	closed := make(chan struct{})
	timer := time.AfterFunc(steady, func() {
		defer close(closed)
		s.conds.Close(condition.UnitFailed, u.spec.id())
	})
	err := u.parts.unit.Run(ctx, sess, s.up)
	if !timer.Stop() {
		<-closed
	}
	return err
}

// stop stops the unit and waits until nothing of it is left.
func (u *runningUnit) stop(ctx context.Context) {
	if u.parts.leave != nil {
		u.parts.leave(ctx)
	}
	u.cancel()
	u.wg.Wait()
}

// drop stops every unit of a kind at the same time.
func (s *supervisor) drop(ctx context.Context, kind string) {
	var wg sync.WaitGroup
	for id, u := range s.units {
		if u.spec.kind == kind {
			s.remove(id)
			wg.Go(func() { u.stop(ctx) })
		}
	}
	wg.Wait()
}

// stop stops every unit at the same time. With leave, each may say good-bye.
func (s *supervisor) stop(ctx context.Context, leave bool) {
	s.settle()
	var wg sync.WaitGroup
	for _, u := range s.units {
		if !leave {
			u.parts.leave = nil
		}
		wg.Go(func() { u.stop(ctx) })
	}
	wg.Wait()
}
