package fleet

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// setReady sets ready as another tool would, past all rules.
func (w *world) setReady(version int64) {
	w.t.Helper()
	w.version(version)
	ready := trees.Ready{Version: version, Digest: digest, Previous: foreignMark}
	if err := w.server.Set(trees.ReadyPath(root), ready.Encode()); err != nil {
		w.t.Fatal(err)
	}
}

// holdWith keeps every transaction that contains one of the words, until the caller calls
// the function that it returns.
func (w *world) holdWith(words ...string) func() {
	free := make(chan struct{})
	w.server.Hold(func(h memzk.Held) <-chan struct{} {
		for _, word := range words {
			if bytes.Contains(h.Body, []byte(word)) {
				return free
			}
		}
		return nil
	})
	return func() { w.server.Hold(nil); close(free) }
}

// replaceWith proposes a version in the place of a halted rollout.
func (w *world) replaceWith(version int64, old string) string {
	w.t.Helper()
	w.version(version)
	name, err := Propose(w.t.Context(), w.desk, Request{
		Root: root, Version: version, Digest: digest, Strategy: Strategy{Parallel: 1}, Who: "ann", Replace: old,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// Another tool sets ready past a halted rollout, and an operator replaces that rollout
// before its coordinator has closed it. All hosts have left the rollout for what ready
// names. So its records say nothing of what they use, and the new rollout starts from
// ready alone.
func TestReplace_WhatReadyHasLeftBehind(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		for id, h := range w.hosts {
			h.fail[2] = "port in use"
			h.refuse[4] = id + " refuses"
		}
		old := w.propose(2, Strategy{Parallel: 1})
		w.awaitPhase(old, PhaseHalted)
		release := w.holdWith(`"reason":"superseded: `)
		w.setReady(3)
		for id, h := range w.hosts {
			w.await(id+" to use what ready names", func() bool { return h.version() == 3 })
		}
		name := w.replaceWith(4, old)
		release()
		if state := w.awaitPhase(old, PhaseReplaced); state.Gate.Result != ResultSuperseded || state.Gate.By != "ann" {
			t.Errorf("the old one is %+v", state.Gate)
		}
		// Nothing holds it open: no host uses another version than ready names.
		state := w.awaitPhase(name, PhaseAborted)
		if len(state.Proposal.Replaces) > 0 {
			t.Errorf("it replaces %v", state.Proposal.Replaces)
		}
		time.Sleep(time.Minute) // virtual
		for id, h := range w.hosts {
			if got := h.versions(); got[len(got)-1] != 3 || len(got) > 4 {
				t.Errorf("%s used %v", id, got)
			}
		}
		for _, r := range state.Hosts {
			if r.From != 3 {
				t.Errorf("a record says %+v", r)
			}
		}
	})
}

// between runs something when a session of its own has read the open rollout, and
// before it reads that rollout's gate.
func (w *world) between(old string, do func(s *session.Session) error, meanwhile func()) error {
	w.t.Helper()
	s, err := session.Dial(w.t.Context(), session.Config{Servers: []string{"late:2181"}, Timeout: 10 * time.Second, Dial: w.server.Dial})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	free, held := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(held) })
	w.server.Hold(func(h memzk.Held) <-chan struct{} {
		if h.Addr != "late:2181" || !bytes.Contains(h.Body, []byte(gatePath(root, old))) {
			return nil
		}
		once()
		return free
	})
	ended := make(chan error, 1)
	go func() { ended <- do(s) }()
	<-held
	meanwhile()
	w.server.Hold(nil)
	close(free)
	return <-ended
}

// An emergency finds a halted rollout open, which is replaced before it looks at its
// gate. It ends the rollout that is open now, and leaves the old one as it ended.
func TestEmergency_MeetsAReplacement(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			h.fail[2] = "port in use"
		}
		old := w.propose(2, Strategy{Parallel: 1})
		w.awaitPhase(old, PhaseHalted)
		next := ""
		var ops []session.Op
		err := w.between(old, func(s *session.Session) error {
			var err error
			ops, err = closeOps(t.Context(), s, root, "bob", true)
			return err
		}, func() { next = w.replaceWith(3, old) })
		if err != nil {
			t.Fatal(err)
		}
		if want := gatePath(root, next); ops[0].Path() != want {
			t.Errorf("it closes %s, want %s", ops[0].Path(), want)
		}
	})
}

