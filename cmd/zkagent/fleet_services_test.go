package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// TestFleet_ServiceFault: a service that ZooKeeper refuses has a reason in the view of
// services, although no check of it has failed.
func TestFleet_ServiceFault(t *testing.T) {
	t.Parallel()
	addr, s := inMemory(t)
	record, err := json.Marshal(fleet.Record{
		Health: fleet.Failing, Services: map[string]fleet.ServiceUse{"web": {State: "waiting"}, "api": {State: "waiting"}},
		Faults: []fleet.Fault{{Code: "service-not-registered", Subject: "web"}, {Code: "template-failed", Subject: "web"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := fleet.AgentPath("h1")
	if err := s.CreateParents(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), path, record, session.Persistent); err != nil {
		t.Fatal(err)
	}
	var out, talk bytes.Buffer
	if code := run([]string{"fleet", "--services", "--zk", addr, "--no-headers"}, strings.NewReader(""), &out, &talk); code != 0 {
		t.Fatalf("exit code %d: %s", code, &talk)
	}
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	if got, want := strings.Join(rows, "\n"), "api h1 waiting - -\nweb h1 waiting - service-not-registered"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
