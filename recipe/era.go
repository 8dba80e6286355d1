package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// Eras of a queue. The server removes the directory of the items some time after the last
// item, and the next Put makes it again. Its numbers then start at 0, so a new item has the
// name, and the version, of an old one. A consumer that acts on an old list would take the
// new item and deliver the old body. So whoever makes the directory also sets the directory
// of the markers, <path>-ops. A consumer's own marker keeps that one from being removed, so
// its version never comes back: it is the era. Each multi of a consumer checks the era of
// its list. Other programs make the directory without a new era. Against them a consumer
// only compares the creation of an item with its list, before the multi.

// errEra means that an item is not the one that was listed.
var errEra = errors.New("the queue was made anew since it was listed")

// currentEra returns the era, as it was last read.
func (q *items) currentEra(ctx context.Context) (int32, error) {
	q.mu.Lock()
	era := q.era
	q.mu.Unlock()
	if era != 0 {
		return era, nil
	}
	version, err := q.ops.version(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the era of %s: %w", q.dir, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.era = version + 1
	return q.era, nil
}

// sameEra makes a multi fail when the directory of the items was made anew.
func (q *items) sameEra(era int32) session.Op { return session.CheckOp(q.ops.dir(), era-1) }

// unlessEra returns errEra for a multi that failed because of its era, so that the next
// list reads the era again. It returns any other error as it is.
func (q *items) unlessEra(err error) error {
	failed, ok := errors.AsType[*session.MultiError](err)
	if !ok || failed.Path != q.ops.dir() {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.era = 0
	return errEra
}

// newEra makes the directory of a queue's items, and with it a new era.
func newEra(ctx context.Context, s *session.Session, dir, ops string) error {
	if err := createContainers(ctx, s, dir); err != nil {
		return err
	}
	_, err := s.Multi(ctx, session.CreateOp(dir, nil, session.Container), session.SetOp(ops, nil, -1))
	if err == nil || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	// Without markers there is no consumer. Without containers there is one era.
	return createContainers(ctx, s, child(dir, "x"))
}

// isListed reports whether an item is the one that was listed, by its creation. A server
// does not note the creation of an item with the last number.
func (i item) isListed(stat session.Stat) bool { return stat.Czxid <= i.listed || i.seq.spent() }
