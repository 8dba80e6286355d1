package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// Bounds of what is read for the page.
const (
	fleetFresh  = 3 * time.Second // how long one reading serves everybody who looks
	fleetWait   = 4 * time.Second // for ZooKeeper to answer
	goneKept    = time.Hour       // how long a host that went is shown
	goneMax     = 1000            // hosts
	fleetTooBig = 64 << 10        // bytes of a status that are looked at
)

// HostStatus is one row of the fleet: the status that one agent publishes, or
// what is wrong with it.
type HostStatus struct {
	fleet.Record

	ID     string    `json:"id"`
	State  string    `json:"state"` // failed, unreadable, gone, held, kept, waiting or ok
	Detail string    `json:"detail,omitempty"`
	Seen   time.Time `json:"seen"`
	Self   bool      `json:"self,omitempty"`
}

// Fleet is what the agents of the fleet tell, as read at a moment.
type Fleet struct {
	Hosts []HostStatus `json:"hosts"`
	At    time.Time    `json:"at,omitzero"`
	Error string       `json:"error,omitempty"` // of the newest reading; Hosts is then older
}

// fleetReader reads the fleet when somebody looks: nobody watches it. It is
// safe for concurrent use; one reading serves all who look at the same time.
type fleetReader struct {
	session func(context.Context) (*session.Session, error)
	self    string

	mu    sync.Mutex // mu guards everything below, and is held while one reads.
	fleet Fleet
	tried time.Time
	known map[string]HostStatus // hosts that were seen
}

// read returns the fleet, at most fleetFresh old.
func (f *fleetReader) read(ctx context.Context) Fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.tried) < fleetFresh {
		return f.fleet
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetWait)
	defer cancel()
	hosts, err := f.hosts(ctx)
	f.tried = time.Now()
	if err != nil {
		f.fleet.Error = err.Error()
		return f.fleet
	}
	f.fleet = Fleet{Hosts: f.remember(hosts), At: f.tried}
	return f.fleet
}

func (f *fleetReader) hosts(ctx context.Context) ([]HostStatus, error) {
	s, err := f.session(ctx)
	if err != nil {
		return nil, err
	}
	names, _, err := s.Children(ctx, fleet.AgentsPath)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = session.JoinPath(fleet.AgentsPath, n)
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	hosts := make([]HostStatus, 0, len(names))
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode): // it went meanwhile.
		case r.Err != nil:
			hosts = append(hosts, HostStatus{ID: names[i], State: "unreadable", Detail: r.Err.Error()})
		default:
			hosts = append(hosts, decodeHost(names[i], r.Data))
		}
	}
	return hosts, nil
}

// decodeHost reads a status, which may be of another version, or garbage: the
// host is shown all the same.
func decodeHost(id string, data []byte) HostStatus {
	h := HostStatus{ID: id, State: "ok"}
	err := errors.New("the status is too large")
	if len(data) <= fleetTooBig {
		err = json.Unmarshal(data, &h.Record)
	}
	if err != nil {
		h.Record = fleet.Record{}
		h.State, h.Detail = "unreadable", "the status is not one that this version understands"
		return h
	}
	for _, state := range h.Templates {
		word, _, _ := strings.Cut(state, "@")
		switch {
		case word == "failed":
			h.State = "failed"
		case (word == "waiting" || word == "kept") && h.State != "failed":
			h.State = word
		}
	}
	if h.State == "ok" && len(h.Holds) > 0 {
		h.State = "held"
	}
	h.Detail = shorten(h.Error, 500)
	return h
}

// shorten cuts a text that others have written.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + " …"
}

// hostOrder puts problems first.
var hostOrder = map[string]int{"failed": 0, "unreadable": 1, "gone": 2, "held": 3, "kept": 4, "waiting": 5}

// remember adds hosts that went since somebody looked, and sorts.
func (f *fleetReader) remember(hosts []HostStatus) []HostStatus {
	live := map[string]HostStatus{}
	for _, h := range hosts {
		h.Seen, h.Self = f.tried, h.ID == f.self
		live[h.ID] = h
	}
	for id, h := range f.known {
		if _, ok := live[id]; ok || f.tried.Sub(h.Seen) > goneKept || len(live) >= len(hosts)+goneMax {
			continue
		}
		h.State, h.Detail = "gone", "its session has ended"
		live[id] = h
	}
	f.known = live
	return slices.SortedFunc(maps.Values(live), func(a, b HostStatus) int {
		return cmp.Or(cmp.Compare(hostRank(a), hostRank(b)), cmp.Compare(a.ID, b.ID))
	})
}

func hostRank(h HostStatus) int {
	if n, ok := hostOrder[h.State]; ok {
		return n
	}
	return len(hostOrder)
}
