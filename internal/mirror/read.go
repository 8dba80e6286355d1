package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/session"
)

// read reads the marked lists, shallow ones first, so that what vanished with
// its parent is not asked for; then the marked and the found data; then the
// lists of what was found, and so on.
//
// A znode without children has its list watched, too: only that watch reports its
// first child.
func (m *Mirror) read(ctx context.Context, marks map[mark]struct{}) error {
	lists, data := m.split(marks)
	var fresh []*znode
	for len(lists)+len(fresh)+len(data) > 0 {
		if len(lists) > 0 {
			level, deeper := m.shallowest(lists)
			_, whole := data[m.top]
			whole = whole && level[0] == m.top
			read := m.list
			if whole {
				read = m.readWhole
				delete(data, m.top)
			}
			found, err := read(ctx, level)
			if err != nil {
				return err
			}
			lists, fresh = deeper, append(fresh, found...)
			for _, z := range m.again {
				if data[z] = struct{}{}; m.watchesKids(z) {
					lists = append(lists, z)
				}
			}
			m.again = nil
			if !whole && m.top.watch == nil && m.top.kids == nil { // It is gone: the read of its data waits for its return.
				data[m.top] = struct{}{}
			}
			continue
		}
		for _, z := range fresh {
			delete(data, z)
		}
		if err := m.fetch(ctx, data); err != nil {
			return err
		}
		found, more, err := m.discover(ctx, fresh)
		if err != nil {
			return err
		}
		fresh, data = found, map[*znode]struct{}{}
		lists = append(lists, more...)
	}
	return nil
}

// split splits the marks into lists and data to be read. What is not known any
// more is left out.
func (m *Mirror) split(marks map[mark]struct{}) ([]*znode, map[*znode]struct{}) {
	var lists []*znode
	data := map[*znode]struct{}{}
	for k := range marks {
		z := m.top.find(k.rel)
		if z == nil {
			continue
		}
		if k.gone {
			// It needs no read, because the list of its parent has it no longer, or again. If
			// that event gets lost, the znode is read after a while.
			if k = (mark{rel: k.rel}); m.errs[k] == nil {
				m.errs[k] = &trouble{at: time.Now().Add(lastRetry)}
			}
			m.errs[k].gone = true
			continue
		}
		if k.kids {
			lists = append(lists, z)
		}
		// A list alone makes no znode: a watch of a root that is gone may fire
		// when another root has come already.
		if !k.kids || !z.isRead() {
			data[z] = struct{}{}
		}
		if k == (mark{}) && m.top.kids == nil {
			lists = append(lists, m.top) // The root comes whole or not at all.
		}
	}
	return lists, data
}

// shallowest splits off the znodes whose paths have the fewest elements, sorted and
// each once.
func (m *Mirror) shallowest(zs []*znode) ([]*znode, []*znode) {
	var level, deeper []*znode
	least := m.depth(zs[0])
	for _, z := range zs {
		least = min(least, m.depth(z))
	}
	for _, z := range zs {
		if m.depth(z) == least {
			level = append(level, z)
		} else {
			deeper = append(deeper, z)
		}
	}
	return sorted(level), deeper
}

// sorted sorts znodes by their paths and leaves each once.
func sorted(zs []*znode) []*znode {
	slices.SortFunc(zs, func(a, b *znode) int { return strings.Compare(a.path, b.path) })
	return slices.Compact(zs)
}

func (m *Mirror) rel(z *znode) string { return relative(m.root, z.path) }

func (m *Mirror) depth(z *znode) int { return depth(m.rel(z)) }

// watchesKids reports whether the children of the znode belong to the copy.
func (m *Mirror) watchesKids(z *znode) bool { return m.opt.Depth == 0 || m.depth(z) < m.opt.Depth }

type reply struct {
	data  []byte
	names []string
	stat  session.Stat
	watch *session.Watch
	err   error
}

// list reads the children of the znodes and returns the new ones.
func (m *Mirror) list(ctx context.Context, zs []*znode) ([]*znode, error) {
	known := slices.DeleteFunc(zs, func(z *znode) bool { return z.stat.Mzxid == znodeGone })
	return m.tookLists(ctx, known, m.askLists(ctx, known))
}

// readWhole is list for the root alone, and reads its data at the same time.
func (m *Mirror) readWhole(ctx context.Context, root []*znode) ([]*znode, error) {
	var data []reply
	var wg sync.WaitGroup
	wg.Go(func() { data = m.fetchEach(ctx, root) })
	lists := m.askLists(ctx, root)
	wg.Wait()
	found, err := m.tookLists(ctx, root, lists)
	if err != nil {
		for _, r := range data {
			r.watch.Stop()
		}
		return nil, err
	}
	return found, m.tookData(ctx, root, data)
}

func (m *Mirror) askLists(ctx context.Context, zs []*znode) []reply {
	return m.each(zs, func(z *znode) reply {
		var r reply
		r.names, r.stat, r.watch, r.err = m.s.ChildrenW(ctx, z.path)
		return r
	})
}

