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
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
)

// tallyShown is how many words a card lists.
const tallyShown = 4

// fleetView is the fleet with what its cards show.
type fleetView struct {
	Fleet

	Verdict                    show.Verdict
	Problems                   []*show.Problem
	Rows                       []fleetRow
	Services                   []*show.ServiceGroup
	Rollouts                   []rolloutView // that are not over
	Sparks                     []spark
	Live, Held                 int
	Healths                    []show.HealthCount // that occur, the worst first
	FirstHeld                  string
	Program, Versions, Leaders string

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
			words[i] = fmt.Sprintf("%s on %s", w, term.Count(t[w], "host"))
		}
	}
	if n := len(words) - tallyShown; n > 0 {
		words = append(words[:tallyShown], fmt.Sprintf("%d more", n))
	}
	return strings.Join(words, ", ")
}

// fleetRow is a host as the page shows it. Its times are texts already: a fleet has
// many hosts, and templates are slow.
type fleetRow struct {
	show.Host

	Name, Row, Stamp, Age string
}

func (s *Server) fleetPage(r *http.Request, _ *show.Status) any {
	v := s.viewFleet(s.readFleet(r.Context()), time.Now())
	now, _ := s.changes.get(r.Context(), s.readChanges) // its own page says what is wrong.
	for _, one := range now.Rollouts {
		if one.Open() {
			v.Rollouts = append(v.Rollouts, one)
			if one.Phase() == fleet.PhaseHalted {
				v.Verdict.Cause = fmt.Sprintf("%s: %v", one.Tree, one.Err())
			}
		}
	}
	v.Sparks = s.sparks(now.Trees, time.Now())
	return v
}

func (s *Server) viewFleet(f Fleet, now time.Time) fleetView {
	v := fleetView{
		Fleet: f, Healths: show.Healths(f.Hosts), Services: show.ServiceGroups(show.Services(f.Hosts)), Problems: show.Problems(f.Hosts),
		programs: tally{}, versions: tally{}, leads: tally{}, holds: tally{},
	}
	v.Verdict = show.VerdictOf(f.Hosts, v.Problems)
	for i := range v.Hosts {
		h := &v.Hosts[i]
		v.Rows = append(v.Rows, rowOf(h, now, f.Error != "", h.ID == s.ID))
		if !show.Gone(h.Health) {
			v.count(h)
		}
	}
	v.FirstHeld = v.holds.String()
	v.Program, v.Versions, v.Leaders = v.programs.String(), cmp.Or(v.versions.String(), "–"), cmp.Or(v.leaders(), "–")
	return v
}

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

func rowOf(h *fleet.HostStatus, now time.Time, stale, self bool) fleetRow {
	row := fleetRow{Host: show.HostOf(h), Name: h.ID}
	if !row.From.IsZero() {
		row.Stamp, row.Age = row.From.UTC().Format(time.RFC3339), term.Short(now.Sub(row.From))
	}
	if stale || row.Gone() {
		row.Row = "stale"
	}
	if self {
		row.Name += " (this)"
	}
	return row
}

// Gone reports whether no agent runs there.
func (r fleetRow) Gone() bool { return show.Gone(r.Health) }
