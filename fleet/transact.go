package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

const (
	// multiBytes and multiOps bound the data and the operations of one multi.
	multiBytes = 600 << 10
	multiOps   = 256
	// maxTries bounds the retries after races with other writers.
	maxTries = 16
)

// absent makes a multi fail with NodeExists when the znode exists.
func absent(path string) []session.Op {
	return []session.Op{session.CreateOp(path, nil, session.Persistent), session.DeleteOp(path, -1)}
}

// raced reports whether a write has to be tried again with what is there now.
func raced(err error) bool {
	return errors.Is(err, session.ErrUnknown) || errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrBadVersion)
}

// failedAt returns the path of the operation that made a multi fail; "": none did.
func failedAt(err error) string {
	if multi, ok := errors.AsType[*session.MultiError](err); ok {
		return multi.Path
	}
	return ""
}

// transact runs the operations that prepare returns in one transaction. When another
// writer was faster, or the reply was lost, it calls prepare again, which reads what is
// there now. lost says that an earlier transaction may have happened. No operations mean
// that nothing is left to do.
func transact(ctx context.Context, s *session.Session, path string, prepare func(lost bool) ([]session.Op, error)) error {
	return transactUntil(ctx, s, path, func(string, error) bool { return false }, prepare)
}

// transactUntil is transact for a transaction that may fail for good, although another
// writer was faster: final says so of the path of an operation and its error.
func transactUntil(
	ctx context.Context, s *session.Session, path string,
	final func(path string, err error) bool, prepare func(lost bool) ([]session.Op, error),
) error {
	lost, last := false, error(nil)
	for range maxTries {
		ops, err := prepare(lost)
		if err != nil || len(ops) == 0 {
			return err
		}
		if _, err = s.Multi(ctx, ops...); err == nil || !raced(err) || final(failedAt(err), err) {
			return err
		}
		if last = err; errors.Is(err, session.ErrUnknown) {
			lost = true
			if err := s.Sync(ctx, path); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%s changes too fast: %w", path, last)
}

// applyAll runs operations in a few multis, each with the guards. It leaves out an
// operation that fails when skip is true for its error.
func applyAll(ctx context.Context, s *session.Session, guards, ops []session.Op, skip func(*session.MultiError) bool) error {
	for chunk := range slices.Chunk(ops, multiOps) {
		for tries := 0; len(chunk) > 0; {
			_, err := s.Multi(ctx, slices.Concat(guards, chunk)...)
			var multi *session.MultiError
			switch {
			case err == nil:
				chunk = nil
			case errors.As(err, &multi) && multi.Index >= len(guards) && skip(multi):
				chunk = slices.Concat(chunk[:multi.Index-len(guards)], chunk[multi.Index-len(guards)+1:])
			case errors.Is(err, session.ErrUnknown) && tries < maxTries:
				tries++
			default:
				return err
			}
		}
	}
	return nil
}

// createAll creates empty znodes. It ignores those that exist already.
func (p *publisher) createAll(ctx context.Context, paths []string) error {
	ops := lists.Map(paths, func(path string) session.Op { return session.CreateOp(path, nil, session.Persistent) })
	err := applyAll(ctx, p.s, []session.Op{p.guard}, ops, func(e *session.MultiError) bool { return errors.Is(e, session.ErrNodeExists) })
	if err != nil {
		return fmt.Errorf("config %s: create znodes: %w", p.cfg.Path, err)
	}
	return nil
}

// deleteAll deletes znodes. It ignores those that are gone or have children.
func deleteAll(ctx context.Context, s *session.Session, guards []session.Op, paths []string) error {
	ops := lists.Map(paths, func(path string) session.Op { return session.DeleteOp(path, -1) })
	err := applyAll(ctx, s, guards, ops, func(e *session.MultiError) bool {
		return errors.Is(e, session.ErrNoNode) || errors.Is(e, session.ErrNotEmpty)
	})
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// releaseGrace bounds the release of the lock when the publish has ended.
const releaseGrace = 5 * time.Second

// withLock runs fn while this session holds the publishers' lock of the root, at
// <root>-lock. fn puts guard first into every multi, so that no write succeeds
// after the lock is lost. The context of fn ends then, too.
func withLock(ctx context.Context, s *session.Session, root, who string, log *slog.Logger, fn func(ctx context.Context, guard session.Op) error) error {
	if err := session.ValidatePath(root); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if root == "/" {
		return fmt.Errorf("config: %w: the root of ZooKeeper cannot be a config", session.ErrBadPath)
	}
	lock := recipe.NewLock(s, recipe.LockConfig{Path: root + "-lock", Data: []byte(who), Logger: log})
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("config %s: publishers' lock: %w", root, err)
	}
	defer func() {
		grace, end := context.WithTimeout(context.WithoutCancel(ctx), releaseGrace)
		defer end()
		if err := hold.Release(grace); err != nil {
			cmp.Or(log, slog.New(slog.DiscardHandler)).Warn("publishers' lock not released, it ends with the session", "path", hold.Path(), "err", err)
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })
	defer stop()
	return fn(ctx, hold.Guard())
}

// noReady is the version of a ready that does not exist yet.
const noReady int32 = -1

// flip sets ready to r, if ready is still at znode version have, the config is not
// frozen and no rollout is open. After a lost reply it reads ready: only this
// publisher sets ready to this version.
func (p *publisher) flip(ctx context.Context, r trees.Ready, have int32) error {
	root, path := p.cfg.Path, trees.ReadyPath(p.cfg.Path)
	if err := p.cfg.at("flip"); err != nil {
		return err
	}
	ready := session.SetOp(path, r.Encode(), have)
	if have == noReady {
		ready = session.CreateOp(path, r.Encode(), session.Persistent)
	}
	// A rollout that was opened or has changed is looked at again.
	final := func(at string, err error) bool {
		return at == path || at == trees.FreezePath(root) || at == p.guard.Path() || p.otherTool(err)
	}
	var refused error
	err := transactUntil(ctx, p.s, path, final, func(lost bool) ([]session.Op, error) {
		if lost {
			if now, _, err := trees.ReadReady(ctx, p.s, root); err == nil && now.Version == r.Version {
				return nil, nil
			}
		}
		rollout, err := closeOps(ctx, p.s, root, p.cfg.who(), p.cfg.Emergency)
		var checks []session.Op
		if err == nil {
			checks, err = p.checks(ctx)
		}
		refused = err
		return slices.Concat(p.unlessFrozen(), rollout, []session.Op{ready}, checks), err
	})
	switch {
	case err == nil || refused != nil:
		return err
	case p.otherTool(err):
		return p.cfg.otherTool(err)
	}
	return flipError(ctx, p.s, root, err)
}

func flipError(ctx context.Context, s *session.Session, root string, err error) error {
	multi, failed := errors.AsType[*session.MultiError](err)
	switch {
	case failed && multi.Path == trees.FreezePath(root) && errors.Is(err, session.ErrNodeExists):
		return frozenError(ctx, s, root)
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists):
		return fmt.Errorf("config %s: another publisher was faster: %w", root, ErrConflict)
	case failed && multi.Index == 0 && errors.Is(err, session.ErrNoNode):
		return fmt.Errorf("config %s: the publishers' lock was lost: %w", root, err)
	}
	return fmt.Errorf("config %s: set ready: %w", root, err)
}

// frozenError is the error of a transaction that met a freeze, which may be over by now.
func frozenError(ctx context.Context, s *session.Session, root string) error {
	if f, err := Frozen(ctx, s, root); err == nil && f != nil {
		return f
	}
	return fmt.Errorf("config %s: %w", root, ErrFrozen)
}
