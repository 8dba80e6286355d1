package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/session"
)

// maxBody is the largest body of an item in bytes: the limit of a request
// (jute.maxbuffer, 1,048,575) less room for paths, headers and the marker.
const maxBody = 1_040_000

// item is one znode of a queue.
type item struct {
	name     string
	due      int64 // may not be taken before: milliseconds since 1970; 0: at once
	priority int
	seq      Sequence
	id       string // in a queue with ids
	// listed is the zxid of the last change to the list that the item is from, and era
	// the era of that list.
	listed int64
	era    int32
}

// isListed reports whether an item is the one that was listed, by its creation. A server
// does not note the creation of an item with the last number.
func (i item) isListed(stat session.Stat) bool { return stat.Czxid <= i.listed || i.seq.spent() }

// newEra makes the directory of a queue's items, and with it a new era. The server removes
// the directory some time after the last item, and its numbers then start at 0 again.
func newEra(ctx context.Context, ops *operations, dir string) error {
	if err := createContainers(ctx, ops.s, dir); err != nil {
		return err
	}
	_, err := ops.s.Multi(ctx, session.CreateOp(dir, nil, session.Container), ops.newEra())
	if err == nil || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	// Without markers there is no consumer. Without containers there is one era.
	return createContainers(ctx, ops.s, child(dir, "x"))
}

func (i item) ready() bool { return i.due <= time.Now().UnixMilli() }

// before is the order in which items are taken.
func (i item) before(j item) int {
	return cmp.Or(cmp.Compare(i.due, j.due), i.priority-j.priority, i.seq.compare(j.seq))
}

// items is the common part of all queues: where the items are, and how to list,
// take and reserve them.
type items struct {
	s      *session.Session
	dir    string // its children are the items
	claims string // claims of reserved items, children named as the items are; empty: none
	maxLen int
	// maxAttempts is how often an item is reserved before it becomes a dead letter;
	// 0: no limit. path is that of the queue.
	maxAttempts int
	path        string
	parse       func(name string) (item, bool)
	// pack turns a body into the data of a znode, and unpack does the reverse. nil:
	// the data is the body.
	pack   func(body []byte) []byte
	unpack func(data []byte) ([]byte, error)
	ops    *operations

	// fresh makes every take begin with a new list. It is for queues in which a new
	// item can precede the known ones.
	fresh bool

	logger *slog.Logger
	known  atomic.Bool // a put has checked the layout

	mu      sync.Mutex      // mu guards the fields below
	list    []item          // what is left of the last list, in order
	skipped map[string]bool // items that cannot be used
}

// newItems returns the items of a queue in the layout of [Queue].
func newItems(s *session.Session, cfg QueueConfig, parse func(string) (item, bool)) *items {
	s = session.Usable(s, cfg.Path)
	return &items{
		s: s, dir: cfg.Path, claims: cfg.Path + "-taken", maxLen: cfg.MaxLen, maxAttempts: cfg.MaxAttempts,
		path: cfg.Path, parse: parse, ops: newOperations(s, cfg.Path), skipped: map[string]bool{},
		logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
	}
}

// put creates an item. prefix is the name without the sequence.
func (q *items) put(ctx context.Context, prefix string, body []byte) error {
	if len(body) > maxBody {
		return fmt.Errorf("put into %s: %d bytes, at most %d: %w", q.dir, len(body), maxBody, ErrTooLarge)
	}
	if err := q.room(ctx); err != nil {
		return fmt.Errorf("put into %s: %w", q.dir, err)
	}
	if q.pack != nil {
		body = q.pack(body)
	}
	path, name := child(q.dir, prefix), ""
	err := withDirs(ctx, path, func() error {
		results, zxid, err := q.ops.results(ctx, session.CreateOp(path, body, session.PersistentSequential))
		switch {
		case err == nil && len(results) == 0:
			name, err = q.findLast(ctx, prefix, zxid)
		case err == nil:
			name = base(results[0].Path)
		}
		return err
	}, func(ctx context.Context, _ string) error { return newEra(ctx, q.ops, q.dir) })
	switch {
	case err == nil:
		err = q.refuseLast(ctx, name)
	case errors.Is(err, session.ErrNodeExists):
		err = ErrSequence
	}
	if err != nil {
		return fmt.Errorf("put into %s: %w", q.dir, err)
	}
	return nil
}

