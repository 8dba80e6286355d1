package main

import (
	"slices"
	"testing"

	"github.com/zkagent/zkagent/fleet"
)

// Equal changes of a file are one row with their hosts. Hosts that refuse, stand aside or
// do not answer have rows of their own.
func TestPlanOf(t *testing.T) {
	file := func(digest, diff string) []fleet.FileChange {
		return []fleet.FileChange{{Path: "/etc/a", Digest: digest, Added: 1, Diff: diff}}
	}
	p := planOf(&fleet.State{
		Called: []string{"h1", "h2", "h3", "h4", "h5", "h6"},
		Hosts: map[string]fleet.HostRecord{
			"h1": {State: fleet.HostCommit, Files: file("x", "")}, "h2": {State: fleet.HostCommit, Files: file("y", "")},
			"h3": {State: fleet.HostCommit, Files: file("x", "+ a"), More: 2}, "h4": {State: fleet.HostAbort, Error: "no"},
			"h5": {State: fleet.HostSkipped, Error: "kernel"}, "h7": {State: fleet.HostCommit}, "h8": {State: fleet.HostCommit, More: 2},
		},
	})
	if len(p.Changes) != 3 || !slices.Equal(p.Changes[1].Hosts, []string{"h1", "h3"}) || p.Changes[1].Diff != "+ a" || p.Changes[0].Path != "(2 files more)" {
		t.Errorf("got %+v", p.Changes)
	}
	if len(p.Refused) != 1 || p.Refused[0].Host != "h4" || !slices.Equal(p.Silent, []string{"h6"}) || len(p.Skipped) != 1 || !slices.Equal(p.Unchanged, []string{"h7"}) {
		t.Errorf("got %+v", p)
	}
	if p.outcome() == nil || (&fleetPlan{Hosts: 2}).outcome() != nil {
		t.Error("who refuses decides the exit code")
	}
}
