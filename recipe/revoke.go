package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// Revocable locks.
//
//	data of the holder's znode = __REVOKE__    "please release it"
//
// Steps (ZooKeeper Recipes, "Recoverable Shared Locks"; Apache Curator's
// InterProcessMutex.makeRevocable): a requester sets the data of the first znode in
// line. The holder watches its own znode from the moment it holds the lock. It also
// reads the znode then, so it sees an earlier request.

// Revoke asks the holder of the lock to release it. It returns nil when the lock is
// free. Only a revocable holder notices the request.
func (l *Lock) Revoke(ctx context.Context) error {
	if l.err != nil {
		return fmt.Errorf("revoke %s: %w", l.cfg.Path, l.err)
	}
	// The caller may know of the holder from another client. Sync, so that a server
	// that lags does not answer that the lock is free.
	if err := l.s.Sync(ctx, l.cfg.Path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("revoke: %w", err)
	}
	list, err := Contenders(ctx, l.s, l.cfg.Path)
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	for _, c := range list {
		if !c.Holder {
			break
		}
		err := untilKnown(ctx, func() error {
			_, err := l.s.Set(ctx, c.Path, []byte(revokeData), -1)
			return err
		})
		if err != nil && !errors.Is(err, session.ErrNoNode) { // it left by itself
			return fmt.Errorf("revoke %s: %w", c.Path, err)
		}
	}
	return nil
}

// Revoke asks all holders of the lock, the writer or the readers, to release it.
func (l *RWLock) Revoke(ctx context.Context) error { return l.write.Revoke(ctx) }
