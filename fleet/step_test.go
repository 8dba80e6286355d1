package fleet

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/session"
)

// lone is a coordinator without a process around it: a test makes it take each step.
func (w *world) lone(name string, gate Gate, records map[string]HostRecord) *coordinator {
	w.t.Helper()
	candidate := coordinatorPath(root, name) + "/candidate"
	nodes := map[string][]byte{
		rolloutPath(root, name): encode(Proposal{Version: 2, Previous: 1, Strategy: Strategy{Parallel: 1}.WithDefaults(len(records))}),
		gatePath(root, name):    encode(gate),
		candidate:               nil,
	}
	called := map[string][]string{}
	for id, r := range records {
		called[Shard(id)] = append(called[Shard(id)], id)
		nodes[recordPath(root, name, id)] = encode(r)
	}
	for shard, ids := range called {
		nodes[snapshotPath(root, name, shard)] = encode(shardHosts{ids})
	}
	for _, path := range sortedKeys(nodes) { // parents first
		if err := w.server.Create(path, nodes[path]); err != nil {
			w.t.Fatal(err)
		}
	}
	s, err := session.Dial(w.t.Context(), session.Config{Servers: []string{"lone:2181", "lone:2182"}, Timeout: 20 * time.Second, Dial: w.server.Dial})
	if err != nil {
		w.t.Fatal(err)
	}
	c := newCoordinator(root, name, "lone", s, election.Term{Path: candidate}, slog.New(slog.DiscardHandler))
	if c.proposal, _, err = readRecord[Proposal](w.t.Context(), s, rolloutPath(root, name)); err != nil {
		w.t.Fatal(err)
	}
	if err := c.look(w.t.Context(), false); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return c
}

// A grant whose reply is lost is a grant, also when the coordinator comes to a server
// that does not know it yet.
func TestCoordinator_UnknownGrant(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "a"
		c := w.lone(name, Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{id: {State: HostCommit, Version: 2, From: 1}})
		defer func() { c.stop(); _ = c.s.Close() }()
		first, second := c.s.Server(), "lone:2181"
		if first == second {
			second = "lone:2182"
		}
		w.server.Lag(second)
		w.server.RefuseDial(first)
		struck := w.server.LoseReply(jute.OpMulti, 1, false)
		granted := c.records[id].HostRecord
		granted.State = HostGranted
		if err := c.perform(t.Context(), act{what: "grant", records: map[string]HostRecord{id: granted}}); err != nil {
			t.Fatal(err)
		}
		<-struck
		if r := c.records[id]; r.State != HostGranted || r.version != 1 {
			t.Errorf("the coordinator takes it for %+v of version %d", r.HostRecord, r.version)
		}
	})
}

// A grant counts before it was read: the host that got it may be gone by then, and the
// next one must wait.
func TestCoordinator_OwnGrantsCount(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		commit := HostRecord{State: HostCommit, Version: 2, From: 1}
		c := w.lone("r-0000000007", Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{"a": commit, "b": commit})
		defer func() { c.stop(); _ = c.s.Close() }()
		c.live = map[string]bool{"a": true, "b": true}
		acts := c.grant()
		if len(acts) != 1 || len(acts[0].records) != 1 {
			t.Fatalf("it does %+v", acts)
		}
		acts[0].checkReady = false // the rollout was made for another one
		if err := c.perform(t.Context(), acts[0]); err != nil {
			t.Fatal(err)
		}
		c.live = map[string]bool{"b": true}
		if acts = c.grant(); len(acts) > 0 {
			t.Errorf("K is 1, a has a grant, and it does %+v", acts)
		}
	})
}

// A grant is taken back while its host starts. The start stays, and the coordinator
// learns of it.
func TestCoordinator_TakesBackTooLate(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "a"
		granted := HostRecord{State: HostGranted, Version: 2, From: 1}
		c := w.lone(name, Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{id: granted})
		defer func() { c.stop(); _ = c.s.Close() }()
		if err := w.server.Set(recordPath(root, name, id), encode(HostRecord{State: HostStarted, Version: 2, From: 1})); err != nil {
			t.Fatal(err)
		}
		for _, a := range c.change(act{what: "take back"}, map[string]HostRecord{id: c.takeBack(id, granted)}) {
			if err := c.perform(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		state, err := Read(t.Context(), w.desk, root, name)
		if err != nil || state.Hosts[id].State != HostStarted || c.records[id].State != HostStarted {
			t.Errorf("the record is %+v, %v, the coordinator has %+v", state.Hosts[id], err, c.records[id].HostRecord)
		}
	})
}

// A host that seems to be gone is asked for again before it counts as lost: the list
// of its shard may be old.
func TestCoordinator_AbsenceIsConfirmed(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "a"
		c := w.lone(name, Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{id: {State: HostStarted, Version: 2, From: 1}})
		defer func() { c.stop(); _ = c.s.Close() }()
		for _, back := range []bool{true, false} {
			if back {
				_ = w.server.Create(SubscriptionPath(root, id), nil)
			} else {
				_ = w.server.Delete(SubscriptionPath(root, id))
			}
			c.live, c.missing[id] = map[string]bool{}, c.now.Add(-time.Hour)
			acts := c.watch()
			if len(acts) != 1 {
				t.Fatalf("it does %+v", acts)
			}
			if err := c.perform(t.Context(), acts[0]); err != nil {
				t.Fatal(err)
			}
			if lost := c.records[id].Lost; lost == back {
				t.Errorf("it is back: %v, lost: %v", back, lost)
			}
		}
	})
}

