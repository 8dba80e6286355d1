package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// maxLives is how many processes of one host may begin with a version: an
// agent that a version kills, and that something starts again, comes back so
// often, and then goes without it.
const maxLives = 3

// resume goes on with a turn that a former session, or a former process, began
// and did not end. A rollout that has halted meanwhile, and a version in the
// middle of which the agent died too often, are not gone on with: the version
// before is in use again, and that this host failed is recorded.
func (p *Participant) resume(ctx context.Context, s *session.Session, tree *view.Tree) (bool, error) {
	name := tree.Rollout
	own, stat, err := p.own(ctx, s, name)
	if err != nil || own == nil || own.State != HostStarted {
		return false, err
	}
	halt, halted, err := haltOf(ctx, s, p.cfg.Root, name)
	if err != nil {
		return false, err
	}
	next := *own
	if next.Life != p.cfg.Life {
		next.Life = p.cfg.Life
		next.Lives++
	}
	switch {
	case halted:
		return p.giveUp(ctx, s, tree, "had not finished when the rollout halted: "+halt.Reason)
	case next.Lives > maxLives:
		return p.giveUp(ctx, s, tree, fmt.Sprintf("the agent ended %d times in the middle of it", own.Lives))
	case next == *own:
		return p.activate(ctx, s, tree)
	}
	_, err = s.Multi(ctx,
		session.CreateOp(haltPath(p.cfg.Root, name), nil, session.Persistent),
		session.DeleteOp(haltPath(p.cfg.Root, name), -1),
		session.SetOp(p.record(name), encode(next), stat.Version))
	switch {
	case errors.Is(err, session.ErrUnknown):
		return false, s.Sync(ctx, p.record(name))
	case errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrBadVersion):
		return false, nil // look again
	case err != nil:
		return false, fmt.Errorf("resume: %w", err)
	}
	p.log.Info("rollout turn resumed", "rollout", name, "lives", next.Lives)
	return p.activate(ctx, s, tree)
}

// giveUp goes back to the version before and records the failure.
func (p *Participant) giveUp(ctx context.Context, s *session.Session, tree *view.Tree, why string) (bool, error) {
	if err := p.showPrevious(ctx, s, tree.Previous); err != nil {
		return false, err
	}
	p.log.Warn("rollout turn given up", "rollout", tree.Rollout, "version", tree.Generation, "reason", why)
	return false, p.finish(ctx, s, tree.Rollout, HostRecord{State: HostFailed, Error: clip(why)})
}

// own reads our record with its version; nil: there is none.
func (p *Participant) own(ctx context.Context, s *session.Session, name string) (*HostRecord, session.Stat, error) {
	data, stat, err := s.Get(ctx, p.record(name))
	if errors.Is(err, session.ErrNoNode) {
		return nil, stat, nil
	}
	if err != nil {
		return nil, stat, err
	}
	own, err := pointer[HostRecord](data)
	return own, stat, err
}

// haltOf reads why a rollout has halted, and whether it has.
func haltOf(ctx context.Context, s *session.Session, root, name string) (Halt, bool, error) {
	data, _, err := s.Get(ctx, haltPath(root, name))
	if errors.Is(err, session.ErrNoNode) {
		return Halt{}, false, nil
	}
	if err != nil {
		return Halt{}, false, err
	}
	halt, err := decode[Halt](haltPath(root, name), data)
	return halt, true, err
}
