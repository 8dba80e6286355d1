package recipe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Item is one item of a queue as an operator sees it.
type Item struct {
	Name     string    // of its znode
	Size     int       // of its data, in bytes
	Priority int       // lower first; 0 in other queues
	Attempts int       // how often it was reserved
	Reserved bool      // somebody works on it now
	Put      time.Time // when, by the clock of the server
	ID       string    // in a queue with ids
	Due      time.Time // in a delay queue: when it can be taken
}

// Items returns at most limit items of the queue, in the order of delivery. A limit
// of 0 returns all.
func (q *items) Items(ctx context.Context, limit int) ([]Item, error) {
	present, _, err := q.listDir(ctx, q.dir, false)
	if err != nil {
		return nil, err
	}
	reserved := map[string]bool{}
	if q.claims != "" {
		claims, _, err := q.listDir(ctx, q.claims, false)
		if err != nil {
			return nil, err
		}
		for _, name := range claims.Names {
			reserved[name] = true
		}
	}
	list := []Item{}
	for _, it := range q.sorted(present.Names, nil) {
		if limit > 0 && len(list) == limit {
			break
		}
		stat, exists, err := q.s.Exists(ctx, child(q.dir, it.name))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", it.name, err)
		}
		if !exists {
			continue
		}
		one := Item{
			Name: it.name, Size: int(stat.DataLength), Priority: it.priority, Attempts: int(stat.Version), Reserved: reserved[it.name],
			Put: time.UnixMilli(stat.Ctime), ID: it.id,
		}
		if it.due != 0 {
			one.Due = time.UnixMilli(it.due)
		}
		list = append(list, one)
	}
	return list, nil
}

// Peek returns the body of the first item that is not reserved, and leaves the item
// in the queue. The error matches ErrEmpty when there is no such item.
func (q *items) Peek(ctx context.Context) ([]byte, error) {
	list, _, err := q.read(ctx, false)
	if err != nil {
		return nil, err
	}
	for _, it := range list {
		if !it.ready() {
			break
		}
		body, _, _, err := q.get(ctx, child(q.dir, it.name))
		if err == nil {
			return body, nil
		}
		if err = q.unlessSkipped(child(q.dir, it.name), err); err != nil {
			return nil, fmt.Errorf("peek into %s: %w", q.dir, err)
		}
	}
	return nil, fmt.Errorf("peek into %s: %w", q.dir, ErrEmpty)
}

// bury moves an item that was reserved too often to the queue of dead letters,
// <path>-dead. It does so in one multi, so the item is always in exactly one of the
// two queues.
func (q *items) bury(ctx context.Context, it item, body []byte, version int32) error {
	dir := q.path + "-dead"
	err := withDirs(ctx, dir, func() error {
		return q.ops.do(ctx, q.ops.sameEra(it.era),
			session.DeleteOp(child(q.dir, it.name), version),
			session.CreateOp(child(dir, fifoPrefix), body, session.PersistentSequential))
	}, func(ctx context.Context, _ string) error { return newEra(ctx, newOperations(q.s, dir), dir) })
	switch {
	case err == nil:
		if q.logger != nil {
			q.logger.Warn("moved an item that was reserved too often to the dead letters", "item", child(q.dir, it.name), "dead", dir)
		}
		return nil
	case errors.Is(err, session.ErrNodeExists):
		err = ErrSequence
	case errors.Is(err, errEra):
		return err
	case !errors.Is(err, session.ErrUnknown) && (isTaken(err) || errors.Is(err, session.ErrBadVersion)):
		return nil // another client was first
	}
	return fmt.Errorf("move %s to the dead letters %s: %w", it.name, dir, err)
}
