package agent

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// unitRun is the work of a unit (a config tree, group, service or candidate) within one
// session, until ctx or the session ends; it sends what it finds. It is called again in
// every new session, never twice at the same time.
type unitRun func(ctx context.Context, s *session.Session, up func(view.Update)) error

// unitSpec is a unit as the settings want it.
type unitSpec struct {
	kind, name string
	key        any // its configuration, as plain values: a unit whose key is equal keeps running
	// make makes the unit; previous is the value of the unit that it replaces,
	// nil when it replaces none.
	make func(previous any) unitParts
}

// unitParts is a unit that was made of a specification.
type unitParts struct {
	run unitRun // nil: it needs no session
	// life, when set, runs as long as the unit is wanted, over all sessions.
	life func(ctx context.Context)
	// leave, when set, is called before the unit is stopped for good.
	leave func(ctx context.Context)
	// joined, when set, waits until the unit is where the previous one of the same name need
	// not stay any more, so that a move leaves no gap.
	joined func(ctx context.Context, previous any)
	// value is the thing itself, for status and orders.
	value any
}

func (u unitSpec) id() string { return u.kind + "." + u.name }

// supervisor keeps the units of the settings running in each session. Only
// one goroutine at a time calls apply and stop.
type supervisor struct {
	a *Agent

	mu    sync.Mutex // mu guards units for readers; apply and stop are one goroutine.
	units map[string]*runningUnit

	moves sync.WaitGroup // of units whose next one has not joined yet
	hurry func()         // ends the waits of moves; nil before the first apply
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
// started, all others left alone. A unit that moves leaves after its next one has joined,
// and moved is called when the last one has left.
func (s *supervisor) apply(ctx context.Context, specs []unitSpec, moved func()) {
	want := map[string]unitSpec{}
	for _, spec := range specs {
		want[spec.id()] = spec
	}
	s.settle()
	previous, moving := map[string]any{}, map[string]*runningUnit{}
	var stopping sync.WaitGroup
	for id, u := range s.units {
		spec, ok := want[id]
		if ok && reflect.DeepEqual(u.spec.key, spec.key) {
			delete(want, id)
			continue
		}
		s.mu.Lock()
		delete(s.units, id)
		s.mu.Unlock()
		if ok && u.parts.joined != nil {
			previous[id], moving[id] = u.parts.value, u
			continue
		}
		stopping.Go(func() {
			u.stop(ctx)
			s.a.closeSource(u.spec.kind + " " + u.spec.name)
		})
	}
	stopping.Wait()
	for _, spec := range specs {
		if _, ok := want[spec.id()]; ok {
			s.start(ctx, spec, previous[spec.id()])
		}
	}
	ctx = context.WithoutCancel(ctx)
	wait, cancel := context.WithCancel(ctx)
	s.hurry = cancel
	var leaving sync.WaitGroup
	for id, u := range moving {
		next := s.units[id]
		leaving.Go(func() {
			next.parts.joined(wait, u.parts.value)
			u.stop(ctx)
		})
	}
	s.moves.Go(func() {
		leaving.Wait()
		moved()
	})
}

// settle ends the moves that are under way.
func (s *supervisor) settle() {
	if s.hurry != nil {
		s.hurry()
	}
	s.moves.Wait()
}

func (s *supervisor) start(ctx context.Context, spec unitSpec, previous any) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	u := &runningUnit{spec: spec, parts: spec.make(previous), cancel: cancel}
	s.mu.Lock()
	s.units[spec.id()] = u
	s.mu.Unlock()
	if u.parts.run != nil {
		u.wg.Go(func() { s.keep(ctx, u) })
	}
	if u.parts.life != nil {
		u.wg.Go(func() { u.parts.life(ctx) })
	}
}

// kind names the units of one kind, whose values are of type T.
type kind[T any] string

// of returns the value of a running unit; false: there is none.
func (k kind[T]) of(s *supervisor, name string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := cmp.Or(s.units[string(k)+"."+name], &runningUnit{})
	v, ok := u.parts.value.(T)
	return v, ok
}

// keep runs the unit in one session after the other.
func (s *supervisor) keep(ctx context.Context, u *runningUnit) {
	run := func(ctx context.Context, sess *session.Session) error {
		if err := u.parts.run(ctx, sess, s.a.loop.send); err != nil {
			return err
		}
		return errors.New("ended without a reason")
	}
	for ctx.Err() == nil {
		sess, err := s.a.left.Session(ctx)
		if err != nil {
			if ctx.Err() == nil && !pace.Sleep(ctx, time.Second) {
				return
			}
			continue
		}
		again(ctx, sess, 200*time.Millisecond, run, func(failures int, err error) {
			s.a.conds.Set(condition.UnitFailed, u.spec.id(), err)
			if err != nil {
				s.a.metrics.unitErrors.WithLabelValues(u.spec.kind, u.spec.name).Inc()
				s.a.log.Warn("unit failed", "unit", u.spec.id(), "err", err, "failures", failures)
			}
		})
	}
	s.a.conds.Close(condition.UnitFailed, u.spec.id())
}

// steady is how long work that failed must run before that is over: what fails at once
// again and again is one condition, not many.
const steady = 10 * time.Second

