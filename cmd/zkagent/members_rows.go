package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// statusHeld is the status of a member that is gone from ZooKeeper and that an
// agent's guard keeps.
const statusHeld = "held"

type memberRow struct {
	Group   string            `json:"group"`
	ID      string            `json:"id"`
	Host    string            `json:"host"`
	Port    int               `json:"port"`
	Ports   map[string]int    `json:"ports,omitempty"`
	Weight  int               `json:"weight"`
	Status  string            `json:"status"`
	Labels  map[string]string `json:"labels,omitempty"`
	Raw     map[string]string `json:"raw_labels,omitempty"` // no tokens
	LeftOut string            `json:"labels_left_out,omitempty"`
	Node    string            `json:"node"`
	Znode   string            `json:"znode"`
	Czxid   int64             `json:"czxid"`
	Created time.Time         `json:"created"`
	address string
}

func (m memberRow) labels() string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		list = append(list, k+"="+m.Labels[k])
	}
	return strings.Join(list, ",")
}

// rejectedRow is a child that is not a member.
type rejectedRow struct {
	Group  string `json:"group"`
	Znode  string `json:"znode"`
	Reason string `json:"reason"`
}

// memberRows lists the members of all groups of a view.
func memberRows(v view.View, states []string) ([]memberRow, []rejectedRow) {
	var rows []memberRow
	var rejected []rejectedRow
	take := func(name string, g *view.Group) {
		for _, m := range g.Members {
			status := m.Status
			if m.Held {
				status = statusHeld
			}
			if len(states) > 0 && !slices.Contains(states, status) {
				continue
			}
			rows = append(rows, memberRow{name, m.ID, m.Host, m.Port, m.Ports, m.Weight, status, m.Labels, m.RawLabels, string(m.LabelsLeftOut), m.Node, m.Znode, m.Czxid, m.Created.UTC(), m.Address()})
		}
		for _, r := range g.Rejected {
			rejected = append(rejected, rejectedRow{name, r.Znode, r.Reason})
		}
	}
	for _, src := range v.Sources() {
		if grp, ok := v.Group(src.Name); ok && src.Kind == view.KindGroup {
			take(grp.Name, grp)
		}
		if set, ok := v.Groups(src.Name); ok && src.Kind == view.KindGroups {
			for _, grp := range set.Groups {
				take(set.Name+"/"+grp.Name, grp)
			}
		}
	}
	return rows, rejected
}

// notNil encodes a nil list as [] in JSON instead of null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// usedMembers returns the members that the agent uses, of all its groups or of the
// named one.
func usedMembers(s *show.Status, args []string) (view.View, error) {
	named := func(name, path string) bool { return len(args) == 0 || args[0] == name || args[0] == path }
	used := func(st registry.GroupStatus) *view.Group {
		return &view.Group{Name: st.Name, Path: st.Path, Members: st.Members, Rejected: st.Rejected, Holding: st.Holding, Missing: st.Missing}
	}
	var v view.View
	for _, st := range s.Groups {
		if named(st.Name, st.Path) {
			v = v.With(used(st))
		}
	}
	for _, st := range s.GroupSets {
		if named(st.Name, st.Path) {
			set := &view.Groups{Name: st.Name, Path: st.Path}
			for _, grp := range st.Groups {
				set.Groups = append(set.Groups, used(grp))
			}
			v = v.With(set)
		}
	}
	if len(args) == 1 && len(v.Sources()) == 0 {
		return v, fail(exitUsage, fmt.Errorf("the agent follows no group %q", args[0]), "\"zkagent status\" lists its groups")
	}
	return v, nil
}

// watchMembers prints the members now and at each change, until the session or
// the context ends.
func watchMembers(ctx context.Context, console *term.Console, s *session.Session, list []follower, o membersOptions) error {
	var v view.View
	var sources []view.Source
	for _, f := range list {
		sources = append(sources, f.source)
	}
	return followSources(ctx, s, list, func(u view.Update) bool {
		if v = v.With(u); !v.Has(sources...) {
			return true
		}
		if err := printMembers(console, v, o); err == nil && !console.IsJSON() {
			console.Printf("\n")
		}
		return console.Failed() == nil
	})
}
