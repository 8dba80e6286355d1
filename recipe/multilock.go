package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/session"
)

// The multi-lock: several locks held together. It makes no znodes of its own.
//
// Steps (Apache Curator, "Multi Shared Lock"): acquire the locks one after another in
// the order of their paths; if one fails, release those that are held.

// Acquirer is one part of a multi-lock: a [Lock], the reader or writer of an
// [RWLock], or a [Semaphore].
type Acquirer interface {
	Acquire(ctx context.Context) (*Hold, error)
	TryAcquire(ctx context.Context) (*Hold, error)
	// Path returns the path that contenders share.
	Path() string
}

// MultiLock is several locks that are held together. All must be of one session.
type MultiLock struct{ locks []Acquirer }

// NewMultiLock returns a multi-lock over locks of distinct paths. It does no I/O.
func NewMultiLock(locks ...Acquirer) *MultiLock {
	sorted := slices.SortedFunc(slices.Values(locks), func(a, b Acquirer) int {
		return cmp.Compare(a.Path(), b.Path())
	})
	return &MultiLock{locks: sorted}
}

// MultiHold is several locks held. Its context ends when one of them is lost.
type MultiHold struct {
	holds  []*Hold
	ctx    context.Context // ends with the hold
	cancel context.CancelCauseFunc
	stops  []func() bool
	once   sync.Once
}

// Acquire waits until all locks are ours. On an error it holds none.
func (m *MultiLock) Acquire(ctx context.Context) (*MultiHold, error) {
	return m.acquire(ctx, Acquirer.Acquire)
}

// TryAcquire takes the locks if all are free. Otherwise it takes none, and the error
// matches ErrHeld.
func (m *MultiLock) TryAcquire(ctx context.Context) (*MultiHold, error) {
	return m.acquire(ctx, Acquirer.TryAcquire)
}

func (m *MultiLock) acquire(ctx context.Context, one func(Acquirer, context.Context) (*Hold, error)) (*MultiHold, error) {
	var holds []*Hold
	for i, l := range m.locks {
		if i > 0 && l.Path() == m.locks[i-1].Path() {
			return nil, fmt.Errorf("multi-lock: %s is named twice, and would wait for itself: %w", l.Path(), ErrReentrant)
		}
	}
	for _, l := range m.locks {
		h, err := one(l, ctx)
		if err == nil {
			// We may lose an earlier lock while we wait for a later one.
			if i := slices.IndexFunc(holds, func(h *Hold) bool { return h.Err() != nil }); i >= 0 {
				err = holds[i].Err()
				holds = append(holds, h)
			}
		}
		if err != nil {
			_ = releaseAll(ctx, holds) // return the first error
			return nil, err
		}
		holds = append(holds, h)
	}
	return newMultiHold(ctx, holds), nil
}

func newMultiHold(ctx context.Context, holds []*Hold) *MultiHold {
	chain, _ := ctx.Value(heldKey{}).(*heldChain)
	for _, h := range holds {
		link := *h.ctx.Value(heldKey{}).(*heldChain)
		link.outer, chain = chain, &link
	}
	own, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), heldKey{}, chain))
	m := &MultiHold{holds: holds, ctx: own, cancel: cancel}
	for _, h := range holds {
		m.stops = append(m.stops, context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) }))
	}
	return m
}

// Context returns a context that ends with the first of the locks, with its cause.
func (m *MultiHold) Context() context.Context { return m.ctx }

// Fences returns the fencing tokens in the order of the locks' paths.
func (m *MultiHold) Fences() []int64 {
	fences := make([]int64, len(m.holds))
	for i, h := range m.holds {
		fences[i] = h.fence
	}
	return fences
}

// Guards returns operations that make a multi fail when one of the locks is gone.
func (m *MultiHold) Guards() []session.Op {
	ops := make([]session.Op, len(m.holds))
	for i, h := range m.holds {
		ops[i] = h.Guard()
	}
	return ops
}

// Release releases all locks, the last acquired first, and returns all errors.
func (m *MultiHold) Release(ctx context.Context) error {
	m.once.Do(func() {
		for _, stop := range m.stops {
			stop()
		}
		m.cancel(ErrReleased)
	})
	return releaseAll(ctx, m.holds)
}

func releaseAll(ctx context.Context, holds []*Hold) error {
	var errs []error
	for _, h := range slices.Backward(holds) {
		errs = append(errs, h.Release(ctx))
	}
	return errors.Join(errs...)
}
