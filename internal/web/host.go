package web

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/show"
)

// hostView is one host of the fleet as its record says.
type hostView struct {
	fleet.HostStatus

	Fleet    Fleet
	Row      fleetRow
	Files    []fileRow
	Services []show.Service
	More     []string // what the record left out
}

// plainID is an id that a shell takes as one word.
var plainID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)

// Plain reports whether the id can stand in a command that people copy.
func (v hostView) Plain() bool { return plainID.MatchString(v.ID) }

// fileRow is the state of one template.
type fileRow struct{ Name, State string }

// hostPage is the address of a host's page.
func hostPage(id string) string { return "/hosts/" + url.PathEscape(id) }

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
		v := hostView{HostStatus: h, Fleet: f, Row: rowOf(&h, time.Now(), f.Error != "", false), Services: show.Services(f.Hosts[i : i+1])}
		for _, name := range slices.Sorted(maps.Keys(h.Files)) {
			v.Files = append(v.Files, fileRow{name, h.Files[name]})
		}
		for _, field := range slices.Sorted(maps.Keys(h.More)) {
			v.More = append(v.More, fmt.Sprintf("%d %s", h.More[field], fleet.Clip(field, 20)))
		}
		return v
	})
}
