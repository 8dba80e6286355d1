package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// followOffers brings each offered tree into use, when and as its rollout
// permits. A newer offer ends the wait for an older one.
func (p *Participant) followOffers(ctx context.Context, s *session.Session) error {
	var inUse bool // something of this tree is in use in this process
	next, ok := p.next(ctx, s)
	for ok {
		offer := next
		run, cancel := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() { result <- p.bring(run, s, offer, &inUse) }()
		next, ok = p.nextOr(ctx, s, result)
		cancel()
		// bring does not stop in the middle of an activation: a host is
		// either done or failed before it looks at another version.
		if err := drain(result); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (p *Participant) next(ctx context.Context, s *session.Session) (*view.Tree, bool) {
	select {
	case tree := <-p.offers:
		return tree, true
	case <-ctx.Done():
	case <-s.Done():
	}
	return nil, false
}

// nextOr waits for the next offer and passes the result of the present one
// back into its channel when that comes first.
func (p *Participant) nextOr(ctx context.Context, s *session.Session, result chan error) (*view.Tree, bool) {
	select {
	case err := <-result:
		result <- err
		if err != nil {
			return nil, false
		}
		return p.next(ctx, s)
	case tree := <-p.offers:
		return tree, true
	case <-ctx.Done():
	case <-s.Done():
	}
	return nil, false
}

func drain(result chan error) error {
	err := <-result
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// bring shows the tree at once when it needs no permit, else takes its turn.
func (p *Participant) bring(ctx context.Context, s *session.Session, tree *view.Tree, inUse *bool) error {
	if tree.Rollout == "" {
		p.cfg.Host.Show(tree)
		*inUse = true
		return nil
	}
	const first, most = 200 * time.Millisecond, 5 * time.Second
	for wait := first; ctx.Err() == nil; wait = min(2*wait, most) {
		finished, err := p.turn(ctx, s, tree, inUse)
		if finished {
			return nil
		}
		if s.Context().Err() != nil {
			return context.Cause(s.Context())
		}
		if err != nil && ctx.Err() == nil {
			p.log.Warn("rollout turn failed", "rollout", tree.Rollout, "version", tree.Generation, "err", err)
			if !pause(ctx, wait) {
				break
			}
		}
	}
	return context.Cause(ctx)
}

// May says which of the two versions a host may use, the new and the previous one, given that the rollout
// is closed as done, and the host's own record in it (nil: none). A host that
// failed, and whose failure was tolerated, keeps the previous one even when the
// rollout is done: the version is known not to work there.
func May(done bool, own *HostRecord) (bool, bool) {
	if own != nil {
		version := own.State == HostDone || own.State == HostStarted
		return version, !version
	}
	return done, !done
}

// turn looks where this host stands in the rollout and does the next thing;
// finished means that nothing is left to do for this tree.
func (p *Participant) turn(ctx context.Context, s *session.Session, tree *view.Tree, inUse *bool) (bool, error) {
	closed, own, err := p.standing(ctx, s, tree.Rollout)
	if err != nil {
		return false, err
	}
	done := closed == ResultDone
	if version, _ := May(done, own); version {
		if own == nil || own.State == HostDone {
			p.cfg.Host.Show(tree)
			*inUse = true
			return true, nil
		}
		// A former life of this agent started and did not finish.
		*inUse = true
		return p.activate(ctx, s, tree)
	}
	if !*inUse {
		if err := p.showPrevious(ctx, s, tree.Previous); err != nil {
			return false, err
		}
		*inUse = true
	}
	if closed != "" { // replaced, or aborted: what comes next is another offer
		return true, nil
	}
	if own != nil { // failed: until a retry takes the record away
		return false, p.awaitRecordGone(ctx, s, tree.Rollout)
	}
	return p.takeTurn(ctx, s, tree)
}

// standing reads how the rollout was closed (empty: it is open), and our own
// record.
func (p *Participant) standing(ctx context.Context, s *session.Session, name string) (string, *HostRecord, error) {
	results, err := s.GetMany(ctx, []string{donePath(p.cfg.Root, name), p.record(name), rolloutPath(p.cfg.Root, name)})
	if err != nil {
		return "", nil, err
	}
	for _, r := range results {
		if r.Err != nil && !errors.Is(r.Err, session.ErrNoNode) {
			return "", nil, r.Err
		}
	}
	if results[2].Err != nil {
		return ResultDone, nil, nil //nolint:nilerr // collected: it was closed long ago
	}
	var own *HostRecord
	if results[1].Err == nil {
		if own, err = pointer[HostRecord](results[1].Data); err != nil {
			return "", nil, err
		}
	}
	if results[0].Err != nil {
		return "", own, nil //nolint:nilerr // it is not closed
	}
	d, err := decode[Done](donePath(p.cfg.Root, name), results[0].Data)
	return d.Result, own, err
}

func (p *Participant) record(name string) string {
	return hostsPath(p.cfg.Root, name) + "/" + p.cfg.Agent
}

func (p *Participant) showPrevious(ctx context.Context, s *session.Session, version int64) error {
	if version == 0 {
		return nil // there is none: nothing is in use until the turn comes
	}
	tree, err := p.cfg.Tree(ctx, s, version)
	if err != nil {
		return fmt.Errorf("read previous version %d: %w", version, err)
	}
	p.cfg.Host.Show(tree)
	return nil
}

func (p *Participant) awaitRecordGone(ctx context.Context, s *session.Session, name string) error {
	_, there, watch, err := s.ExistsW(ctx, p.record(name))
	if err != nil {
		return err
	}
	defer watch.Stop()
	if !there {
		return nil
	}
	return wait(ctx, s, watch)
}

// takeTurn waits for a permit and starts; finished is true when the host is
// done or failed, false when it has to look again.
func (p *Participant) takeTurn(ctx context.Context, s *session.Session, tree *view.Tree) (bool, error) {
	proposal, err := readProposal(ctx, s, p.cfg.Root, tree.Rollout)
	if err != nil {
		return false, err
	}
	if err := p.awaitOpen(ctx, s, tree.Rollout, proposal.Strategy); err != nil {
		return false, err
	}
	permits := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: permitsPath(p.cfg.Root, tree.Rollout), K: proposal.Strategy.Parallel})
	permit, err := permits.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("permit: %w", err)
	}
	// The release has a context of its own: a cancelled wait must not keep
	// the permit from others.
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout())
		defer cancel()
		_ = permit.Release(release)
	}()
	started, err := p.start(ctx, s, tree.Rollout, proposal.Strategy, permit)
	if err != nil || !started {
		return false, err
	}
	done, err := p.activate(ctx, s, tree)
	if err == nil && done {
		keepPermit(ctx, permit.Context(), time.Duration(proposal.Strategy.Pause))
	}
	return done, err
}

