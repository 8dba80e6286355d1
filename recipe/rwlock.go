package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The read-write lock.
//
// Steps (Hunt and others, Read/Write Locks; ZooKeeper Recipes, "Shared Locks"):
// a writer waits for its nearest predecessor of either kind, a reader for the
// nearest writer before it. Both kinds share the parent's counter.

// RWLock is a lock for one writer or many readers.
type RWLock struct {
	read, write *Lock
}

// NewRWLock returns a read-write lock of the session. It does no I/O.
func NewRWLock(s *session.Session, cfg LockConfig) *RWLock {
	return &RWLock{newLock(s, cfg, readNames, kazooReadNames), newLock(s, cfg, writeNames, kazooNames)}
}

// Reader returns the read lock by itself, for a [MultiLock].
func (l *RWLock) Reader() *Lock { return l.read }

// Writer returns the write lock by itself.
func (l *RWLock) Writer() *Lock { return l.write }

// RLock takes the read lock. It waits until no writer precedes us.
func (l *RWLock) RLock(ctx context.Context) (*Hold, error) { return l.read.Acquire(ctx) }

// TryRLock is RLock, but returns ErrHeld instead of waiting.
func (l *RWLock) TryRLock(ctx context.Context) (*Hold, error) { return l.read.TryAcquire(ctx) }

// Lock takes the write lock. It waits until no contender precedes us. Under the context
// of a read lock of the same path it returns ErrUpgrade.
func (l *RWLock) Lock(ctx context.Context) (*Hold, error) { return l.write.Acquire(ctx) }

// TryLock is Lock, but returns ErrHeld instead of waiting.
func (l *RWLock) TryLock(ctx context.Context) (*Hold, error) { return l.write.TryAcquire(ctx) }

// Downgrade turns a write lock into a read lock in one step. The reader takes the
// writer's place in the line (as Curator's readers inside a writer do since 5.5), so it
// precedes every waiting writer. The reader has the writer's fence. When Downgrade returns nil, the write hold has ended.
// When it returns an error, the write hold continues. The exception is an error that
// matches session.ErrUnknown: both holds are then given up, and the context of the
// write hold shows its end.
func (l *RWLock) Downgrade(ctx context.Context, w *Hold) (*Hold, error) {
	if err := w.Err(); err != nil {
		return nil, fmt.Errorf("downgrade %s: %w: %w", w.path, ErrNotHeld, err)
	}
	path, err := l.readerInPlaceOf(w)
	if err != nil {
		return nil, err
	}
	stat, err := replaceOwn(ctx, l.read.s, w.path, path, l.read.cfg)
	if err != nil {
		return nil, fmt.Errorf("downgrade: %w", err)
	}
	opts := l.read.opts
	opts.fence = w.fence // a writer that waits has a larger one, but an older znode than ours
	r := newHold(ctx, l.read.s, l.read.cfg.Path, path, stat.Czxid, opts)
	w.finish()
	return r, nil
}

// readerInPlaceOf returns the name of a reader with the sequence number of a writer.
func (l *RWLock) readerInPlaceOf(w *Hold) (string, error) {
	c, ok := parseContender(base(w.path))
	if !ok || c.shared {
		return "", fmt.Errorf("downgrade %s: not a write lock: %w", w.path, ErrNotHeld)
	}
	head, _, _ := splitSequence(c.name)
	n := l.read.participants.naming
	return child(l.read.cfg.Path, n.unique()+n.mark+c.name[len(head):]), nil
}

// replaceOwn replaces a znode of ours with a new ephemeral one, whose name no other
// client uses. After a lost reply it looks for the new znode: if that exists, the
// replacement was applied.
func replaceOwn(ctx context.Context, s *session.Session, old, path string, cfg LockConfig) (session.Stat, error) {
	for {
		results, err := s.Multi(ctx,
			session.DeleteOp(old, -1),
			session.CreateOp(path, cfg.Data, session.Ephemeral, cfg.ACL...))
		if err != nil && !errors.Is(err, session.ErrUnknown) {
			return session.Stat{}, err
		}
		if err == nil && len(results) == 2 && results[1].Stat.Czxid != 0 {
			return results[1].Stat, nil
		}
		stat, ok, ferr := lookAgain(ctx, s, path)
		if ferr != nil {
			abandon(s, path)
			return session.Stat{}, fmt.Errorf("%w: %w", session.ErrUnknown, ferr)
		}
		if ok && stat.EphemeralOwner == s.ID() {
			return stat, nil
		}
	}
}
