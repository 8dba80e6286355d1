package fleet

import (
	"log/slog"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
)

// The clock of ZooKeeper jumps after a new coordinator has read it. What is written
// after that is not dated by it: a canary that is done then has not baked for an hour.
func TestCoordinator_ClockJumpsAfterItWasRead(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "web-00"
		candidate := coordinatorPath(root, name) + "/candidate"
		record := recordPath(root, name, id)
		done := encode(HostRecord{State: HostDone, Canary: true})
		if err := w.server.Create(snapshotPath(root, name, Shard(id)), encode(shardHosts{[]string{id}})); err != nil {
			t.Fatal(err)
		}
		for _, late := range []bool{false, true} {
			for path, data := range map[string][]byte{candidate: nil, record: encode(HostRecord{State: HostStarted})} {
				_ = w.server.Create(path, data) // it may be there
			}
			write := func() {
				if err := w.server.Set(record, done); err != nil {
					t.Fatal(err)
				}
			}
			if !late {
				write()
				time.Sleep(time.Minute) // virtual
			}
			c := newCoordinator(root, name, id, w.desk, election.Term{Path: candidate}, slog.New(slog.DiscardHandler))
			if err := c.readClock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if late {
				w.server.Skew(-time.Hour)
				write()
			}
			if err := c.readHosts(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			ago := time.Since(c.records[id].since).Round(time.Second)
			if late && ago != 0 || !late && ago != time.Minute {
				t.Errorf("late: %v: it is done for %s", late, ago)
			}
			c.stop()
		}
	})
}

// A coordinator that lost a reply reads records again. A canary that was done between
// its last look and that has not baked since the look.
func TestCoordinator_WhatItReadsAgainIsDatedByThen(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "web-00"
		record := recordPath(root, name, id)
		if err := w.server.Create(snapshotPath(root, name, Shard(id)), encode(shardHosts{[]string{id}})); err != nil {
			t.Fatal(err)
		}
		if err := w.server.Create(record, encode(HostRecord{State: HostStarted})); err != nil {
			t.Fatal(err)
		}
		c := newCoordinator(root, name, id, w.desk, election.Term{}, slog.New(slog.DiscardHandler))
		defer c.stop()
		if err := c.readHosts(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		if err := w.server.Set(record, encode(HostRecord{State: HostDone, Canary: true})); err != nil {
			t.Fatal(err)
		}
		if err := c.reread(t.Context(), []string{id}, nil); err != nil {
			t.Fatal(err)
		}
		if r := c.records[id]; r.State != HostDone || time.Since(r.since) > time.Second {
			t.Errorf("it is %s for %s", r.State, time.Since(r.since))
		}
	})
}

// The coordinator that is shown is the first candidate by the sequence number, as the
// candidates themselves see it. A znode that is no candidate is none.
func TestRead_CoordinatorIsFirstBySequence(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, w *world) {
		const name = "r-0000000007"
		nodes := map[string][]byte{rolloutPath(root, name): encode(Proposal{Version: 2}), gatePath(root, name): encode(Gate{State: GateOpen})}
		for _, path := range sortedKeys(nodes) {
			if err := w.server.Create(path, nodes[path]); err != nil {
				t.Fatal(err)
			}
		}
		for _, one := range []string{"stray", "n_0000000009", "n_0000000008"} {
			if err := w.server.Create(coordinatorPath(root, name)+"/"+one, []byte(one)); err != nil {
				t.Fatal(err)
			}
		}
		state, err := Read(t.Context(), w.desk, root, name)
		if err != nil || state.Coordinator != "n_0000000008" {
			t.Errorf("got %v, %v", state, err)
		}
	})
}
