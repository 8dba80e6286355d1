package fleet

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// TestResume_AVersionThatKillsItsHostIsGivenUp: something starts the agent
// again and again, so that it is never away for long.
func TestResume_AVersionThatKillsItsHostIsGivenUp(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			h.kills = 2
		}
		name := w.propose(2, Strategy{Parallel: 2, Grace: Duration(10 * time.Minute)})
		lives := map[string]int{}
		w.await("the rollout to halt", func() bool {
			for id, h := range w.hosts {
				if h.died() {
					lives[id]++
					h.stop()
					h.start()
				}
			}
			state, err := Read(t.Context(), w.desk, root, name)
			return err == nil && state.Phase() == PhaseHalted
		})
		if len(lives) == 0 || len(lives) > 2 {
			t.Errorf("%d hosts died of the version, K is 2: %v", len(lives), lives)
		}
		for id, h := range w.hosts {
			for h.died() { // one that has not come back yet
				h.stop()
				h.start()
			}
			w.await(id+" to use version 1", func() bool { return h.version() == 1 })
		}
		state := w.awaitPhase(name, PhaseHalted)
		if gone := state.Gate.Host; lives[gone] != 3 || state.Hosts[gone].Attempts != 3 {
			t.Errorf("%s gives up after %d lives, its record is %+v", gone, lives[gone], state.Hosts[gone])
		}
		if !strings.Contains(state.Gate.Reason, "in the middle of it") {
			t.Errorf("halted for %q", state.Gate.Reason)
		}
		w.await("no host to be active", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && s.Counts().Started == 0
		})
	})
}

// TestResume_HostThatReturnsToAHaltGoesBack: what was begun and not finished is
// not gone on with.
func TestResume_HostThatReturnsToAHaltGoesBack(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			h.hold = make(chan struct{})
		}
		name := w.propose(2, Strategy{Parallel: 1, Grace: Duration(time.Minute)})
		w.await("one active host", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.active) == 1 })
		var victim *simpleHost
		for id, h := range w.hosts {
			w.mu.Lock()
			if w.active[id] {
				victim = h
			}
			w.mu.Unlock()
		}
		victim.crash()
		w.awaitPhase(name, PhaseHalted)
		victim.mu.Lock()
		victim.hold = nil
		victim.mu.Unlock()
		victim.start()
		w.await("it to be back at version 1", func() bool { return victim.version() == 1 })
		w.await("its record to say failed", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && s.Hosts[victim.id].State == HostFailed && s.Counts().Started == 0
		})
		if got := victim.versions(); !slices.Equal(got, []int64{1, 2, 1}) {
			t.Errorf("it used %v", got)
		}
	})
}

// started writes a rollout to version 2, in which a host has started as the process life.
// It returns the record of the host.
func (w *world) started(name, id, life string) HostRecord {
	w.t.Helper()
	w.version(2)
	ready, stat, err := trees.ReadReady(w.t.Context(), w.desk, root)
	if err != nil {
		w.t.Fatal(err)
	}
	proposal := Proposal{
		Version: 2, Digest: digest, Previous: ready.Version, Ready: ReadyAt{Version: stat.Version, Mzxid: stat.Mzxid}, Hosts: 1,
		Strategy: Strategy{}.WithDefaults(1),
	}
	turn := HostRecord{State: HostStarted, Version: 2, From: 1, Life: life, Attempts: 1}
	shard := Shard(id)
	nodes := map[string][]byte{
		rolloutPath(root, name): encode(proposal), gatePath(root, name): encode(Gate{State: GateOpen, Wave: WaveAll}),
		recordPath(root, name, id): encode(turn), currentPath(root): []byte(name),
		shardPath(root, shard): encode(shardCall{Format: callFormat, Rollout: name, State: GateVoting, Proposal: proposal}),
	}
	for _, path := range sortedKeys(nodes) {
		if err := w.server.Create(path, nodes[path]); err != nil {
			w.t.Fatal(err)
		}
	}
	return turn
}

// TestResume_HaltComesMeanwhile: a rollout that halts between the look of a process that
// came back and its record does not let it use the version.
func TestResume_HaltComesMeanwhile(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, w *world) {
		const name, id = "r-0000000007", "web-00"
		w.started(name, id, "one")
		h := &simpleHost{w: w, id: id, took: time.Second}
		p := New(Config{Root: root, Agent: id, Host: h, Tree: h.tree, Life: "two"})
		s := w.dial(id)
		defer s.Close()
		halted := false
		w.server.Hold(func(r memzk.Held) <-chan struct{} {
			if r.Op == jute.OpMulti && !halted && bytes.Contains(r.Body, []byte(recordPath(root, name, id))) {
				halted = true
				if err := w.server.Set(gatePath(root, name), encode(Gate{State: GateHalted, Wave: WaveAll})); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { h.follow(ctx, s, p) })
		wg.Go(func() { _ = p.Run(ctx, s) })
		defer wg.Wait()
		defer cancel()
		w.await("the version before", func() bool { return h.version() == 1 })
		if got := h.versions(); !slices.Equal(got, []int64{1}) || !halted {
			t.Errorf("it used %v, the rollout halted: %v", got, halted)
		}
	})
}

// TestResume_RecordOfAnother: of two agents with one id only the owner of the
// subscription takes part. The other one waits, and reads the record again once it is
// the owner: meanwhile the turn may have ended.
func TestResume_RecordOfAnother(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, w *world) {
		const name, id, life = "r-0000000007", "web-00", "one"
		turn := w.started(name, id, life)
		h := &simpleHost{w: w, id: id, took: time.Second}
		var owned atomic.Bool
		owns := make(chan struct{})
		p := New(Config{Root: root, Agent: id, Host: h, Tree: h.tree, Life: life, Owned: func() (bool, <-chan struct{}) {
			if owned.Load() {
				return true, nil
			}
			return false, owns
		}})
		s := w.dial(id)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { h.follow(ctx, s, p) })
		wg.Go(func() { _ = p.Run(ctx, s) })
		defer wg.Wait()
		defer cancel()
		synctest.Wait() // it knows the record
		turn.State, turn.Error = HostFailed, "no"
		if err := w.server.Set(recordPath(root, name, id), encode(turn)); err != nil {
			t.Fatal(err)
		}
		owned.Store(true)
		close(owns)
		w.await("the version before", func() bool { return h.version() == 1 })
		if got := h.versions(); !slices.Equal(got, []int64{1}) {
			t.Errorf("it used %v", got)
		}
	})
}
