package agent

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// drainMargin is how long a leaving member may take beyond its drain time.
const drainMargin = 5 * time.Second

// unitSpecs makes the units that the settings want.
func (a *Agent) unitSpecs(c *Config, bundles []*bundle) []unitSpec {
	var specs []unitSpec
	for _, x := range c.Configs {
		specs = append(specs, unitSpec{kind: "config", name: x.Name, key: x, make: func(any) unitParts { return a.configUnit(x) }})
	}
	for _, x := range c.Groups {
		specs = append(specs, unitSpec{kind: "group", name: x.Name, key: x, make: func(any) unitParts { return a.groupUnit(x) }})
	}
	for _, x := range c.GroupSets {
		specs = append(specs, unitSpec{kind: "groups", name: x.Name, key: x, make: func(any) unitParts { return a.groupsUnit(x) }})
	}
	for _, x := range c.Services {
		specs = append(specs, unitSpec{kind: "service", name: x.Name, key: x, make: func(old any) unitParts { return a.serviceUnit(x, old) }})
	}
	for _, x := range c.Elections {
		k := electionKey{x, c.ID, observes(c.Hooks, bundles, x.Name)}
		specs = append(specs, unitSpec{kind: "election", name: x.Name, key: k, make: func(any) unitParts { return a.electionUnit(k) }})
	}
	for _, b := range c.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			specs = append(specs, unitSpec{kind: "rolling", name: b.Name, key: c.ID, make: func(any) unitParts {
				return unitParts{unit: &rollingHost{b.Name, c.ID, a.log}}
			}})
		}
	}
	specs = append(specs, unitSpec{kind: "agent", name: "leftovers", make: func(any) unitParts { return unitParts{unit: a.left} }})
	return append(specs, unitSpec{kind: "fleet", name: "status", key: c.ID, make: func(any) unitParts {
		return a.fleetUnit(c.ID)
	}})
}

// electionKey is what a candidate is made of.
type electionKey struct {
	ElectionConfig
	ID      string
	Observe bool
}

// observes reports whether anything wants to know who leads while another
// does: that costs a wake-up of every candidate at each change.
func observes(hooks []hook.Config, bundles []*bundle, election string) bool {
	source := view.Source{Kind: view.KindElection, Name: election}
	return slices.ContainsFunc(hooks, func(h hook.Config) bool { return slices.Contains(h.OnChange, source) }) ||
		slices.ContainsFunc(bundles, func(b *bundle) bool { return slices.Contains(b.Sources, source) })
}

// sameUnit compares the configurations of two units. Functions and loggers
// are put in by us alone, so that plain values decide.
func sameUnit(a, b any) bool { return reflect.DeepEqual(a, b) }

func (a *Agent) configUnit(c config.Config) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.config
	c.Problem = func(err error) { a.conds.Set("source-unusable", "config "+c.Name, err) }
	w := config.NewWatcher(c)
	return unitParts{unit: &configTree{agent: a, cfg: c, watcher: w}, value: w}
}

func (a *Agent) groupUnit(c registry.GroupConfig) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.registry
	c.Problem = func(err error) { a.conds.Set("source-unusable", "group "+c.Name, err) }
	g := registry.NewGroup(c)
	return a.followGroup(unitFunc(view.Untyped(g.Run)), g, c.Name)
}

func (a *Agent) groupsUnit(c registry.GroupsConfig) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.registry
	g := registry.NewGroups(c)
	return a.followGroup(unitFunc(view.Untyped(g.Run)), g, c.Name)
}

func (a *Agent) followGroup(u Unit, value any, name string) unitParts {
	f := &groupFollower{follow: u, conds: a.conds, name: name}
	return unitParts{unit: f, life: f.life, value: value}
}

// serviceUnit makes a registrar. One that replaces another of the same place
// takes over its znode and what its checks know.
func (a *Agent) serviceUnit(c registry.ServiceConfig, old any) unitParts {
	c.Logger, c.Metrics, c.Run = a.log, a.metrics.registry, a.checkRun
	c.Changed = func() { pace.Poke(a.serviceNews) }
	if a.stateDir != "" && c.StateFile == "" {
		c.StateFile = files.StateFile(a.stateDir, "maintenance", c.Name)
	}
	r := registry.NewRegistrar(c)
	if former, ok := old.(*registry.Registrar); ok {
		r.Inherit(former)
	}
	return unitParts{
		unit:  unitFunc(func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return r.Run(ctx, s) }),
		value: r,
		life:  func(ctx context.Context) { _ = r.RunChecks(ctx) },
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+drainMargin)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				a.log.Warn("service not drained", "service", c.Name, "err", err)
			}
		},
		replaces: func(next any) bool {
			n, ok := next.(registry.ServiceConfig)
			return ok && n.Group == c.Group && n.Format == c.Format && n.MemberID == c.MemberID
		},
	}
}

// checkRun runs the command of an exec check.
func (a *Agent) checkRun(ctx context.Context, args []string, limit int) (output string, code int, err error) { //nolint:nonamedreturns // a string and an int need names.
	res, err := a.plainRun(ctx, proc.Command{Args: args, Env: a.cfg.Load().Env.List(), OutputLimit: limit})
	if e, ok := errors.AsType[*proc.ExitError](err); ok && e.Cause == nil && res.Signal == "" {
		return res.Output, res.Code, nil
	}
	return res.Output, res.Code, err
}

func (a *Agent) electionUnit(k electionKey) unitParts {
	e := k.ElectionConfig
	c := election.New(election.Config{
		Name: e.Name, Path: e.Path, ID: k.ID, Dialect: e.Dialect, Observe: k.Observe, Keep: true,
		JoinDelay: time.Duration(e.Priority) * cmp.Or(a.first.ZooKeeper.Timeout, session.DefaultTimeout),
		Logger:    a.log, Metrics: a.metrics.election,
		Lead: func(ctx context.Context, t election.Term) { a.hooks.Lead(ctx, e.Name, e.Path, t) },
	})
	return unitParts{
		unit: unitFunc(view.Untyped(c.Run)), value: c,
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMargin)
			defer cancel()
			if err := c.Resign(ctx); err != nil {
				a.log.Debug("not resigned", "election", e.Name, "err", err)
			}
		},
	}
}

// Sources lists the sources of the settings.
func (c *Config) Sources() []view.Source {
	var list []view.Source
	for _, x := range c.Configs {
		list = append(list, view.Source{Kind: view.KindConfig, Name: x.Name})
	}
	for _, x := range c.Groups {
		list = append(list, view.Source{Kind: view.KindGroup, Name: x.Name})
	}
	for _, x := range c.GroupSets {
		list = append(list, view.Source{Kind: view.KindGroups, Name: x.Name})
	}
	for _, x := range c.Elections {
		list = append(list, view.Source{Kind: view.KindElection, Name: x.Name})
	}
	return list
}

// sourcePaths maps the declared sources to their znodes.
func sourcePaths(c *Config) map[view.Source]string {
	paths := map[view.Source]string{}
	for _, x := range c.Configs {
		paths[view.Source{Kind: view.KindConfig, Name: x.Name}] = x.Path
	}
	for _, x := range c.Groups {
		paths[view.Source{Kind: view.KindGroup, Name: x.Name}] = x.Path
	}
	for _, x := range c.GroupSets {
		paths[view.Source{Kind: view.KindGroups, Name: x.Name}] = x.Path
	}
	return paths
}
