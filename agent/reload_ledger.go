package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/proc"
)

// reloadLedger opens the ledger of a leader-only reload: a change that was put
// in place while nobody led is reloaded by the next leader, and one that a
// former leader has reloaded is not reloaded again.
func (a *Agent) reloadLedger(ctx context.Context, req *reloadRequest) (done bool, finish func(error), err error) { //nolint:nonamedreturns // three results need names.
	x := a.terms.get(req.cfg.Leader)
	if x == nil {
		return false, nil, errNotLeading
	}
	e, ok := a.electionConfig(req.cfg.Leader)
	if !ok {
		return false, nil, fmt.Errorf("election %q: %w", req.cfg.Leader, errUnknownName)
	}
	l := a.zkLedger(e, x.election, "reload."+req.bundle)
	rec, err := l.load(ctx)
	if err != nil {
		return false, nil, err
	}
	if !newerThan(rec, req.zxids) {
		return true, nil, nil
	}
	put := func(ctx context.Context, state, run string) error {
		next := rec.clone()
		for s, z := range req.zxids {
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
			a.log.Warn("end of a reload not recorded", "template", req.bundle, "err", err)
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

// electionConfig finds an election of the settings.
func (a *Agent) electionConfig(name string) (ElectionConfig, bool) {
	for _, e := range a.cfg.Load().Elections {
		if e.Name == name {
			return e, true
		}
	}
	return ElectionConfig{}, false
}
