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

	Rows                       []fleetRow
	Services                   []serviceRow
	Rollouts                   []rolloutView // that are not over
	Live, Held                 int
	Healths                    []healthCount // that occur, the worst first
	FirstHeld                  string
	Program, Versions, Leaders string

	programs, versions, leads, holds tally
}

// healthCount is how many hosts are of one health.
type healthCount struct {
	Health fleet.Health
	Count  int
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
	Key, ID, Page, Row, Class, State, Templates, Leads, Since, Age, Version, Detail, Holds string

	Gone bool // no agent runs there
}

// serviceRow is one service of one host.
type serviceRow struct {
	Key, Service, Host, Page, Class, State, Detail string
	Since                                          time.Time
}

func (s *Server) fleetPage(r *http.Request, _ *Status) any {
	v := s.viewFleet(s.fleet.read(r.Context()), time.Now())
	now, _ := s.changes.get(r.Context(), s.readChanges) // its own page says what is wrong.
	for _, one := range now.Rollouts {
		if one.Open() {
			v.Rollouts = append(v.Rollouts, one)
		}
	}
	return v
}

func (s *Server) viewFleet(f Fleet, now time.Time) fleetView {
	v := fleetView{Fleet: f, programs: tally{}, versions: tally{}, leads: tally{}, holds: tally{}}
	counts := map[fleet.Health]int{}
	for _, h := range v.Hosts {
		v.Rows = append(v.Rows, rowOf(h, now, f.Error != "", h.ID == s.ID))
		v.Services = append(v.Services, servicesOf(h)...)
		counts[h.Health]++
		if !hostGone(h) {
			v.count(&h)
		}
	}
	for _, word := range fleet.Healths {
		if counts[word] > 0 {
			v.Healths = append(v.Healths, healthCount{word, counts[word]})
		}
	}
	slices.SortStableFunc(v.Services, func(a, b serviceRow) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(serviceRank(a.State), serviceRank(b.State)), cmp.Compare(a.Host, b.Host))
	})
	v.FirstHeld = v.holds.String()
	v.Program, v.Versions, v.Leaders = v.programs.String(), cmp.Or(v.versions.String(), "–"), cmp.Or(v.leaders(), "–")
	return v
}

// hostGone reports whether a host has no agent that runs.
func hostGone(h fleet.HostStatus) bool { return h.Health == fleet.Lost || h.Health == fleet.Stopped }

// count takes a host into the numbers of the cards.
func (v *fleetView) count(h *fleet.HostStatus) {
	v.Live++
	v.Held += len(h.Holds)
	for _, name := range h.Holds {
		v.holds[fleet.Clip(name, 40)]++
	}
	if h.Version != "" {
		v.programs[fleet.Clip(h.Version, 40)]++
	}
	for name, use := range h.Configs {
		v.versions[fmt.Sprintf("%s v%d", fleet.Clip(name, 40), use.Accepted)]++
	}
	for _, name := range h.Leads {
		v.leads[fleet.Clip(name, 40)+": "+fleet.Clip(h.ID, 60)]++
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

func rowOf(h fleet.HostStatus, now time.Time, stale, self bool) fleetRow {
	row := fleetRow{
		Key: h.ID, ID: h.ID, Page: hostPage(h.ID), Gone: hostGone(h), Class: stateClass(string(h.Health)), State: string(h.Health), Leads: fleet.Clip(strings.Join(h.Leads, ", "), 200),
		Version: fleet.Clip(h.Version, 40), Detail: h.Detail, Templates: filesText(&h.Record),
	}
	since := h.Since
	if hostGone(h) {
		since = h.At
	}
	if !since.IsZero() {
		row.Since, row.Age = since.UTC().Format(time.RFC3339), ago(now.Sub(since))
	}
	if len(h.Holds) > 0 {
		row.Holds = "holds " + fleet.Clip(strings.Join(h.Holds, ", "), 200)
	}
	if stale || hostGone(h) {
		row.Row = "stale"
	}
	if self {
		row.ID += " (this)"
	}
	return row
}

// filesText is the state, and the version in use, of each template. Versions that
// a host knows and does not use are said once for each config.
func filesText(r *fleet.Record) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Configs)) {
		if use := r.Configs[name]; use.Known != use.Accepted {
			parts = append(parts, fmt.Sprintf("%s v%d known, v%d accepted", name, use.Known, use.Accepted))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		parts = append(parts, name+" "+r.Files[name])
	}
	if n := r.More["files"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	return fleet.Clip(strings.Join(parts, ", "), 500)
}

// servicesOf are the services of a host; of one that is gone they are down.
func servicesOf(h fleet.HostStatus) []serviceRow {
	var rows []serviceRow
	for _, name := range slices.Sorted(maps.Keys(h.Services)) {
		s := h.Services[name]
		row := serviceRow{
			Key: name + " " + h.ID, Service: name, Host: h.ID, Page: hostPage(h.ID), State: s.State, Class: stateClass(s.State), Since: s.Since,
		}
		if s.Check != "" {
			row.Detail = "check " + s.Check + " has failed"
			if s.Exit != 0 {
				row.Detail += fmt.Sprintf(" with exit status %d", s.Exit)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// serviceRank puts what is down first.
func serviceRank(state string) int {
	switch stateClass(state) {
	case "bad":
		return 0
	case "warn":
		return 1
	}
	return 2
}
