package show

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// TestSeverityOf: the words that every view shows have one severity, and a condition
// has that of the health that it leads to.
func TestSeverityOf(t *testing.T) {
	for state, want := range map[string]Severity{
		registry.StateBlocked: Critical, "exited": Critical, "reload-failed": Critical, registry.StateKept: Warning,
		registry.StateRegistered: OK, fleet.PhaseRolling: Active, fleet.PhaseHalted: Critical, "never heard of": Plain,
	} {
		if got := SeverityOf(state); got != want {
			t.Errorf("%s: got %d, want %d", state, got, want)
		}
	}
	for _, h := range fleet.Healths {
		if SeverityOf(string(h)) == Plain {
			t.Errorf("health %s has no severity", h)
		}
	}
	for _, k := range condition.Kinds() {
		want := SeverityOf(string(fleet.Degraded))
		if k.Failing {
			want = SeverityOf(string(fleet.Failing))
		}
		if got := SeverityOf(k.Code); got != want {
			t.Errorf("%s: got %d, want %d", k.Code, got, want)
		}
	}
}

// TestServices: services that need a look come first, with the reason.
func TestServices(t *testing.T) {
	at := time.Now()
	hosts := []fleet.HostStatus{
		{ID: "a", Record: fleet.Record{Services: map[string]fleet.ServiceUse{"web": {State: "registered", Since: at}, "api": {State: "kept"}}}},
		{ID: "b", Record: fleet.Record{Services: map[string]fleet.ServiceUse{"web": {State: "critical", Check: "http", Exit: 2}}}},
	}
	rows := Services(hosts)
	if len(rows) != 3 || rows[0].Host != "b" || rows[0].Detail() != "check http has failed with exit status 2" || rows[1].Service != "api" {
		t.Errorf("got %+v", rows)
	}
	if rows := Services(hosts, "api"); len(rows) != 1 {
		t.Errorf("got %+v", rows)
	}
}

// Without ZooKeeper, what was read from it is old, and says since when. A fault stays one.
func TestRows_Outage(t *testing.T) {
	s := Status{
		ZooKeeper: ZooKeeperStatus{State: "suspended", LastAnswer: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Sources:   []SourceStatus{{Kind: "config", Name: "a", Path: "/a", Reported: true}, {Kind: "group", Name: "b"}, {Kind: "config", Name: "c", Reported: true}},
		Configs:   []ConfigStatus{{Status: config.Status{Name: "c"}, Error: "a wrong digest"}},
		Services:  []registry.ServiceStatus{{Name: "s", State: registry.StateRegistered, Address: "a:1", Checks: []registry.CheckStatus{{Name: "t", State: registry.Passing}}}, {Name: "d", State: registry.StateCritical}},
		Elections: []ElectionStatus{{Leader: view.Leader{Name: "e", ID: "h2", Term: 7}}},
	}
	states := func() string {
		var b strings.Builder
		for _, r := range s.Rows() {
			fmt.Fprintf(&b, "%s %s %t\n", r.Name, r.State, strings.HasPrefix(r.Detail, "as of 2026-01-02T03:04:05Z; "))
		}
		return b.String()
	}
	if got, want := states(), "s old true\nd critical false\na old true\nb waiting false\nc failed false\ne old true\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	s.ZooKeeper.State = "connected"
	if got, want := states(), "s registered false\nd critical false\na ok false\nb waiting false\nc failed false\ne follower false\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
