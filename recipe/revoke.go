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
	names, _, err := l.s.Children(ctx, l.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke: list %s: %w", l.cfg.Path, err)
	}
	holder, ok := first(names)
	if !ok {
		return nil
	}
	for {
		// Setting the same data twice is harmless, so an unknown outcome
		// is simply tried again.
		_, err := l.s.Set(ctx, child(l.cfg.Path, holder.name), []byte(revokeData), -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			return nil // it left by itself
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown):
			return fmt.Errorf("revoke %s: %w", holder.name, err)
		}
	}
}
