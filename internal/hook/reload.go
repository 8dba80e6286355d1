package hook

import (
	"context"
	"time"

	"github.com/zkagent/zkagent/internal/command"
)

// BeginReload opens the ledger of a leader-only reload: a change that was put in
// place without a leader is reloaded by the next leader, and one that a previous
// leader has reloaded is not reloaded again. done: there is nothing to do.
// Else finish records the end of the reload.
func (e *Engine) BeginReload(ctx context.Context, req command.LeaderReload) (done bool, finish func(error), err error) { //nolint:nonamedreturns // three results need names.
	x := e.terms.get(req.Election)
	if x == nil || x.election.ID != req.Term {
		return false, nil, command.ErrNotLeading
	}
	l := x.ledger("reload." + req.Bundle)
	rec, err := l.load(ctx)
	if err != nil {
		return false, nil, err
	}
	if e.reloaded(rec, req) {
		return true, nil, nil
	}
	put := func(ctx context.Context, state, run string) error {
		next := rec.clone()
		for s, z := range req.Zxids {
			next.Changes[s] = entry{Zxid: z, Digest: req.Digest, State: state, Term: x.election.ID, Time: time.Now().UTC(), Run: run}
		}
		return l.store(ctx, next)
	}
	run := newRunID()
	if err := put(ctx, stateStarted, run); err != nil {
		return false, nil, err
	}
	finish = func(err error) {
		state := endOf(ctx, err)
		if state == "" {
			return // the ledger still says that it was started.
		}
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerGrace)
		defer cancel()
		if err := put(final, state, run); err != nil {
			e.Log.Warn("cannot record the end of a reload", "template", req.Bundle, "err", err)
		}
	}
	return false, finish, nil
}

// reloaded reports whether a leader has reloaded these files, or newer ones. After
// a repair a program may have read something else meanwhile. A
// reload without a known end is not counted: to reload once more does no harm.
func (e *Engine) reloaded(rec record, req command.LeaderReload) bool {
	for s, z := range req.Zxids {
		known, was := rec.Changes[s]
		if !was {
			return false
		}
		switch known.compare(z, req.Digest, e.seen.of(s), true) {
		case behind: // the next view brings what the ledger is about.
		case changed:
			return false
		case current:
			if known.State != stateDone || req.Repair {
				return false
			}
		}
	}
	return true
}