// again runs work again, after growing pauses that begin with first, until ctx or the session
// ends, or it has nothing more to do. note gets each error with the number of failures in a
// row, and nil when the work has run for a while.
func again(ctx context.Context, s *session.Session, first time.Duration, work func(context.Context, *session.Session) error, note func(failures int, err error)) {
	for failures := 1; ; failures++ {
		began, noted := time.Now(), make(chan struct{})
		timer := time.AfterFunc(steady, func() {
			defer close(noted)
			note(0, nil)
		})
		err := work(ctx, s)
		if !timer.Stop() {
			<-noted
		}
		if err == nil || ctx.Err() != nil || s.Context().Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			failures = 1
		}
		note(failures, err)
		if s.Sleep(ctx, pace.Backoff(failures, first, 30*time.Second)) != nil {
			return
		}
	}
}

// stop stops the unit and waits until nothing of it is left.
func (u *runningUnit) stop(ctx context.Context) {
	if u.parts.leave != nil {
		u.parts.leave(ctx)
	}
	u.cancel()
	u.wg.Wait()
}

// stop stops the units of a kind, or all of them, at the same time. With leave, each may
// say good-bye.
func (s *supervisor) stop(ctx context.Context, kind string, leave bool) {
	s.settle()
	var wg sync.WaitGroup
	for _, u := range s.units {
		if !leave {
			u.parts.leave = nil
		}
		if kind == "" || u.spec.kind == kind {
			wg.Go(func() { u.stop(ctx) })
		}
	}
	wg.Wait()
}

// drainMargin is how long a leaving member may take beyond its drain time.
const drainMargin = 5 * time.Second

// The kinds of units that status and orders ask.
const (
	kindConfig   kind[*configTree]         = "config"
	kindGroup    kind[*registry.Group]     = "group"
	kindGroups   kind[*registry.Groups]    = "groups"
	kindService  kind[*registry.Registrar] = "service"
	kindElection kind[*election.Candidate] = "election"
	kindExec     kind[*program]            = "exec"
)

func (a *Agent) unitSpecs(c *Config, bundles []*bundle) []unitSpec {
	var specs []unitSpec
	before := a.groupsBefore()
	for _, x := range c.Configs {
		specs = append(specs, unitSpec{kind: string(kindConfig), name: x.Name, key: x, make: func(any) unitParts { return a.configUnit(x) }})
	}
	for _, x := range c.Groups {
		specs = append(specs, unitSpec{kind: string(kindGroup), name: x.Name, key: x, make: func(any) unitParts {
			g := registry.NewGroup(a.followed("group", x, before))
			return a.followGroup(view.Untyped(g.Run), g)
		}})
	}
	for _, x := range c.GroupSets {
		specs = append(specs, unitSpec{kind: string(kindGroups), name: x.Name, key: x, make: func(any) unitParts {
			g := registry.NewGroups(a.followed("groups", x, before))
			return a.followGroup(view.Untyped(g.Run), g)
		}})
	}
	for _, x := range c.Services {
		specs = append(specs, unitSpec{kind: string(kindService), name: x.Name, key: x, make: func(old any) unitParts { return a.serviceUnit(x, old) }})
	}
	for _, x := range c.Elections {
		x.ID, x.Observe = c.ID, observes(c.Hooks, bundles, x.Name)
		specs = append(specs, unitSpec{kind: string(kindElection), name: x.Name, key: x, make: func(any) unitParts { return a.electionUnit(x) }})
	}
	for _, b := range c.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			specs = append(specs, unitSpec{kind: "rolling", name: b.Name, key: c.ID, make: func(any) unitParts { return a.rollingUnit(b.Name, c.ID) }})
		}
	}
	for _, x := range c.Execs {
		key := x
		key.Command.Args = nil // It is compared by its text.
		specs = append(specs, unitSpec{kind: string(kindExec), name: x.Name, key: key, make: func(any) unitParts {
			p := &program{a: a, cfg: x}
			return unitParts{life: p.run, value: p}
		}})
	}
	leftovers := func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return a.left.run(ctx, s) }
	return append(specs,
		unitSpec{kind: "agent", name: "leftovers", make: func(any) unitParts { return unitParts{run: leftovers} }},
		unitSpec{kind: "fleet", name: "status", key: c.ID, make: func(any) unitParts { return a.fleetUnit(c.ID) }})
}

// Parse returns the bundles of the settings, those that cannot be parsed with their error.
func (c *Config) Parse() []*apply.Bundle {
	declared := c.Sources()
	list := make([]*apply.Bundle, len(c.Bundles))
	for i := range c.Bundles {
		list[i] = apply.Parse(c.Bundles[i], declared)
	}
	return list
}

// Place is a source of the settings with its znode.
type Place struct {
	view.Source

	Path string
}

// Sources lists the sources of the settings.
func (c *Config) Sources() []view.Source {
	return lists.Map(c.Places(), func(p Place) view.Source { return p.Source })
}

// Places lists the sources of the settings with their znodes.
func (c *Config) Places() []Place {
	var list []Place
	add := func(kind view.Kind, name, path string) {
		list = append(list, Place{view.Source{Kind: kind, Name: name}, path})
	}
	for _, x := range c.Configs {
		add(view.KindConfig, x.Name, x.Path)
	}
	for _, x := range c.Groups {
		add(view.KindGroup, x.Name, x.Path)
	}
	for _, x := range c.GroupSets {
		add(view.KindGroups, x.Name, x.Path)
	}
	for _, x := range c.Elections {
		add(view.KindElection, x.Name, x.Path)
	}
	return list
}
