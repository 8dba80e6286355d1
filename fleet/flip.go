package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// noReady is the version of a ready that does not exist yet.
const noReady int32 = -1

// flip sets ready to r, if ready is still at znode version have, the config is not
// frozen and no rollout is open. After a lost reply it reads ready: only this
// publisher sets ready to this version.
func (p *publisher) flip(ctx context.Context, r trees.Ready, have int32) error {
	root := p.cfg.Path
	if err := p.cfg.at("flip"); err != nil {
		return err
	}
	for range maxTries {
		rollout, err := closeOps(ctx, p.s, root, p.cfg.who(), p.cfg.Emergency)
		if err != nil {
			return err
		}
		checks, err := p.checks(ctx)
		if err != nil {
			return err
		}
		ready := session.SetOp(trees.ReadyPath(root), r.Encode(), have)
		if have == noReady {
			ready = session.CreateOp(trees.ReadyPath(root), r.Encode(), session.Persistent)
		}
		_, err = p.s.Multi(ctx, slices.Concat(p.unlessFrozen(), rollout, []session.Op{ready}, checks)...)
		switch {
		case err == nil:
			return nil
		case p.otherTool(err):
			return p.cfg.otherTool(err)
		}
		if multi, ok := errors.AsType[*session.MultiError](err); ok && multi.Index > 2 && multi.Path != trees.ReadyPath(root) {
			continue // a rollout changed or was opened: look again
		}
		if !errors.Is(err, session.ErrUnknown) && !errors.Is(err, session.ErrBadVersion) && !errors.Is(err, session.ErrNodeExists) {
			return flipError(ctx, p.s, root, err)
		}
		if syncErr := p.s.Sync(ctx, trees.ReadyPath(root)); syncErr != nil {
			return fmt.Errorf("config %s: set ready: %w", root, errors.Join(err, syncErr))
		}
		now, _, readErr := trees.ReadReady(ctx, p.s, root)
		switch {
		case readErr == nil && now.Version == r.Version:
			return nil
		case !errors.Is(err, session.ErrUnknown):
			return flipError(ctx, p.s, root, err)
		}
	}
	return fmt.Errorf("config %s: set ready: %w", root, session.ErrUnknown)
}

func flipError(ctx context.Context, s *session.Session, root string, err error) error {
	frozen := trees.FreezePath(root)
	var multi *session.MultiError
	switch {
	case errors.As(err, &multi) && multi.Path == frozen && errors.Is(err, session.ErrNodeExists):
		if f, readErr := Frozen(ctx, s, root); readErr == nil && f != nil {
			return f
		}
		return fmt.Errorf("config %s: %w", root, ErrFrozen)
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists):
		return fmt.Errorf("config %s: another publisher was faster: %w", root, ErrConflict)
	case errors.As(err, &multi) && multi.Index == 0 && errors.Is(err, session.ErrNoNode):
		return fmt.Errorf("config %s: the publishers' lock was lost: %w", root, err)
	}
	return fmt.Errorf("config %s: set ready: %w", root, err)
}
