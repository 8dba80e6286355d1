package show

import (
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
)

// TestProblems: equal faults of many hosts are one problem, since the first of them,
// and the verdict names it.
func TestProblems(t *testing.T) {
	at := time.Date(2026, 1, 2, 10, 51, 0, 0, time.UTC)
	failing := func(id string, since time.Time) fleet.HostStatus {
		return fleet.HostStatus{ID: id, Record: fleet.Record{Health: fleet.Failing, At: since, Faults: []fleet.Fault{{Code: "template-failed", Subject: "site", Since: since}}}}
	}
	hosts := []fleet.HostStatus{
		failing("b", at.Add(time.Minute)), failing("a", at),
		{ID: "c", Record: fleet.Record{Health: fleet.OK}},
		{ID: "d", Record: fleet.Record{Health: fleet.Stopped}},
	}
	list := Problems(hosts)
	if len(list) != 1 || list[0].Names() != "b, a" || !list[0].Since.Equal(at) || list[0].State != Critical {
		t.Fatalf("got %+v", list)
	}
	if v := VerdictOf(hosts, list); v.Text != "2 of 3 hosts failing" || !v.Since.Equal(at) || v.Cause != "template-failed site" || v.State != Critical {
		t.Errorf("got %+v", v)
	}
	if text := FleetSummary(nil); strings.Contains(text, "healthy") {
		t.Errorf("no hosts: %q", text)
	}
	if v := VerdictOf(hosts[2:], nil); v.Text != "1 host, all healthy" || v.State != OK {
		t.Errorf("got %+v", v)
	}
}