// cheapList is how many items a queue may have whose layout the first put checks.
const cheapList = 1000

// room returns an error for a queue that is full, or that has another layout: its consumers
// would never take our item.
func (q *items) room(ctx context.Context) error {
	known := q.known.Load()
	if q.maxLen == 0 && known {
		return nil
	}
	n, err := q.Len(ctx)
	if err == nil && q.maxLen > 0 && n >= q.maxLen {
		err = fmt.Errorf("%d items: %w", n, ErrFull)
	}
	if err == nil && !known && n > 0 && n <= cheapList {
		// A producer need not be allowed to list.
		if names, _, failed := q.s.Children(ctx, q.dir); failed == nil {
			err = q.otherLayout(names)
		}
	}
	q.known.Store(err == nil)
	return err
}

// findLast looks, after a lost reply, for the item of the multi zxid among those without a
// number of their own. It returns no name when the item has a number, or is taken.
func (q *items) findLast(ctx context.Context, prefix string, zxid int64) (string, error) {
	for _, seq := range []Sequence{math.MaxInt32, math.MinInt32} {
		name := fmt.Sprintf("%s%010d", prefix, seq)
		stat, exists, err := q.s.Exists(ctx, child(q.dir, name))
		if err != nil {
			return "", fmt.Errorf("%w: %w", session.ErrUnknown, err) // it was put, and may be refused
		}
		if exists && stat.Czxid == zxid {
			return name, nil
		}
	}
	return "", nil
}

// refuseLast takes an item back whose number the server may give out again. An item that
// another client has taken already was put.
func (q *items) refuseLast(ctx context.Context, name string) error {
	if _, seq, _ := splitSequence(name); !seq.spent() {
		return nil
	}
	err := q.ops.do(ctx, q.removal(name)...)
	switch {
	case q.noClaimDir(err): // so there is no claim
		err = removeOwn(ctx, q.s, child(q.dir, name))
	case isTaken(err):
		return nil
	}
	return cmp.Or(err, ErrSequence)
}

// Len returns the number of items. It counts reserved items and items that are not
// due. It also works for a queue that is too long to list.
func (q *items) Len(ctx context.Context) (int, error) {
	stat, _, err := q.s.Exists(ctx, q.dir)
	if err != nil {
		return 0, fmt.Errorf("length of %s: %w", q.dir, err)
	}
	return int(stat.NumChildren), nil
}

func (q *items) get(ctx context.Context, path string) (body, data []byte, stat session.Stat, err error) { //nolint:nonamedreturns // four values
	data, stat, err = q.s.Get(ctx, path)
	if body = data; err == nil && q.unpack != nil {
		body, err = q.unpack(data)
	}
	return body, data, stat, err
}

// Purge deletes all items that are not reserved, and returns their number.
func (q *items) Purge(ctx context.Context) (int, error) {
	return q.removeAll(ctx, func(item) bool { return true })
}

// removeAll deletes the present items that want accepts and that are not reserved. It
// returns how many it deleted.
func (q *items) removeAll(ctx context.Context, want func(item) bool) (int, error) {
	list, _, err := q.read(ctx, false)
	if err != nil {
		return 0, err
	}
	count := 0
	list = slices.DeleteFunc(list, func(it item) bool { return !want(it) })
	for batch := range slices.Chunk(list, purgeBatch) {
		n, err := q.removeBatch(ctx, batch)
		count += n
		if errors.Is(err, errEra) {
			return count, nil // all that was listed is gone
		}
		if err != nil {
			return count, fmt.Errorf("delete from %s: %w", q.dir, err)
		}
	}
	return count, nil
}

