package agent

import (
	"context"
	"iter"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/program"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// drainMargin is how long a leaving member may take beyond its drain time.
const drainMargin = 5 * time.Second

// The kinds of units that status and orders ask.
const (
	kindConfig   kind[*configTree]         = "config"
	kindGroup    kind[*registry.Group]     = "group"
	kindGroups   kind[*registry.Groups]    = "groups"
	kindService  kind[*registry.Registrar] = "service"
	kindElection kind[*election.Candidate] = "election"
	kindExec     kind[*program.Program]    = "exec"
)

// unitSpecs makes the units that the settings want.
func (a *Agent) unitSpecs(c *Config, bundles []*bundle) []unitSpec {
	var specs []unitSpec
	for _, x := range c.Configs {
		specs = append(specs, unitSpec{kind: string(kindConfig), name: x.Name, key: x, make: func(any) unitParts { return a.configUnit(x) }})
	}
	for _, x := range c.Groups {
		specs = append(specs, unitSpec{kind: string(kindGroup), name: x.Name, key: x, make: func(any) unitParts { return a.groupUnit(x) }})
	}
	for _, x := range c.GroupSets {
		specs = append(specs, unitSpec{kind: string(kindGroups), name: x.Name, key: x, make: func(any) unitParts { return a.groupsUnit(x) }})
	}
	for _, x := range c.Services {
		specs = append(specs, unitSpec{kind: string(kindService), name: x.Name, key: x, make: func(old any) unitParts { return a.serviceUnit(x, old) }})
	}
	for _, x := range c.Elections {
		k := electionKey{x, c.ID, observes(c.Hooks, bundles, x.Name)}
		specs = append(specs, unitSpec{kind: string(kindElection), name: x.Name, key: k, make: func(any) unitParts { return a.electionUnit(k) }})
	}
	for _, b := range c.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			specs = append(specs, unitSpec{kind: "rolling", name: b.Name, key: c.ID, make: func(any) unitParts { return a.rollingUnit(b.Name, c.ID) }})
		}
	}
	for _, x := range c.Execs {
		key := x
		key.Command.Args = nil // It is compared by its text.
		specs = append(specs, unitSpec{kind: string(kindExec), name: x.Name, key: key, make: func(any) unitParts { return a.execUnit(x) }})
	}
	leftovers := unitFunc(func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return a.left.Run(ctx, s) })
	return append(specs,
		unitSpec{kind: "agent", name: "leftovers", make: func(any) unitParts { return unitParts{unit: leftovers} }},
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

// Sources lists the sources of the settings.
func (c *Config) Sources() []view.Source {
	var list []view.Source
	for s := range c.sources() {
		list = append(list, s)
	}
	return list
}

// sources are the sources of the settings with their znodes; an election has none, since
// its state names it.
func (c *Config) sources() iter.Seq2[view.Source, string] {
	return func(yield func(view.Source, string) bool) {
		more := true
		each := func(kind view.Kind, name, path string) {
			more = more && yield(view.Source{Kind: kind, Name: name}, path)
		}
		for _, x := range c.Configs {
			each(view.KindConfig, x.Name, x.Path)
		}
		for _, x := range c.Groups {
			each(view.KindGroup, x.Name, x.Path)
		}
		for _, x := range c.GroupSets {
			each(view.KindGroups, x.Name, x.Path)
		}
		for _, x := range c.Elections {
			each(view.KindElection, x.Name, "")
		}
	}
}
