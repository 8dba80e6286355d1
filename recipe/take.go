package recipe

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// Take waits for an item and takes it: at most once. When the error matches
// session.ErrUnknown, it may have taken an item, whose body is then lost.
func (q *items) Take(ctx context.Context) ([]byte, error) { return q.take(ctx, q.blocking) }

// TryTake is Take, but returns ErrEmpty instead of waiting.
func (q *items) TryTake(ctx context.Context) ([]byte, error) { return q.take(ctx, q.each) }

// finder offers items to a function until that takes one.
type finder func(context.Context, func(item) (bool, error)) error

func (q *items) take(ctx context.Context, find finder) ([]byte, error) {
	var body []byte
	err := find(ctx, func(it item) (bool, error) {
		var taken bool
		var err error
		body, taken, err = q.takeItem(ctx, it)
		return taken, err
	})
	if err != nil {
		return nil, fmt.Errorf("take from %s: %w", q.dir, err)
	}
	return body, nil
}

// takeItem reads an item and deletes it. It returns false when another client has
// taken or reserved the item.
func (q *items) takeItem(ctx context.Context, it item) ([]byte, bool, error) {
	body, _, stat, err := q.get(ctx, child(q.dir, it.name))
	if err != nil {
		return nil, false, q.unlessSkipped(child(q.dir, it.name), err)
	}
	if !it.isListed(stat) {
		return nil, false, errEra
	}
	err = q.remove(ctx, it)
	switch {
	case err == nil:
		return body, true, nil
	case isTaken(err):
		return nil, false, nil
	}
	return nil, false, err
}

// unlessSkipped drops the error of an item that is gone, or that we cannot read: such
// an item must not block those behind it.
func (q *items) unlessSkipped(path string, err error) error {
	switch {
	case errors.Is(err, session.ErrNoNode):
		return nil
	case errors.Is(err, session.ErrNoAuth), errors.Is(err, ErrFormat):
		q.skip(path, err)
		return nil
	}
	return err
}

// remove deletes items of one list. It makes the directory of claims when that is
// missing.
func (q *items) remove(ctx context.Context, its ...item) error {
	ops := []session.Op{q.ops.sameEra(its[0].era)}
	for _, it := range its {
		ops = append(ops, q.removal(it.name)...)
	}
	err := q.ops.do(ctx, ops...)
	if q.noClaimDir(err) {
		if err = createContainers(ctx, q.s, child(q.claims, its[0].name)); err != nil {
			return err
		}
		err = q.ops.do(ctx, ops...)
	}
	return err
}

// noClaimDir reports whether the create of a claim found no parent.
func (q *items) noClaimDir(err error) bool {
	failed, ok := errors.AsType[*session.MultiError](err)
	return ok && q.claims != "" && errors.Is(failed.Err, session.ErrNoNode) && strings.HasPrefix(failed.Path, q.claims+"/")
}
