package show

import (
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
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