// tookLists takes in the lists of znodes and returns the new ones.
func (m *Mirror) tookLists(ctx context.Context, known []*znode, replies []reply) ([]*znode, error) {
	var found []*znode
	for i, z := range known {
		r := replies[i]
		switch {
		case r.err == nil:
			m.see(r.stat)
			m.arm(z, true, r.watch)
			m.fine(z, true)
			if z == m.top {
				m.pzxid = r.stat.Pzxid
			}
			if !z.isRead() {
				m.n++
				z.setStat(r.stat)
				m.note(z)
			}
			found = append(found, m.listed(z, r.names)...)
			if z.inner != nil {
				z.inner.pzxid = r.stat.Pzxid
			}
			if m.opt.MaxZnodes > 0 && (m.known > m.opt.MaxZnodes || m.opt.MaxBytes > 0 && m.names > m.opt.MaxBytes) {
				return nil, fmt.Errorf("%w: %d of them, with %.1f MiB of names, are more than %d and %.1f MiB",
					ErrTooMany, m.known, float64(m.names)/(1<<20), m.opt.MaxZnodes, float64(m.opt.MaxBytes)/(1<<20))
			}
		case errors.Is(r.err, session.ErrNoNode):
			m.vanished(z)
		default:
			if err := m.failed(ctx, z, true, r.err); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// listed takes in a list of children: it drops what is gone, and returns what
// is new. The list is the truth about which children exist; what happens after
// it fires the watch that was armed with it.
func (m *Mirror) listed(z *znode, names []string) []*znode {
	slices.Sort(names)
	names, over := m.cut(z, names)
	old, at := z.children(), z.below()
	next := make([]*znode, 0, len(names))
	var found []*znode
	for _, name := range names {
		for len(old) > 0 && old[0].path[at:] < name {
			m.vanished(old[0])
			old = old[1:]
		}
		if len(old) > 0 && old[0].path[at:] == name {
			c := old[0]
			if old = old[1:]; c.stat.Mzxid != znodeGone {
				next = append(next, c)
				if t := m.errs[mark{rel: m.rel(c)}]; t != nil && t.gone { // deleted, as far as its watch says
					m.again = append(m.again, c)
				}
				continue
			}
		}
		c := &znode{path: strings.TrimSuffix(z.path, "/") + "/" + name, stat: Stat{Mzxid: unread}}
		if m.opt.Skip != nil && m.opt.Skip(m.rel(c)) {
			if m.opt.Quiet == nil || !m.opt.Quiet(m.rel(c)) {
				m.loud = true
				m.cover.Release()
				m.cover = nil
			}
			continue
		}
		next, found = append(next, c), append(found, c)
		m.known, m.names = m.known+1, m.names+int64(len(c.path))
	}
	for _, c := range old {
		m.vanished(c)
	}
	if len(found) > 0 || len(next) != len(z.children()) || z.inner != nil && !slices.Equal(over, z.inner.over) {
		m.note(z)
	}
	if z.inner = nil; len(next) > 0 {
		z.inner = &inner{children: next, over: over}
	}
	return found
}

// cut returns the names of the children that are copied, and of those that are not.
func (m *Mirror) cut(z *znode, names []string) ([]string, []string) {
	if m.opt.MaxChildren == nil {
		return names, nil
	}
	n := m.opt.MaxChildren(m.rel(z))
	if n <= 0 || len(names) <= n {
		return names, nil
	}
	return names[:n], slices.Clone(names[n:])
}

// note notes that a znode has changed. No path is noted twice: a list is read once in a
// Refresh, so no other znode comes at the path of one that vanished.
func (m *Mirror) note(z *znode) {
	if !z.noted {
		z.noted, m.changed = true, append(m.changed, z)
	}
}

// vanished takes a znode and all below out of the copy. The root stays known.
func (m *Mirror) vanished(z *znode) {
	for _, c := range z.children() {
		m.vanished(c)
	}
	if z.isRead() {
		m.n--
		m.part(z).bytes -= int64(z.size)
		m.note(z)
	}
	if m.opt.Parts && m.depth(z) == 1 {
		delete(m.parts, m.rel(z))
	}
	for _, kids := range []bool{false, true} {
		delete(m.errs, mark{rel: m.rel(z), kids: kids})
	}
	if z != m.top && z.stat.Mzxid != znodeGone {
		m.known, m.names = m.known-1, m.names-int64(len(z.path))
	}
	z.watch.Stop()
	z.kids.Stop()
	*z = znode{path: z.path, stat: Stat{Mzxid: znodeGone}, noted: z.noted}
	if z == m.top {
		z.stat.Mzxid = unread
	}
}

// arm waits for a new watch in place of the previous one of its kind.
func (m *Mirror) arm(z *znode, kids bool, w *session.Watch) {
	p := &z.watch
	if kids {
		p = &z.kids
	}
	(*p).StopOne(kids)
	*p = w
	if w != nil && (!kids || w != z.watch) { // One that is for both has joined.
		w.Join(m.todo.queue)
	}
}

func (z *znode) disarm() {
	z.watch.Stop()
	z.kids.Stop()
	for _, c := range z.children() {
		c.disarm()
	}
}

func (m *Mirror) see(st session.Stat) { m.last = max(m.last, st.Czxid, st.Mzxid, st.Pzxid) }

func (m *Mirror) each(zs []*znode, fn func(*znode) reply) []reply {
	replies := make([]reply, len(zs))
	if len(zs) == 1 {
		replies[0] = fn(zs[0])
		return replies
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(m.opt.Concurrency, len(zs)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(zs)); i = next.Add(1) - 1 {
				replies[i] = fn(zs[i])
			}
		})
	}
	wg.Wait()
	return replies
}
