package web

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
)

// Fleet is the records of all hosts, as read at a moment.
type Fleet struct {
	Hosts []fleet.HostStatus `json:"hosts"`
	At    time.Time          `json:"at,omitzero"`     // zero: it was never read
	Error string             `json:"error,omitempty"` // of the latest reading; Hosts is then older
}

// readFleet returns the fleet, at most cacheFresh old. No watch follows it.
func (s *Server) readFleet(ctx context.Context) Fleet {
	f, err := s.fleet.get(ctx, func(ctx context.Context) (Fleet, error) {
		zk, err := s.Source.Session(ctx)
		if err != nil {
			return Fleet{}, err
		}
		hosts, err := fleet.Agents(ctx, zk)
		return Fleet{Hosts: hosts, At: time.Now()}, err
	})
	f.Error = problem(err)
	return f
}

// tallyShown is how many words a card lists.
const tallyShown = 4

// fleetView is the fleet with what its cards show.
type fleetView struct {
	Fleet

	Verdict                   show.Verdict
	Problems                  []*show.Problem
	Rows                      []fleetRow
	Services                  []*show.ServiceGroup
	Rollouts                  []rolloutView // that are not over
	Sparks                    []spark
	Live, Held                int
	Healths                   []show.HealthCount // that occur, the worst first
	Programs, Versions, Holds tally
	Leaders                   string
}

// rowsShown is how many rows of a list of hosts are shown at once.
const rowsShown = 50

// shown is how many rows of a list stand above the fold: all of a short one, and of a
// long one those at its begin that need a look.
func shown(all, bad int) int {
	if all <= rowsShown {
		return all
	}
	return min(bad, rowsShown)
}

// Bad counts the hosts that need a look. They are the first ones.
func (v fleetView) Bad() int {
	n := slices.IndexFunc(v.Rows, func(r fleetRow) bool { return r.State == show.OK })
	if n < 0 {
		return len(v.Rows)
	}
	return n
}

type tally map[string]int

// String lists the words, the most frequent first, with how often they occur
// where they differ.
func (t tally) String() string {
	words := slices.SortedFunc(maps.Keys(t), func(a, b string) int {
		return cmp.Or(cmp.Compare(t[b], t[a]), cmp.Compare(a, b))
	})
	for i, w := range words {
		if len(t) > 1 {
			words[i] = fmt.Sprintf("%s on %s", w, term.Count(t[w], "host"))
		}
	}
	return firstWords(words)
}

func firstWords(words []string) string {
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
		Programs: tally{}, Versions: tally{}, Holds: tally{},
	}
	v.Verdict = show.VerdictOf(f.Hosts, v.Problems)
	var leads []string
	for i := range v.Hosts {
		h := &v.Hosts[i]
		v.Rows = append(v.Rows, rowOf(h, now, f.Error != "", h.ID == s.ID))
		if show.Gone(h.Health) {
			continue
		}
		v.Live++
		v.Held += len(h.Holds)
		for _, name := range h.Holds {
			v.Holds[fleet.Clip(name, 40)]++
		}
		if h.Version != "" {
			v.Programs[fleet.Clip(h.Version, 40)]++
		}
		for name, use := range h.Configs {
			v.Versions[fmt.Sprintf("%s v%d", fleet.Clip(name, 40), use.Accepted)]++
		}
		for _, name := range h.Leads {
			leads = append(leads, fleet.Clip(name, 40)+": "+fleet.Clip(h.ID, 60))
		}
	}
	slices.Sort(leads)
	v.Leaders = cmp.Or(firstWords(slices.Compact(leads)), "–")
	return v
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

type hostView struct {
	fleet.HostStatus

	Fleet    Fleet
	Row      fleetRow
	Services []show.Service
}

// plainID is an id that a shell takes as one word.
var plainID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)

// Plain reports whether the id can stand in a command that people copy.
func (v hostView) Plain() bool { return plainID.MatchString(v.ID) }

// serveHost renders the page of a host from its record. What the record does not
// have stays on that host.
func (s *Server) serveHost(w http.ResponseWriter, r *http.Request) {
	f := s.readFleet(r.Context())
	i := slices.IndexFunc(f.Hosts, func(h fleet.HostStatus) bool { return h.ID == r.PathValue("id") })
	if i < 0 {
		http.Error(w, "no host of the fleet has this id; the first page lists them all", http.StatusNotFound)
		return
	}
	h := f.Hosts[i]
	s.servePage(w, pageSection{r.URL.EscapedPath(), "Host " + fleet.Clip(h.ID, 100), "host"}, func(*show.Status) any {
		return hostView{HostStatus: h, Fleet: f, Row: rowOf(&h, time.Now(), f.Error != "", false), Services: show.Services(f.Hosts[i : i+1])}
	})
}

// How much the sparklines show.
const (
	sampleEvery = time.Minute
	samplesKept = 120
	weeksShown  = 12
)

type spark struct {
	What   string // such as "members"
	Over   string // such as "2 hours"
	Values []int
}

// Now is the latest number.
func (s spark) Now() int {
	if len(s.Values) == 0 {
		return 0
	}
	return s.Values[len(s.Values)-1]
}

// Points are the corners of the line in a box of 120 by 24.
func (s spark) Points() string {
	var b strings.Builder
	high := slices.Max(append([]int{1}, s.Values...))
	for i, v := range s.Values {
		x := 120.0
		if len(s.Values) > 1 {
			x = 120 * float64(i) / float64(len(s.Values)-1)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, 23-22*float64(v)/float64(high))
	}
	return b.String()
}

// Words describe the line to those who do not see it.
func (s spark) Words() string {
	values := append([]int{s.Now()}, s.Values...)
	return fmt.Sprintf("%s over %s: from %d to %d, now %d", s.What, s.Over, slices.Min(values), slices.Max(values), s.Now())
}

// samples are the numbers of the last hours. It is safe for concurrent use.
type samples struct {
	mu      sync.Mutex // mu guards everything below.
	seq     int64      // of the last event that was counted
	members []int
	renders []int
}

func (h *samples) take(s *Server) {
	members := s.memberCount()
	h.mu.Lock()
	defer h.mu.Unlock()
	renders := 0
	list, _ := s.Events.Since(h.seq)
	for _, e := range list {
		h.seq = e.Seq
		if e.Kind == "applied" {
			renders++
		}
	}
	h.members, h.renders = keep(h.members, members), keep(h.renders, renders)
}

func (s *Server) memberCount() int {
	members := 0
	for _, list := range s.Source.Members() {
		members += len(list)
	}
	return members
}

// keep appends to the list and drops what is too old.
func keep(list []int, n int) []int {
	list = append(list, n)
	return list[max(0, len(list)-samplesKept):]
}

func (s *Server) sparks(trees []treeView, now time.Time) []spark {
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	over := term.Count(len(s.samples.members), "minute")
	published := make([]int, weeksShown)
	for _, t := range trees {
		for _, v := range t.Versions {
			if week := int(now.Sub(v.Time) / (7 * 24 * time.Hour)); week >= 0 && week < weeksShown {
				published[weeksShown-1-week]++
			}
		}
	}
	return []spark{
		{"Members of the groups here", over, append([]int(nil), keep(s.samples.members, s.memberCount())...)},
		{"Renders a minute here", over, append([]int(nil), s.samples.renders...)},
		{"Versions a week", fmt.Sprintf("%d weeks", weeksShown), published},
	}
}
