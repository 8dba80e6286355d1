package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// Revocable locks.
//
//	data of the holder's znode = __REVOKE__    "please give it back"
//
// Steps (ZooKeeper Recipes, "Recoverable Shared Locks"; Apache Curator's
// InterProcessMutex.makeRevocable): a requester sets the data of the znode that
// is first in line; the holder watches its own znode from the moment it holds
// the lock, and reads it then too, so that a request that came before is seen.
//
// Guarantees: a holder that is connected is told. Not guaranteed: that it gives
// the lock back: releasing stays its decision. The requester needs WRITE on the
// holder's znode, so revocable locks between different identities need an ACL
// that allows it.

// Revoke asks whoever holds the lock to give it back. It returns nil when
// nobody holds it. The holder must be revocable to notice.
func (l *Lock) Revoke(ctx context.Context) error {
	if l.err != nil {
		return fmt.Errorf("revoke %s: %w", l.cfg.Path, l.err)
	}
	// Whoever calls may have heard of the holder from somebody else: a server
	// that lags must not answer that nobody holds it.
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
		if err := l.ask(ctx, c.Path); err != nil {
			return err
		}
	}
	return nil
}

// ask writes the request into the znode of a holder.
func (l *Lock) ask(ctx context.Context, path string) error {
	for {
		// Setting the same data twice is harmless, so an unknown outcome
		// is simply tried again.
		_, err := l.s.Set(ctx, path, []byte(revokeData), -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			return nil // it left by itself
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown):
			return fmt.Errorf("revoke %s: %w", path, err)
		}
	}
}

// Revoke asks all who hold the lock, the writer or the readers, to give it back.
func (l *RWLock) Revoke(ctx context.Context) error { return l.write.Revoke(ctx) }
