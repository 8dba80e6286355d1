package hook

import (
	"context"
	"errors"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/proc"
)

// Reload is a leader-only reload that is due on this host.
type Reload struct {
	Election string
	Bundle   string
	Zxids    map[string]int64 // state of each source, as "kind.name"
}

// BeginReload opens the ledger of a leader-only reload: a change that was put in
// place while nobody led is reloaded by the next leader, and one that a former
// leader has reloaded is not reloaded again. done: there is nothing to do.
// Else finish records the end of the reload.
func (e *Engine) BeginReload(ctx context.Context, req Reload) (done bool, finish func(error), err error) { //nolint:nonamedreturns // three results need names.
	x := e.terms.get(req.Election)
	if x == nil {
		return false, nil, command.ErrNotLeading
	}
	l := x.ledger("reload." + req.Bundle)
	rec, err := l.load(ctx)
	if err != nil {
		return false, nil, err
	}
	if !newerThan(rec, req.Zxids) {
		return true, nil, nil
	}
	put := func(ctx context.Context, state, run string) error {
		next := rec.clone()
		for s, z := range req.Zxids {
			next.Changes[s] = entry{Zxid: z, State: state, Term: x.election.ID, Time: time.Now().UTC(), Run: run}
		}
		return l.store(ctx, next)
	}
	run := newRunID()
	if err := put(ctx, stateStarted, run); err != nil {
		return false, nil, err
	}
	finish = func(err error) {
		if ctx.Err() != nil || errors.Is(err, proc.ErrLease) {
			return // its end is not known, and stays started.
		}
		state := stateDone
		if err != nil {
			state = stateFailed
		}
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerGrace)
		defer cancel()
		if err := put(final, state, run); err != nil {
			e.Log.Warn("end of a reload not recorded", "template", req.Bundle, "err", err)
		}
	}
	return false, finish, nil
}

// newerThan reports whether any change is newer than the ledger, or was
// started without an end: reloading once more does no harm.
func newerThan(rec record, zxids map[string]int64) bool {
	for s, z := range zxids {
		e, ok := rec.Changes[s]
		if !ok || z > e.Zxid || (z == e.Zxid && e.State != stateDone) {
			return true
		}
	}
	return len(zxids) == 0
}
