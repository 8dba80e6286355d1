package agent

import (
	"encoding/json"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/view"
)

// text is the status as it is written. It is asked for at each publication, most
// of which say nothing new: then no text is made.
func (f *fleetStatus) text(snap *snapshot) string {
	st := f.status(snap)
	if f.data == "" || f.turns != snap.turns || !sameRecord(&st, &f.made) {
		st.Templates = templatesOf(snap)
		f.made, f.turns, f.data = st, snap.turns, fit(st, snap.order)
	}
	return f.data
}

// sameRecord reports whether both tell the same of one agent, but for its templates.
func sameRecord(st, o *fleet.Record) bool {
	return st.Error == o.Error && slices.Equal(st.Leads, o.Leads) && slices.Equal(st.Holds, o.Holds)
}

// failed reports whether a bundle has failed.
func (s *snapshot) failed() bool {
	for _, b := range s.bundles {
		if b.State == "failed" {
			return true
		}
	}
	return false
}

// templatesOf is the state, and the version, of each bundle.
func templatesOf(snap *snapshot) map[string]string {
	all := make(map[string]string, len(snap.order))
	for _, name := range snap.order {
		b := snap.bundles[name]
		all[name] = b.State
		if b.Version != "" {
			all[name] += "@" + b.Version
		}
	}
	return all
}

// status is what there is to tell, but for the templates.
func (f *fleetStatus) status(snap *snapshot) fleet.Record {
	a := f.agent
	st := fleet.Record{Version: a.first.Version, Since: a.started.UTC().Truncate(time.Second)}
	for _, c := range a.conds.List() {
		// Whoever reads this was reached.
		if st.Error == "" && c.Code != "zookeeper-unreachable" {
			st.Error = c.Name() + ": " + c.Text
		}
	}
	for _, e := range a.cfg.Load().Elections {
		if l, ok := snap.view.Leader(e.Name); ok && l.Mine {
			st.Leads = append(st.Leads, e.Name)
		}
	}
	for _, src := range snap.view.Sources() {
		if g, ok := snap.view.Group(src.Name); ok && src.Kind == view.KindGroup && !g.Holding.IsZero() {
			st.Holds = append(st.Holds, g.Name)
		}
	}
	return st
}

// fit returns the status as text within its bound. What does not fit is left out:
// the end of the error, templates from the last on, then whatever remains.
func fit(st fleet.Record, order []string) string {
	if len(st.Error) > 300 {
		st.Error = strings.ToValidUTF8(st.Error[:300], "")
	}
	all := st.Templates
	less := func(n int) string { // the text without n templates
		st.Templates, st.More = all, n
		if n > 0 {
			st.Templates = make(map[string]string, len(order)-n)
			for _, name := range order[:len(order)-n] {
				st.Templates[name] = all[name]
			}
		}
		return recordText(&st)
	}
	if text := less(0); len(text) <= fleetMax {
		return text
	}
	least := max(0, len(order)-fleetMax/shortest)
	n := least + sort.Search(len(order)-least, func(n int) bool { return len(less(least+n)) <= fleetMax })
	text := less(n)
	for len(text) > fleetMax {
		switch {
		case len(st.Holds) > 0:
			st.Holds = st.Holds[:len(st.Holds)-1]
		case len(st.Leads) > 0:
			st.Leads = st.Leads[:len(st.Leads)-1]
		case st.Error != "":
			st.Error = ""
		default:
			return text
		}
		text = recordText(&st)
	}
	return text
}

// shortest is the least that a template takes: "a":"ok" and a comma.
const shortest = 9

func recordText(st *fleet.Record) string {
	data, err := json.Marshal(st)
	if err != nil {
		return "{}"
	}
	return string(data)
}
