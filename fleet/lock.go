package fleet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

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
