package mirror

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Reads that no event causes.
//
// A znode that cannot be read or listed is tried again after a back-off of its own,
// which other znodes and their events do not disturb.
//
// Servers from 3.8.4 and 3.9.2 on keep events of znodes from sessions that may not
// read them, and use the watch up all the same: when an ACL is closed, the znode is
// set and the ACL is opened again, no event comes. So every 30 to 60 seconds the
// mirror asks for the Stat of the root and of a few other znodes, each in its turn.
// That is not more for a large tree: there it takes longer until each had its turn.

// Bounds of the back-off for znodes that cannot be read.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// trouble is a znode that cannot be read, or not listed, or perhaps exists no longer.
type trouble struct {
	err     error // nil: none so far
	gone    bool  // it was deleted: the list of its parent is awaited
	backoff time.Duration
	at      time.Time // when it is tried again
}

func (m *Mirror) ended(ctx context.Context) bool {
	return ctx.Err() != nil || m.s.Context().Err() != nil
}

// failed takes in an error that is not "does not exist", of the data or of the list.
// It returns it when the context or the session has ended, and else notes it in the
// snapshot: the znode keeps its last state and is tried again after a back-off.
func (m *Mirror) failed(ctx context.Context, z *znode, kids bool, err error) error {
	if m.ended(ctx) {
		return err
	}
	k := mark{rel: m.rel(z), kids: kids}
	t := m.errs[k]
	if t == nil || t.err == nil {
		m.opt.Logger.Warn("znode cannot be read", "path", z.path, "list", kids, "err", err)
		t = &trouble{}
		m.errs[k] = t
	}
	t.err, t.gone = err, false
	if now := time.Now(); !now.Before(t.at) {
		t.backoff = min(max(2*t.backoff, firstRetry), lastRetry)
		t.at = now.Add(t.backoff)
	}
	return nil
}

// fine takes in that the data of a znode, or its list, could be read.
func (m *Mirror) fine(z *znode, kids bool) {
	if len(m.errs) == 0 {
		return
	}
	if k := (mark{rel: m.rel(z), kids: kids}); m.errs[k] != nil {
		delete(m.errs, k)
		m.note(z)
	}
}

// due adds what is to be tried again now to the marks. A znode that has not been read
// at all is listed, too.
func (m *Mirror) due(marks map[mark]struct{}) {
	now := time.Now()
	for k, t := range m.errs {
		if now.Before(t.at) {
			continue
		}
		marks[k] = struct{}{}
		if z := m.top.find(k.rel); z != nil && z.kids == nil && m.watchesKids(z) {
			marks[mark{rel: k.rel, kids: true}] = struct{}{}
		}
	}
}

func (m *Mirror) errors() map[string]error {
	errs := make(map[string]error, len(m.errs))
	for k, t := range m.errs {
		switch {
		case t.err == nil:
		case !k.kids:
			errs[k.rel] = t.err
		case errs[k.rel] == nil:
			errs[k.rel] = fmt.Errorf("list: %w", t.err)
		}
	}
	return errs
}

// setTimer makes Dirty receive when something is due. A timer that runs is left
// alone unless something is due before it.
func (m *Mirror) setTimer() {
	next := m.recheck.at
	for _, t := range m.errs {
		if t.at.Before(next) {
			next = t.at
		}
	}
	if m.timer != nil && m.wakeAt.After(time.Now()) && !next.Before(m.wakeAt) {
		return
	}
	if m.timer != nil {
		m.timer.Stop()
	}
	m.wakeAt = next
	m.timer = time.AfterFunc(time.Until(next), m.todo.queue.Wake)
}

// recheckFew is how many znodes besides the root are looked at without an event.
const recheckFew = 8

// recheck is what is looked at without an event.
type recheck struct {
	at    time.Time
	left  []string // paths of znodes that have yet to get their turn
	parts []string // likewise, of children of the root
}

func (r *recheck) plan() {
	r.at = time.Now().Add(session.RecheckAfter())
}

