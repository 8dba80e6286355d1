package fleet

import (
	"bytes"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/memzk"
)

// setReady sets ready as another tool would, past all rules.
func (w *world) setReady(version int64) {
	w.t.Helper()
	w.version(version)
	ready := config.Ready{Version: version, Digest: digest, Previous: foreignMark}
	if err := w.server.Set(config.ReadyPath(root), ready.Encode()); err != nil {
		w.t.Fatal(err)
	}
}

// holdWith keeps every transaction that contains one of the words until it is told to
// let them go.
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