// purgeBatch is how many items one multi deletes.
const purgeBatch = 200

// removeBatch deletes items in one multi, without those that another client has taken
// or reserved. It returns how many it deleted.
func (q *items) removeBatch(ctx context.Context, batch []item) (int, error) {
	for len(batch) > 0 {
		err := q.remove(ctx, batch...)
		failed, ok := errors.AsType[*session.MultiError](err)
		switch {
		case err == nil:
			return len(batch), nil
		case !ok || !isTaken(err):
			return 0, err
		}
		batch = slices.DeleteFunc(batch, func(it item) bool { return it.name == base(failed.Path) })
	}
	return 0, nil
}

// removal returns the operations that delete an item if it exists and is not
// reserved. A create and a delete of the claim in one multi check that the claim does
// not exist.
func (q *items) removal(name string) []session.Op {
	take := session.DeleteOp(child(q.dir, name), -1)
	if q.claims == "" {
		return []session.Op{take}
	}
	claim := child(q.claims, name)
	return []session.Op{
		session.CreateOp(claim, nil, session.Persistent),
		session.DeleteOp(claim, -1),
		take,
	}
}

// isTaken reports that another client has taken or reserved the item.
func isTaken(err error) bool {
	return !errors.Is(err, session.ErrUnknown) &&
		(errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNodeExists))
}

// sorted returns the items among names, without the claimed ones, in the order of
// delivery.
func (q *items) sorted(names, claimed []string) []item {
	taken := make(map[string]bool, len(claimed))
	for _, name := range claimed {
		taken[name] = true
	}
	list := make([]item, 0, len(names))
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.skipped, func(name string, _ bool) bool { return !slices.Contains(names, name) })
	for _, name := range names {
		if it, ok := q.parse(name); ok && !taken[name] && !q.skipped[name] {
			list = append(list, it)
		}
	}
	slices.SortFunc(list, item.before)
	return list
}

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
	claims, present, _, err := q.names(ctx, false)
	if err != nil {
		return nil, err
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
			Name: it.name, Size: int(stat.DataLength), Priority: it.priority, Attempts: int(stat.Version), Reserved: slices.Contains(claims.Names, it.name),
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

// bury moves an item that was reserved too often, and is not reserved now, to the queue of
// dead letters, <path>-dead, in one multi: the item is always in exactly one of the two.
func (q *items) bury(ctx context.Context, it item, body []byte, version int32) error {
	dir := q.path + "-dead"
	dead := child(dir, fifoPrefix)
	ops := append([]session.Op{q.ops.sameEra(it.era)}, q.removal(it.name)...)
	ops[len(ops)-1] = session.DeleteOp(child(q.dir, it.name), version)
	ops = append(ops, session.CreateOp(dead, body, session.PersistentSequential))
	err := withDirs(ctx, dir, func() error { return q.ops.do(ctx, ops...) }, func(ctx context.Context, _ string) error {
		return cmp.Or(createContainers(ctx, q.s, child(q.claims, it.name)), newEra(ctx, newOperations(q.s, dir), dir))
	})
	failed, _ := errors.AsType[*session.MultiError](err)
	switch {
	case err == nil:
		q.logger.Warn("moved an item that was reserved too often to the dead letters", "item", child(q.dir, it.name), "dead", dir)
		return nil
	case failed != nil && failed.Path == dead && errors.Is(err, session.ErrNodeExists):
		err = ErrSequence
	case errors.Is(err, errEra):
		return err
	case !errors.Is(err, session.ErrUnknown) && (isTaken(err) || errors.Is(err, session.ErrBadVersion)):
		return nil // another client was first
	}
	return fmt.Errorf("move %s to the dead letters %s: %w", it.name, dir, err)
}