// keepPermit waits before the permit is given back; a newer offer, or the loss
// of the permit, ends it.
func keepPermit(ctx, permit context.Context, d time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(permit, cancel)()
	pause(ctx, d)
}

// openPath exists once hosts that are not named in the strategy's order may
// contend for permits.
func openPath(root, name string) string { return rolloutPath(root, name) + "/open" }

// awaitOpen keeps hosts out of the queue for permits that have to come after
// the ordered ones: a lease in their hands would block those.
func (p *Participant) awaitOpen(ctx context.Context, s *session.Session, name string, strategy Strategy) error {
	if len(strategy.Order) == 0 || contains(strategy.Order, p.cfg.Agent) {
		return nil
	}
	return awaitChange(ctx, s, openPath(p.cfg.Root, name))
}

// start creates our record when the rollout admits one more host: in one
// multi with checks of halt, of the permit, of control and of the number of
// active hosts, so that none of them can have changed.
func (p *Participant) start(ctx context.Context, s *session.Session, name string, strategy Strategy, permit *recipe.Hold) (bool, error) {
	for ctx.Err() == nil && permit.Context().Err() == nil {
		g, err := p.readGate(ctx, s, name)
		if err != nil {
			return false, err
		}
		if g.closed {
			g.stop()
			return false, nil
		}
		if g.halted || g.control.Action != ActionRun || !g.activity.admits(strategy, p.cfg.Agent) {
			err := g.wait(ctx, s, permit)
			g.stop()
			if err != nil {
				return false, err
			}
			continue
		}
		g.stop()
		_, err = s.Multi(ctx,
			session.CreateOp(haltPath(p.cfg.Root, name), nil, session.Persistent),
			session.DeleteOp(haltPath(p.cfg.Root, name), -1),
			session.CheckOp(permit.Path(), -1),
			session.CheckOp(controlPath(p.cfg.Root, name), g.controlVersion),
			session.SetOp(hostsPath(p.cfg.Root, name), encode(g.activity.start(p.cfg.Agent)), g.activityVersion),
			session.CreateOp(p.record(name), encode(HostRecord{State: HostStarted}), session.Persistent))
		if err == nil {
			p.log.Info("rollout turn started", "rollout", name)
			return true, nil
		}
		if err := p.afterStart(ctx, s, name, err); err != nil {
			return false, err
		}
		if _, own, err := p.standing(ctx, s, name); err != nil || own != nil {
			return own != nil && own.State == HostStarted, err
		}
	}
	return false, errors.Join(ctx.Err(), context.Cause(permit.Context()))
}

