package fleet

import (
	"strings"
	"testing"
	"time"
)

// TestWaiting_Bake: while the canary bakes, everybody who looks sees how long.
func TestWaiting_Bake(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 1, Canary: 1, Bake: Duration(90 * time.Second)})
		seen := map[string]bool{}
		var first, last time.Duration
		err := Watch(t.Context(), w.desk, root, name, func(s *State) bool {
			wait := s.Waiting(time.Now())
			if wait.For == WaitBake && first == 0 {
				first = wait.Left
				time.Sleep(30 * time.Second) // virtual
				again, err := Read(t.Context(), w.desk, root, name)
				if err != nil {
					t.Error(err)
					return false
				}
				last = again.Waiting(time.Now()).Left
			}
			seen[wait.For] = true
			return !Over(s.Phase())
		})
		if err != nil {
			t.Fatal(err)
		}
		if first < 85*time.Second || first > 90*time.Second || last < first-32*time.Second || last > first-28*time.Second {
			t.Errorf("the bake of 90 s lasts %s, and 30 s later %s", first, last)
		}
		for _, what := range []string{WaitVotes, WaitBake, WaitPermits} {
			if !seen[what] {
				t.Errorf("nobody saw the wait for %s: %v", what, seen)
			}
		}
	})
}

// TestWaiting_Words: each reason to wait has its words, and only a rollout under
// way waits.
func TestWaiting_Words(t *testing.T) {
	now := time.Unix(1000, 0)
	called := []string{"a", "b"}
	open := Gate{State: GateOpen, Wave: WaveAll}
	strategy := Strategy{Parallel: 1, Bake: Duration(time.Minute)}
	for want, s := range map[string]*State{
		"waiting for the votes of b":       {Gate: Gate{State: GateVoting}, Called: called, Hosts: map[string]HostRecord{"a": {State: HostCommit}}},
		"waiting for votes":                {Gate: Gate{State: GateVoting}},
		"paused by ann: lunch":             {Gate: Gate{State: GateOpen, Paused: true, By: "ann", Reason: "lunch"}},
		"baking, 47 s left":                {Gate: Gate{State: GateOpen, Wave: WaveCanary}, Progress: Progress{Baked: now.Add(47 * time.Second)}},
		"baking, 1 min left":               {Gate: Gate{State: GateOpen, Wave: WaveCanary}, Progress: Progress{Baked: now.Add(time.Hour)}}, // a clock that goes wrong
		"waiting for permits: a at work":   {Gate: open, Hosts: map[string]HostRecord{"a": {State: HostStarted}, "b": {State: HostCommit}}},
		"waiting for a: its agent is gone": {Gate: open, Hosts: map[string]HostRecord{"a": {State: HostStarted, Lost: true}, "b": {State: HostCommit}}},
		"":                                 {Gate: open, Hosts: map[string]HostRecord{"a": {State: HostStarted}, "b": {State: HostDone}}},
	} {
		s.Proposal.Strategy = strategy
		if got := s.Waiting(now).Text; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, gate := range []Gate{{State: GateHalted}, {State: GateClosed, Result: ResultDone}, {State: GateClosed, Result: ResultReplaced, RolledBack: true}} {
		s := &State{Gate: gate, Progress: Progress{Baked: now.Add(time.Minute)}}
		if got := s.Waiting(now); got != (Waiting{}) || !Over(s.Phase()) {
			t.Errorf("%+v waits for %+v", gate, got)
		}
	}
}

// TestPhase_Words: each end of a rollout has a word of its own.
func TestPhase_Words(t *testing.T) {
	for want, gate := range map[string]Gate{
		"done":        {State: GateClosed, Result: ResultDone},
		"planned":     {State: GateClosed, Result: ResultPlanned},
		"aborted":     {State: GateClosed, Result: ResultAborted},
		"replaced":    {State: GateClosed, Result: ResultSuperseded},
		"rolled back": {State: GateClosed, Result: ResultReplaced, RolledBack: true, By: "ann", Reason: "web-03: exit status 1"},
		"halted":      {State: GateHalted},
	} {
		s := &State{Gate: gate}
		if s.Phase() != want {
			t.Errorf("%+v: got %q, want %q", gate, s.Phase(), want)
		}
		if err := s.Err(); err != nil && !strings.Contains(err.Error(), "rollout "+want) {
			t.Errorf("%+v: the error is %v", gate, err)
		}
	}
}
