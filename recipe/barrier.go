package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The barrier.
//
//	<path>    persistent; while it exists the barrier is closed
//
// Steps (ZooKeeper Recipes, "Barriers"; Apache Curator's DistributedBarrier): a
// waiter asks whether the znode exists, with a watch, and asks again whenever
// the watch says so, until it does not exist.
//
// Guarantees: Wait returns only after it has read that the znode is absent, from
// a server that knows what was closed before Wait was called: a server that lags,
// a reconnect or a change of its data do not open the barrier. Not guaranteed:
// that every opening is noticed: one that is closed again before the waiter
// has read is as if it had not been.

// Barrier holds back whoever waits for it while it is closed.
type Barrier struct {
	s    *session.Session
	path string
}

// NewBarrier returns the barrier at path. It does no I/O; a path without a
// znode is an open barrier.
func NewBarrier(s *session.Session, path string) *Barrier { return &Barrier{s, path} }

// Close closes the barrier. It is no error when it is closed already.
func (b *Barrier) Close(ctx context.Context) error {
	for {
		err := withContainers(ctx, b.s, b.path, func() error {
			_, _, err := b.s.Create(ctx, b.path, nil, session.Persistent)
			return err
		})
		switch {
		case err == nil, errors.Is(err, session.ErrNodeExists):
			return nil
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown):
			return fmt.Errorf("close barrier: %w", err)
		}
	}
}

// Open lets everybody through. It is no error when it is open already.
func (b *Barrier) Open(ctx context.Context) error {
	stat, closed, err := b.s.Exists(ctx, b.path)
	if err == nil && !closed {
		stat, closed, err = lookAgain(ctx, b.s, b.path) // a server that lags must not hide a Close
	}
	if err == nil && closed {
		err = removeExactly(ctx, b.s, b.path, stat.Czxid)
	}
	if err != nil {
		return fmt.Errorf("open barrier: %w", err)
	}
	return nil
}

// Wait returns nil when the barrier is open, otherwise the cause of the end of
// ctx or of the session.
func (b *Barrier) Wait(ctx context.Context) error {
	if err := b.s.Sync(ctx, b.path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("wait for barrier: %w", err)
	}
	for {
		_, closed, watch, err := b.s.ExistsW(ctx, b.path)
		if err != nil {
			return fmt.Errorf("wait for barrier: %w", err)
		}
		if !closed {
			watch.Stop()
			return nil
		}
		if err := watch.Wait(ctx); err != nil {
			return fmt.Errorf("wait for barrier %s: %w", b.path, err)
		}
	}
}
