package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The barrier.
//
// Steps (ZooKeeper Recipes, "Barriers"; Apache Curator's DistributedBarrier): a
// waiter asks whether the znode exists and sets a watch. It asks again each time
// the watch fires, until the znode does not exist.

// Barrier makes callers of Wait wait while it is closed.
type Barrier struct {
	s    *session.Session
	path string
}

// NewBarrier returns the barrier at path. It does no I/O. The barrier is open
// while path does not exist.
func NewBarrier(s *session.Session, path string) *Barrier { return &Barrier{s, path} }

// Close closes the barrier. Closing a closed barrier succeeds.
func (b *Barrier) Close(ctx context.Context) error {
	err := untilKnown(ctx, func() error {
		return withContainers(ctx, b.s, b.path, func() error {
			_, _, err := b.s.Create(ctx, b.path, nil, session.Persistent)
			return err
		})
	})
	if err == nil || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	return fmt.Errorf("close barrier: %w", err)
}

// Open opens the barrier for all waiters. Opening an open barrier succeeds.
func (b *Barrier) Open(ctx context.Context) error {
	stat, closed, err := lookAgain(ctx, b.s, b.path) // a server that lags must not hide a Close
	if err == nil && closed {
		err = removeExactly(ctx, b.s, b.path, stat.Czxid)
	}
	if err != nil {
		return fmt.Errorf("open barrier: %w", err)
	}
	return nil
}

// Wait returns nil when the barrier is open. It returns the cause when ctx or the
// session ends first.
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
