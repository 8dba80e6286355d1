package hook

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/condition"
)

// place runs the hooks of one place, this host or one term of an election, and
// follows reloads of the settings.
type place struct {
	engine   *Engine
	election string // empty: the hooks of every host
	scope    scope
}

type runningHook struct {
	cfg  Config
	stop func() // ends it, and waits for its end
}

// run runs the hooks until ctx ends; none is left when it returns.
func (p *place) run(ctx context.Context) {
	running := map[string]runningHook{}
	defer func() {
		var wg sync.WaitGroup
		for _, r := range running {
			wg.Go(r.stop)
		}
		wg.Wait()
	}()
	for ctx.Err() == nil {
		now := p.engine.set.Load()
		want := map[string]Config{}
		for _, c := range now.hooks {
			if c.Leader == p.election && (len(c.OnChange) > 0 || c.Schedule != "" || c.OnElected) { // on_deposed comes after a term
				want[c.Name] = c
			}
		}
		for name, r := range running {
			if c, ok := want[name]; ok && same(c, r.cfg) {
				delete(want, name)
				continue
			}
			r.stop()
			delete(running, name)
			if !slices.ContainsFunc(p.engine.set.Load().hooks, func(c Config) bool { return c.Name == name }) {
				p.engine.Conditions.Close(condition.HookFailed, name)
				p.engine.Conditions.Close(condition.HookUnknown, name)
			}
		}
		for name, c := range want {
			running[name] = p.start(ctx, c)
		}
		select {
		case <-ctx.Done():
		case <-now.next:
		}
	}
}

// same compares two blocks; commands are compared by their text.
func same(a, b Config) bool {
	a.Command.Args, b.Command.Args = nil, nil
	return reflect.DeepEqual(a, b)
}

func (p *place) start(ctx context.Context, c Config) runningHook {
	ctx, cancel := context.WithCancel(ctx)
	runner := p.runner(c)
	var wg sync.WaitGroup
	wg.Go(func() { runner.run(ctx) })
	return runningHook{c, func() { cancel(); wg.Wait() }}
}

func (p *place) runner(c Config) *runner {
	r := &runner{engine: p.engine, cfg: c, scope: p.scope, log: p.engine.Log.With("component", "hook")}
	var err error
	r.schedule, err = p.engine.schedule(c)
	p.engine.Conditions.Set(condition.HookSchedule, c.Name, err)
	return r
}