// look looks at the root and a few other znodes when it is time, and marks what is
// not as it was read.
func (m *Mirror) look(ctx context.Context) error {
	if time.Now().Before(m.recheck.at) {
		return nil
	}
	m.recheck.plan()
	zs := []*znode{m.top}
	for range m.opt.Recheck {
		zs = append(zs, m.turn(&m.recheck.left, false))
		if m.opt.Parts {
			zs = append(zs, m.turn(&m.recheck.parts, true))
		}
	}
	zs = slices.DeleteFunc(zs, func(z *znode) bool { return z == nil })
	zs = sorted(zs)
	replies := m.each(zs, func(z *znode) reply {
		var r reply
		var ok bool
		if r.stat, ok, r.err = m.s.Exists(ctx, z.path); r.err == nil && !ok {
			r.stat.Mzxid = unread
		}
		return r
	})
	for i, z := range zs {
		r := replies[i]
		if r.err != nil && m.ended(ctx) {
			return r.err
		}
		if r.err == nil && r.stat.Mzxid != z.stat.Mzxid {
			m.todo.mark(mark{rel: m.rel(z)})
		}
		if r.err == nil && m.watchesKids(z) && !m.sameList(z, r.stat) {
			m.todo.mark(mark{rel: m.rel(z), kids: true})
		}
	}
	return nil
}

// sameList reports whether the list of a znode is the latest, by its Stat.
func (m *Mirror) sameList(z *znode, st session.Stat) bool {
	switch {
	case st.Mzxid == unread: // it is gone
		return true
	case z == m.top:
		return st.Pzxid == m.pzxid
	case z.inner == nil:
		return st.NumChildren == 0
	}
	return st.Pzxid == z.inner.pzxid
}

// turn returns the next znode to be looked at, nil if there is none. With parts it is a
// child of the root.
func (m *Mirror) turn(left *[]string, parts bool) *znode {
	if len(*left) == 0 {
		m.top.walk(func(z *znode) bool {
			if z != m.top && (!parts || m.depth(z) == 1) {
				*left = append(*left, z.path)
			}
			return true
		})
	}
	if len(*left) == 0 {
		return nil
	}
	path := (*left)[0]
	*left = (*left)[1:]
	return m.top.find(relative(m.root, path))
}

// mark names what is to be read again: the data of a znode, or its children. A znode
// that is gone is not read: the list of its parent changes, too.
type mark struct {
	rel  string
	kids bool
	gone bool
}

// marks collects what is to be read again: watches that fired, and what was
// marked for another reason.
type marks struct {
	queue *session.WatchQueue

	mu  sync.Mutex // guards own
	own map[mark]struct{}
}

func (k *marks) mark(m mark) {
	k.mu.Lock()
	k.own[m] = struct{}{}
	k.mu.Unlock()
	k.queue.Wake()
}

// gather notes the watches that have fired. It reports whether only data is to be read.
func (k *marks) gather(root string) bool {
	rung := k.queue.Take()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range rung {
		rel := relative(root, r.Watch.Path())
		gone := rel != "" && r.Watch.Gone()
		k.own[mark{rel: rel, gone: gone, kids: r.Children && !gone}] = struct{}{}
	}
	for m := range k.own {
		if m.kids || m.rel == "" {
			return false
		}
	}
	return len(k.own) > 0
}

// take returns what was marked since the last call. Every event that the session
// received before the call is among it.
func (k *marks) take(root string) map[mark]struct{} {
	k.gather(root)
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.own
	k.own = map[mark]struct{}{}
	return all
}

// settle waits for Options.Settle while only data is to be read: when a list changes as
// well, one Refresh is enough for both.
func (m *Mirror) settle(ctx context.Context) error {
	if m.opt.Settle <= 0 || !m.todo.gather(m.root) {
		return nil
	}
	timer := time.NewTimer(m.opt.Settle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.s.Done():
			return context.Cause(m.s.Context())
		case <-timer.C:
			return nil
		case <-m.todo.queue.C():
			if !m.todo.gather(m.root) {
				return nil
			}
		}
	}
}