// afterStart decides whether a failed start is a reason to look again.
func (p *Participant) afterStart(ctx context.Context, s *session.Session, name string, err error) error {
	switch {
	case errors.Is(err, session.ErrUnknown):
		return s.Sync(ctx, p.record(name))
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists):
		return nil
	}
	return fmt.Errorf("start: %w", err)
}

// activate uses the tree and records how it went. It goes on when ctx ends in
// between: only the end of the session or of the process stops it, and then
// the record says started. It returns whether the host is done; one that
// failed looks again, for a retry.
func (p *Participant) activate(ctx context.Context, s *session.Session, tree *view.Tree) (bool, error) {
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(s.Context(), cancel)
	defer stop()
	err := p.cfg.Host.Use(live, tree)
	if live.Err() != nil {
		return false, context.Cause(s.Context())
	}
	if errors.Is(err, ErrStopping) {
		return false, err
	}
	record := HostRecord{State: HostDone}
	if err != nil {
		record = HostRecord{State: HostFailed, Error: clip(err.Error())}
	}
	p.log.Info("rollout turn finished", "rollout", tree.Rollout, "version", tree.Generation, "state", record.State, "reason", record.Error)
	return record.State == HostDone, p.finish(live, s, tree.Rollout, record)
}

// finish sets our record and leaves the active; the last failure that is
// tolerated creates halt in the same step.
func (p *Participant) finish(ctx context.Context, s *session.Session, name string, record HostRecord) error {
	proposal, err := readProposal(ctx, s, p.cfg.Root, name)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		data, stat, err := s.Get(ctx, hostsPath(p.cfg.Root, name))
		if err != nil {
			return err
		}
		activity, err := decode[Activity](hostsPath(p.cfg.Root, name), data)
		if err != nil {
			return err
		}
		if !contains(activity.Active, p.cfg.Agent) {
			return nil // recorded before, and its reply was lost
		}
		activity = activity.finish(p.cfg.Agent, record.State == HostFailed)
		ops := []session.Op{
			session.SetOp(p.record(name), encode(record), -1),
			session.SetOp(hostsPath(p.cfg.Root, name), encode(activity), stat.Version),
		}
		if activity.Failed >= proposal.Strategy.MaxFailures {
			if _, halted, err := s.Exists(ctx, haltPath(p.cfg.Root, name)); err != nil {
				return err
			} else if !halted {
				ops = append(ops, session.CreateOp(haltPath(p.cfg.Root, name), encode(Halt{Host: p.cfg.Agent, Reason: record.Error}), session.Persistent))
			}
		}
		_, err = s.Multi(ctx, ops...)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrUnknown):
			continue
		}
		return fmt.Errorf("finish: %w", err)
	}
	return ctx.Err()
}
