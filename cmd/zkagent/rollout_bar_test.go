package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
)

// rolloutStates are what a follower sees of one rollout of four hosts.
func rolloutStates() []*fleet.State {
	proposal := fleet.Proposal{Version: 2, Hosts: 4, Strategy: fleet.Strategy{Parallel: 2, Canary: 1}}
	voting, canary := fleet.Gate{State: fleet.GateVoting}, fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveCanary}
	open, paused := fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveAll}, fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveAll, Paused: true}
	halted := fleet.Gate{State: fleet.GateHalted, Wave: fleet.WaveAll, Host: "c", Reason: "exit status 1"}
	record := func(states ...string) map[string]fleet.HostRecord {
		hosts := map[string]fleet.HostRecord{}
		for i, state := range states {
			r := fleet.HostRecord{State: state}
			switch state {
			case fleet.HostSkipped:
				r.Error = "maintenance: disk"
			case fleet.HostFailed:
				r.Error = "exit status 1"
			}
			hosts[string(rune('a'+i))] = r
		}
		return hosts
	}
	const commit, started, done, failed, skipped = fleet.HostCommit, fleet.HostStarted, fleet.HostDone, fleet.HostFailed, fleet.HostSkipped
	states := []*fleet.State{
		{Gate: voting},
		{Gate: voting, Hosts: record(commit, commit)},
		{Gate: canary, Hosts: record(commit, commit, commit, skipped)},
		{Gate: open, Hosts: record(done, started, commit, skipped)},
		{Gate: paused, Hosts: record(done, done, commit, skipped)},
		{Gate: halted, Hosts: record(done, done, failed, skipped)},
	}
	for _, s := range states {
		s.Proposal, s.Called = proposal, []string{"a", "b", "c", "d"}
	}
	return states
}

func TestRolloutFrame(t *testing.T) {
	want := []string{
		" vote     ░░░░░░░░░░░░░░░░░░░░░░░░  0/4",
		" vote     ████████████░░░░░░░░░░░░  2/4",
		" canary   ░░░░░░░░░░░░░░░░░░░░░░░░  0/1  then 2 at a time, 1 in maintenance",
		" roll     ████████░░░░░░░░░░░░░░░░  1/3  2 at a time, 1 in maintenance",
		" roll     ████████████████░░░░░░░░  2/3  paused, 1 in maintenance",
		" roll     ████████████████░░░░░░░░  2/3  halted, 1 failed, 1 in maintenance",
	}
	for i, state := range rolloutStates() {
		if got := rolloutFrame(state); got != want[i] {
			t.Errorf("state %d:\n got %q\nwant %q", i, got, want[i])
		}
	}
	aborted := &fleet.State{Gate: fleet.Gate{State: fleet.GateClosed, Result: fleet.ResultAborted, Reason: "no"}}
	if got := rolloutFrame(aborted); got != "" {
		t.Errorf("aborted: got %q", got)
	}
}

// TestRolloutFollower_Terminal: what a terminal gets is bars that are drawn in
// place, with a line for each failure.
func TestRolloutFollower_Terminal(t *testing.T) {
	var out bytes.Buffer
	f := newRolloutFollower(&globals{Console: term.Console{Err: &out}}, target{name: "site"}, true)
	for _, state := range rolloutStates() {
		f.see(state)
		f.see(state) // nothing is told twice
	}
	f.bar.end()
	const redraw = "\r\x1b[K"
	const voted = redraw + " vote     ████████████████████████  4/4\n"
	frames := make([]string, 0, 6)
	for _, state := range rolloutStates() {
		frames = append(frames, redraw+rolloutFrame(state))
	}
	want := strings.Join([]string{
		"site: phase voting\n", frames[0], frames[1],
		redraw + "site: vote d: skipped: maintenance: disk\n", "site: decision commit\n", voted, "site: phase rolling\n",
		"site: host d: skipped: maintenance: disk\n", frames[2], frames[3],
		"\nsite: phase paused\n", frames[4],
		redraw + "site: host c: failed: exit status 1\n", frames[5], "\nsite: phase halted\n",
	}, "")
	if got := out.String(); got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestRolloutFollower_Lines: elsewhere each event is a line.
func TestRolloutFollower_Lines(t *testing.T) {
	var out bytes.Buffer
	f := newRolloutFollower(&globals{Console: term.Console{Err: &out}}, target{name: "site"}, false)
	for _, state := range rolloutStates() {
		f.see(state)
	}
	for _, want := range []string{"site: vote a: commit\n", "site: host a: done\n", "site: host b: started\n", "site: host c: failed: exit status 1\n"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("want once %q in\n%s", want, out.String())
		}
	}
	if strings.ContainsAny(out.String(), "\r\x1b█") {
		t.Errorf("a bar is drawn:\n%q", out.String())
	}
}
