package recipe

import (
	"context"
	"errors"
	"time"

	"github.com/zkagent/zkagent/session"
)

// watches are the two watches of a waiting consumer: one on the items, and one on the
// claims, because an item becomes available when its claim is deleted.
type watches [2]*session.Watch

func (w watches) stop() {
	for _, one := range w {
		one.Stop()
	}
}

// read lists the items that can be taken, in order, and sets watches if wanted.
func (q *items) read(ctx context.Context, watch bool) ([]item, watches, error) {
	var set watches
	var lists [2]session.Listing
	era, err := q.ops.era(ctx) // before the list: then it is not newer
	if err != nil {
		return nil, watches{}, err
	}
	// Claims first: an item whose claim was acknowledged in between is gone, too.
	dirs := []string{q.claims, q.dir}
	for i, dir := range dirs {
		if dir == "" {
			continue
		}
		if lists[i], set[i], err = q.listDir(ctx, dir, watch); err != nil {
			set.stop()
			return nil, watches{}, err
		}
	}
	list := q.sorted(lists[1].Names, lists[0].Names)
	if err := q.otherLayout(lists[1].Names); err != nil && len(list) == 0 {
		set.stop()
		return nil, watches{}, err
	}
	for i := range list {
		list[i].listed, list[i].era = lists[1].Stat.Pzxid, era
	}
	return list, set, nil
}

// listDir lists a directory. While the directory does not exist, the watch fires when
// it is created.
func (q *items) listDir(ctx context.Context, dir string, watch bool) (session.Listing, *session.Watch, error) {
	if watch {
		list, w, err := q.s.ListW(ctx, dir)
		return list, w, listError(dir, err)
	}
	names, stat, err := q.s.Children(ctx, dir)
	if errors.Is(err, session.ErrNoNode) {
		return session.Listing{}, nil, nil
	}
	return session.Listing{Names: names, Stat: stat}, nil, listError(dir, err)
}

// head returns the first known item.
func (q *items) head() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return item{}, false
	}
	return q.list[0], true
}

// drop forgets the first item, unless another goroutine did. A consumer drops an item
// only when it knows what became of it. Otherwise later items would overtake an item
// whose consumer gave up.
func (q *items) drop(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 && q.list[0] == it {
		q.list = q.list[1:]
	}
}

func (q *items) fill(list []item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = list
}

// each offers the items to try, first to last, until try takes one or fails. It
// returns ErrEmpty when a list has nothing to take. When another consumer takes an
// item first, each continues with the next item of the same list.
func (q *items) each(ctx context.Context, try func(item) (bool, error)) error {
	if q.fresh {
		q.fill(nil)
	}
	for {
		it, ok := q.head()
		if !ok {
			list, _, err := q.read(ctx, false)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return ErrEmpty
			}
			q.fill(list)
			continue
		}
		if !it.ready() { // the items behind it are not due either
			return ErrEmpty
		}
		done, err := try(it)
		if errors.Is(err, errEra) {
			q.fill(nil)
			continue
		}
		if err != nil {
			return err
		}
		q.drop(it)
		if done {
			return nil
		}
	}
}

// blocking is each, but waits when there is no item. The list that finds no item also
// sets the watches, so blocking misses no later change.
func (q *items) blocking(ctx context.Context, try func(item) (bool, error)) error {
	for {
		err := q.each(ctx, try)
		if !errors.Is(err, ErrEmpty) {
			return err
		}
		list, set, err := q.read(ctx, true)
		if err != nil {
			return err
		}
		if len(list) == 0 || !list[0].ready() {
			err = q.rest(ctx, list, set)
		}
		set.stop()
		if err != nil {
			return err
		}
	}
}

// rest waits for a change, or until the first item is due.
func (q *items) rest(ctx context.Context, list []item, set watches) error {
	if len(list) == 0 {
		return q.s.WaitAny(ctx, set[:]...)
	}
	due, cancel := context.WithDeadline(ctx, time.UnixMilli(list[0].due))
	defer cancel()
	err := q.s.WaitAny(due, set[:]...)
	if due.Err() != nil && ctx.Err() == nil && q.s.Context().Err() == nil {
		return nil
	}
	return err
}
