package fleet

import (
	"slices"
	"testing"
)

// Equal changes of a file are one row with their hosts. Hosts that refuse, stand aside or
// do not answer have rows of their own.
func TestAnswers(t *testing.T) {
	file := func(digest, diff string) []FileChange {
		return []FileChange{{Path: "/etc/a", Digest: digest, Added: 1, Diff: diff}}
	}
	p := answersOf(&State{
		Called: []string{"h1", "h2", "h3", "h4", "h5", "h6"},
		Hosts: map[string]HostRecord{
			"h1": {State: HostCommit, Files: file("x", "")}, "h2": {State: HostCommit, Files: file("y", "")},
			"h3": {State: HostCommit, Files: file("x", "+ a"), More: 2}, "h4": {State: HostAbort, Error: "no"},
			"h5": {State: HostSkipped, Error: "kernel"}, "h7": {State: HostCommit}, "h8": {State: HostCommit, More: 2},
		},
	})
	if len(p.Changes) != 3 || !slices.Equal(p.Changes[1].Hosts, []string{"h1", "h3"}) || p.Changes[1].Diff != "+ a" || p.Changes[0].Path != "(2 more)" {
		t.Errorf("got %+v", p.Changes)
	}
	if len(p.Refused) != 1 || p.Refused[0].Host != "h4" || !slices.Equal(p.Silent, []string{"h6"}) || len(p.Skipped) != 1 || !slices.Equal(p.Unchanged, []string{"h7"}) {
		t.Errorf("got %+v", p)
	}
}
