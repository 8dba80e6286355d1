package agent

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/view"
)

// hookSet is the hooks of the settings in use, and how to follow reloads.
type hookSet struct {
	hooks []HookConfig
	next  chan struct{} // closed when there is another set
}

// hookHost runs the hooks of one place (this host, or one term of an
// election), and follows reloads of the settings: a hook whose block did not
// change is not disturbed.
type hookHost struct {
	election string // empty: the hooks of every host
	scope    hookScope
	agentID  string
	set      func() *hookSet
	snapshot func() *snapshot
	// scheduleKey makes the hash key of a hook's schedule.
	scheduleKey func(h HookConfig) string
	history     *history
	conds       *condition.Set
	metrics     *Metrics
	events      *event.Ring
	log         *slog.Logger
}

// runningHook is one hook that runs.
type runningHook struct {
	cfg    HookConfig
	cancel context.CancelFunc
	done   chan struct{}
}

func (r *runningHook) stop() {
	r.cancel()
	<-r.done
}

// run runs the hooks until ctx ends; none is left when it returns.
func (h *hookHost) run(ctx context.Context) {
	running := map[string]*runningHook{}
	defer func() {
		var wg sync.WaitGroup
		for _, r := range running {
			wg.Go(r.stop)
		}
		wg.Wait()
	}()
	for ctx.Err() == nil {
		set := h.set()
		want := map[string]HookConfig{}
		for _, c := range set.hooks {
			if c.Leader == h.election && h.runs(c) {
				want[c.Name] = c
			}
		}
		for name, r := range running {
			if c, ok := want[name]; ok && sameHook(c, r.cfg) {
				delete(want, name)
				continue
			}
			r.stop()
			delete(running, name)
		}
		for name, c := range want {
			running[name] = h.start(ctx, c)
		}
		select {
		case <-ctx.Done():
		case <-set.next:
		}
	}
}

// runs reports whether the hook has a trigger that is followed here;
// on_deposed is what happens after a term.
func (h *hookHost) runs(c HookConfig) bool {
	return len(c.OnChange) > 0 || c.Schedule != "" || c.OnElected
}

// sameHook compares two blocks; commands are compared by their text.
func sameHook(a, b HookConfig) bool {
	a.Command.Args, b.Command.Args = nil, nil
	a.Position, b.Position = "", ""
	return reflect.DeepEqual(a, b)
}

func (h *hookHost) start(ctx context.Context, c HookConfig) *runningHook {
	ctx, cancel := context.WithCancel(ctx)
	r := &runningHook{cfg: c, cancel: cancel, done: make(chan struct{})}
	runner := h.runner(c)
	go func() {
		defer close(r.done)
		runner.run(ctx)
	}()
	return r
}

// runner makes the runner of one hook.
func (h *hookHost) runner(c HookConfig) *hookRunner {
	r := &hookRunner{
		cfg: c, scope: h.scope, agentID: h.agentID, history: h.history, conds: h.conds, metrics: h.metrics,
		events: h.events, log: h.log.With("component", "hook"),
	}
	if c.Schedule != "" {
		s, err := ParseSchedule(c.Schedule, h.scheduleKey(c))
		if err != nil {
			h.conds.Open("hook-schedule", c.Name, err.Error())
		}
		r.schedule = s
	}
	r.settled = func() (view.View, bool, <-chan struct{}) {
		s := h.snapshot()
		ok := s.complete
		for _, src := range c.OnChange {
			// Not before the files that show the change are in place.
			ok = ok && !s.busy[src]
		}
		return s.view, ok, s.next
	}
	return r
}