// A proposal finds a dry run open, in whose place another rollout is opened before it
// looks at the dry run's gate.
func TestPropose_MeetsAnotherBehindADryRun(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		silent := w.hosts["web-00"]
		silent.stop()
		_ = w.server.Create(SubscriptionPath(root, silent.id), nil) // called, and silent
		w.version(2)
		dry, err := Propose(t.Context(), w.desk, Request{Root: root, Version: 2, Digest: digest, Dry: true})
		if err != nil {
			t.Fatal(err)
		}
		next := ""
		w.version(4)
		err = w.between(dry, func(s *session.Session) error {
			_, err := Propose(t.Context(), s, Request{Root: root, Version: 4, Digest: digest})
			return err
		}, func() { next = w.propose(3, Strategy{Parallel: 1}) })
		if name, currentErr := Current(t.Context(), w.desk, root); !errors.Is(err, ErrOpen) || name != next {
			t.Errorf("it says %v; open is %s, %v, want %s", err, name, currentErr, next)
		}
	})
}

// With max_failures = 1 a failure and its halt are one transaction: a host that has its
// grant and is about to start does not, however slow the coordinator is.
func TestRollout_NobodyStartsAfterAFailure(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		failing, other := w.hosts["web-00"], w.hosts["web-01"]
		failing.fail[2] = "port in use"
		start, halt := make(chan struct{}), make(chan struct{})
		w.server.Hold(func(h memzk.Held) <-chan struct{} {
			has := func(text string) bool { return bytes.Contains(h.Body, []byte(text)) }
			switch {
			case h.Op == jute.OpMulti && has(`"state":"started"`) && has("/"+other.id):
				return start
			case h.Op == jute.OpMulti && has(`"state":"halted"`) && !has(`"state":"failed"`): // the coordinator's
				return halt
			}
			return nil
		})
		name := w.propose(2, Strategy{Parallel: 2})
		record := func(id string) HostRecord {
			state, err := Read(t.Context(), w.desk, root, name)
			if err != nil {
				t.Fatal(err)
			}
			return state.Hosts[id]
		}
		w.await("the failure", func() bool { return record(failing.id).State == HostFailed })
		close(start)
		time.Sleep(time.Minute) // virtual
		close(halt)
		w.server.Hold(nil)
		state := w.awaitPhase(name, PhaseHalted)
		if r := state.Hosts[other.id]; r.State != HostGranted || !slices.Equal(other.versions(), []int64{1}) {
			t.Errorf("%s used %v, its record is %+v", other.id, other.versions(), r)
		}
	})
}

// A rollout is replaced while a host is in the middle of its turn. The host ends the
// turn, records it, and says in the new rollout that it uses the version of the turn.
func TestReplace_InTheMiddleOfATurn(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		failing, busy := w.hosts["web-00"], w.hosts["web-01"]
		failing.fail[2] = "port in use"
		free := make(chan struct{})
		busy.hold = free
		old := w.propose(2, Strategy{Parallel: 2})
		w.awaitPhase(old, PhaseHalted)
		name := w.replaceWith(3, old)
		time.Sleep(10 * time.Second) // virtual
		busy.mu.Lock()
		busy.hold = nil
		busy.mu.Unlock()
		close(free)
		state := w.awaitPhase(name, PhaseDone)
		before, err := Read(t.Context(), w.desk, root, old)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := before.Hosts[busy.id], state.Hosts[busy.id]; a.State != HostDone || b.From != 2 || !slices.Equal(busy.versions(), []int64{1, 2, 3}) {
			t.Errorf("it used %v, its records are %+v and %+v", busy.versions(), a, b)
		}
	})
}
