package agent

import (
	"reflect"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/program"
	"github.com/zkagent/zkagent/registry"
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
			specs = append(specs, unitSpec{kind: "rolling", name: b.Name, key: c.ID, make: func(any) unitParts {
				return unitParts{unit: &rollingHost{a, b.Name, c.ID}}
			}})
		}
	}
	for _, x := range c.Execs {
		specs = append(specs, unitSpec{kind: string(kindExec), name: x.Name, key: execKey(x), make: func(any) unitParts { return a.execUnit(x) }})
	}
	specs = append(specs, unitSpec{kind: "agent", name: "leftovers", make: a.leftoverUnit})
	return append(specs, unitSpec{kind: "fleet", name: "status", key: c.ID, make: func(any) unitParts {
		return a.fleetUnit(c.ID)
	}})
}

// sameUnit compares the configurations of two units. Functions and loggers
// are put in by us alone, so that plain values decide.
func sameUnit(a, b any) bool { return reflect.DeepEqual(a, b) }

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
