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

// May says which of the two versions a host may use, the new and the previous one, given that the rollout
// is closed as done, and the host's own record in it (nil: none). A host that
// failed, and whose failure was tolerated, keeps the previous one even when the
// rollout is done: the version is known not to work there. One that was skipped
// is as one without a record.
func May(done bool, own *HostRecord) (bool, bool) {
	if own != nil && own.State != HostSkipped {
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
	if own != nil && own.State == HostStarted {
		*inUse = true
		return p.resume(ctx, s, tree)
	}
	skipped := own != nil && own.State == HostSkipped
	// A host in maintenance keeps what it has, and has no turn; one that starts
	// in maintenance does as any that returns.
	aside := (own == nil || skipped) && p.inMaintenance()
	if version, _ := May(closed == ResultDone, own); version && (!aside || !*inUse) {
		p.cfg.Host.Show(tree)
		*inUse = true
		return true, nil
	}
	if !*inUse {
		if err := p.showPrevious(ctx, s, tree.Previous); err != nil {
			return false, err
		}
		*inUse = true
	}
	switch {
	case aside:
		return false, p.standAside(ctx, s, tree.Rollout, skipped, closed == "")
	case closed != "": // replaced, or aborted: what comes next is another offer
		return true, nil
	case skipped:
		return false, p.comeBack(ctx, s, tree.Rollout)
	case own != nil:
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
	waiting, cancel := p.untilMaintenance(ctx)
	defer cancel()
	permit, err := p.awaitPermit(waiting, s, tree.Rollout, proposal.Strategy)
	if err != nil {
		return false, unlessMaintenance(waiting, err)
	}
	// The release has a context of its own: a cancelled wait must not keep
	// the permit from others.
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout())
		defer cancel()
		_ = permit.Release(release)
	}()
	started, err := p.start(waiting, s, tree.Rollout, proposal.Strategy, permit)
	if err != nil || !started {
		return false, unlessMaintenance(waiting, err)
	}
	done, err := p.activate(ctx, s, tree)
	if err == nil && done {
		keepPermit(ctx, permit.Context(), time.Duration(proposal.Strategy.Pause))
	}
	return done, err
}

// awaitPermit waits until this host may contend, and for a permit.
func (p *Participant) awaitPermit(ctx context.Context, s *session.Session, name string, strategy Strategy) (*recipe.Hold, error) {
	if err := p.awaitOpen(ctx, s, name, strategy); err != nil {
		return nil, err
	}
	permits := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: permitsPath(p.cfg.Root, name), K: strategy.Parallel})
	permit, err := permits.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("permit: %w", err)
	}
	return permit, nil
}

// unlessMaintenance takes away the error of a wait that maintenance has ended.
func unlessMaintenance(waiting context.Context, err error) error {
	if errors.Is(context.Cause(waiting), errMaintenance) {
		return nil
	}
	return err
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
