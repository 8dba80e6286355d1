package web

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
)

// tallyShown is how many words a card lists.
const tallyShown = 4

// fleetView is the fleet with what its cards show.
type fleetView struct {
	Fleet

	Rows                             []fleetRow
	Rollouts                         []rolloutView // that are not over
	Live, Failed, Held               int
	FirstFailed, FirstHeld           string
	Program, Versions, Leaders       string
	programs, versions, leads, holds tally
}

// tally counts how often words occur.
type tally map[string]int

// String lists the words, the most frequent first, with how often they occur
// where they differ.
func (t tally) String() string {
	words := slices.SortedFunc(maps.Keys(t), func(a, b string) int {
		return cmp.Or(cmp.Compare(t[b], t[a]), cmp.Compare(a, b))
	})
	for i, w := range words[:min(len(words), tallyShown)] {
		if len(t) > 1 {
			words[i] = fmt.Sprintf("%s on %s", w, plural(t[w], "host"))
		}
	}
	if n := len(words) - tallyShown; n > 0 {
		words = append(words[:tallyShown], fmt.Sprintf("%d more", n))
	}
	return strings.Join(words, ", ")
}

// fleetRow is a host as texts: a fleet has many, and templates are slow.
type fleetRow struct {
	Key, ID, Row, Class, State, Templates, Leads, Since, Age, Version, Detail, Holds string
}

func (s *Server) fleetPage(r *http.Request, _ *Status) any {
	v := viewFleet(s.fleet.read(r.Context()), time.Now())
	list, _ := s.rollouts.get(r.Context(), s.readRollouts) // its own page says what is wrong.
	for _, one := range list {
		if one.Done == nil && one.Err() == nil || one.Phase() == fleet.PhaseHalted {
			v.Rollouts = append(v.Rollouts, one)
		}
	}
	return v
}

func viewFleet(f Fleet, now time.Time) fleetView {
	v := fleetView{Fleet: f, programs: tally{}, versions: tally{}, leads: tally{}, holds: tally{}}
	for _, h := range v.Hosts {
		v.Rows = append(v.Rows, rowOf(h, now))
		if h.State != "gone" {
			v.count(&h)
		}
	}
	v.FirstHeld = v.holds.String()
	v.Program, v.Versions, v.Leaders = v.programs.String(), cmp.Or(v.versions.String(), "–"), cmp.Or(v.leaders(), "–")
	return v
}

// count takes a host into the numbers of the cards.
func (v *fleetView) count(h *HostStatus) {
	v.Live++
	if h.State == "failed" {
		v.Failed++
		v.FirstFailed = cmp.Or(v.FirstFailed, h.ID)
	}
	v.Held += len(h.Holds)
	for _, name := range h.Holds {
		v.holds[shorten(name, 40)]++
	}
	if h.Version != "" {
		v.programs[shorten(h.Version, 40)]++
	}
	used := map[string]bool{}
	for _, state := range h.Templates {
		if _, version, ok := strings.Cut(state, "@"); ok && !used[version] {
			used[version] = true
			v.versions[shorten(version, 40)]++
		}
	}
	for _, name := range h.Leads {
		v.leads[shorten(name, 40)+": "+shorten(h.ID, 60)]++
	}
}

// leaders lists who leads which election.
func (v *fleetView) leaders() string {
	list := slices.Sorted(maps.Keys(v.leads))
	if n := len(list) - tallyShown; n > 0 {
		list = append(list[:tallyShown], fmt.Sprintf("%d more", n))
	}
	return strings.Join(list, ", ")
}

func rowOf(h HostStatus, now time.Time) fleetRow {
	row := fleetRow{
		Key: h.ID, ID: h.ID, Class: stateClass(h.State), State: h.State, Leads: shorten(strings.Join(h.Leads, ", "), 200),
		Version: shorten(h.Version, 40), Detail: h.Detail,
	}
	var b strings.Builder
	for i, name := range slices.Sorted(maps.Keys(h.Templates)) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name + " " + h.Templates[name])
	}
	if h.More > 0 {
		fmt.Fprintf(&b, ", %d more", h.More)
	}
	row.Templates = shorten(b.String(), 500)
	if !h.Since.IsZero() {
		row.Since, row.Age = h.Since.UTC().Format(time.RFC3339), ago(now.Sub(h.Since))
	}
	if len(h.Holds) > 0 {
		row.Holds = "holds " + shorten(strings.Join(h.Holds, ", "), 200)
	}
	if h.State == "gone" {
		row.Row = "stale"
	}
	if h.Self {
		row.ID += " (this)"
	}
	return row
}