// A coordinator whose candidate is gone writes nothing.
func TestCoordinator_DeposedWritesNothing(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "a"
		c := w.lone(name, Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{id: {State: HostCommit, Version: 2, From: 1}})
		defer func() { c.stop(); _ = c.s.Close() }()
		if err := w.server.Delete(c.term.Path); err != nil {
			t.Fatal(err)
		}
		halted := c.halted(id, "it is")
		for _, a := range []act{{what: "grant", records: map[string]HostRecord{id: {State: HostGranted}}}, halted, c.close(ResultDone, "")} {
			if err := c.perform(t.Context(), a); !errors.Is(err, errDeposed) {
				t.Errorf("%s: got %v", a.what, err)
			}
		}
		if state, err := Read(t.Context(), w.desk, root, name); err != nil || state.Gate.State != GateOpen || state.Hosts[id].State != HostCommit {
			t.Errorf("it wrote: %+v, %v", state, err)
		}
	})
}

// What a large rollout leaves: the hosts that failed, who read their records again,
// and some that say why they refused. A rollout that the open one replaces leaves all.
func TestCompact_WhatStays(t *testing.T) {
	for _, needed := range []bool{false, true} {
		inBubble(t, 1, func(t *testing.T, w *world) {
			const name = "r-0000000007"
			records := map[string]HostRecord{"failed": {State: HostFailed, From: 1}}
			for i := range keepAborts + 5 {
				records[fmt.Sprintf("abort-%03d", i)] = HostRecord{State: HostAbort}
			}
			for i := len(records); i <= keepRecords; i++ {
				records[fmt.Sprintf("done-%04d", i)] = HostRecord{State: HostDone}
			}
			c := w.lone(name, Gate{State: GateClosed, Result: ResultReplaced}, records)
			defer func() { c.stop(); _ = c.s.Close() }()
			c.proposal.Hosts = len(records)
			if err := w.server.Set(rolloutPath(root, name), encode(c.proposal)); err != nil {
				t.Fatal(err)
			}
			if needed {
				const next = "r-0000000008"
				_ = w.server.Create(rolloutPath(root, next), encode(Proposal{Version: 3, Replaces: []string{name}}))
				_ = w.server.Create(gatePath(root, next), encode(Gate{State: GateVoting}))
				_ = w.server.Create(currentPath(root), []byte(next))
			}
			if err := c.collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			state, err := Read(t.Context(), w.desk, root, name)
			if err != nil {
				t.Fatal(err)
			}
			got := state.Counts()
			switch {
			case needed && len(state.Hosts) != len(records):
				t.Errorf("%d records are left of %d, and the open rollout needs them", len(state.Hosts), len(records))
			case !needed && (got.Failed != 1 || got.Abort != keepAborts || got.Done != 0):
				t.Errorf("left: %+v", got)
			}
		})
	}
}

// A large rollout that another one replaced keeps its records while that one needs
// them. The coordinator of a later one deletes them.
func TestCompact_OthersThatAreClosed(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const old, name = "r-0000000006", "r-0000000007"
		records := map[string]HostRecord{"failed": {State: HostFailed, From: 1}}
		for i := range 50 {
			records[fmt.Sprintf("done-%04d", i)] = HostRecord{State: HostDone}
		}
		w.lone(old, Gate{State: GateClosed, Result: ResultReplaced}, records).stop()
		c := w.lone(name, Gate{State: GateClosed, Result: ResultDone}, records)
		defer func() { c.stop(); _ = c.s.Close() }()
		c.proposal.Hosts = keepRecords + 1
		for _, name := range []string{old, name} {
			if err := w.server.Set(rolloutPath(root, name), encode(c.proposal)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{old, name} {
			state, err := Read(t.Context(), w.desk, root, name)
			if err != nil || len(state.Hosts) != 1 || state.Hosts["failed"].State != HostFailed {
				t.Errorf("%s has %d records, %v", name, len(state.Hosts), err)
			}
		}
	})
}

// A grant that a pause has kept from being taken is given anew, and its time begins
// anew: it is not taken back before the host could see it.
func TestCoordinator_GrantsAgainAfterAPause(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const id = "a"
		c := w.lone("r-0000000007", Gate{State: GateOpen, Wave: WaveAll}, map[string]HostRecord{id: {State: HostGranted, Gate: -1, Version: 2, From: 1}})
		defer func() { c.stop(); _ = c.s.Close() }()
		c.live = map[string]bool{id: true}
		time.Sleep(2 * DefaultGrace) // virtual: the pause
		for _, want := range []string{"grant again", ""} {
			c.now = time.Now()
			acts := c.grant()
			got := ""
			for _, a := range acts {
				got += a.what
				if err := c.perform(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			}
			if got != want {
				t.Errorf("it does %q, want %q", got, want)
			}
		}
		if r := c.records[id]; r.State != HostGranted || r.Gate != c.gateV {
			t.Errorf("the record is %+v", r.HostRecord)
		}
	})
}
