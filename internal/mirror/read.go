package mirror

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/zkagent/zkagent/session"
)

// read reads the marked lists, shallow ones first, so that what vanished with
// its parent is not asked for; then the marked and the found data; then the
// lists of what was found, and so on.
//
// A znode without children has its list watched, too: nothing else tells of its
// first child.
func (m *Mirror) read(ctx context.Context, marks map[mark]struct{}) error {
	lists, data := m.split(marks)
	var fresh []string
	for len(lists)+len(fresh)+len(data) > 0 {
		if len(lists) > 0 {
			level, deeper := shallowest(lists)
			found, err := m.list(ctx, level)
			if err != nil {
				return err
			}
			lists, fresh = deeper, append(fresh, found...)
			if m.arms[""] == nil { // It is gone: the read of its data waits for its return.
				data[""] = struct{}{}
			}
			continue
		}
		for _, rel := range fresh {
			delete(data, rel)
		}
		if err := m.fetch(ctx, data); err != nil {
			return err
		}
		found, more, err := m.discover(ctx, fresh)
		if err != nil {
			return err
		}
		fresh, data = found, map[string]struct{}{}
		lists = append(lists, more...)
	}
	return nil
}

// split splits the marks into lists and data to be read.
func (m *Mirror) split(marks map[mark]struct{}) ([]string, map[string]struct{}) {
	var lists []string
	data := map[string]struct{}{}
	for k := range marks {
		if k.kids {
			lists = append(lists, k.rel)
		}
		// A list alone makes no znode: a watch of a root that is gone may fire
		// when another root has come already.
		if !k.kids || m.nodes[k.rel] == nil {
			data[k.rel] = struct{}{}
		}
		if a := m.arms[""]; k == (mark{}) && (a == nil || a.kids == nil) {
			lists = append(lists, "") // The root comes whole or not at all.
		}
	}
	return lists, data
}

// shallowest splits off the paths with the fewest elements, sorted and each once.
func shallowest(rels []string) ([]string, []string) {
	var level, deeper []string
	least := depth(rels[0])
	for _, rel := range rels {
		least = min(least, depth(rel))
	}
	for _, rel := range rels {
		if depth(rel) == least {
			level = append(level, rel)
		} else {
			deeper = append(deeper, rel)
		}
	}
	slices.Sort(level)
	return slices.Compact(level), deeper
}

// watchesKids reports whether the children of the znode belong to the copy.
func (m *Mirror) watchesKids(rel string) bool { return m.opt.Depth == 0 || depth(rel) < m.opt.Depth }

// reply is what one read brought.
type reply struct {
	data  []byte
	names []string
	stat  session.Stat
	watch *session.Watch
	err   error
}

// list reads the children of the znodes and returns the new ones.
func (m *Mirror) list(ctx context.Context, rels []string) ([]string, error) {
	known := rels[:0:0]
	for _, rel := range rels {
		if rel == "" || m.arms[rel] != nil {
			known = append(known, rel)
		}
	}
	replies := m.each(known, func(rel string) reply {
		var r reply
		r.names, r.stat, r.watch, r.err = m.s.ChildrenW(ctx, m.path(rel))
		return r
	})
	var found []string
	for i, rel := range known {
		r := replies[i]
		switch {
		case r.err == nil:
			found = append(found, m.listed(rel, r)...)
		case errors.Is(r.err, session.ErrNoNode):
			m.vanished(rel)
		default:
			if err := m.failed(ctx, rel, r.err); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// listed takes in a list of children: it drops what is gone, and returns what
// is new. The list is the truth about which children exist; what happens after
// it fires the watch that was armed with it.
func (m *Mirror) listed(rel string, r reply) []string {
	if r.watch != nil {
		m.arm(rel, true, r.watch)
	}
	names := make([]string, 0, len(r.names))
	var found []string
	for _, name := range r.names {
		child := join(rel, name)
		if m.opt.Skip != nil && m.opt.Skip(child) {
			continue
		}
		names = append(names, name)
		if m.arms[child] == nil {
			m.arms[child] = &arms{}
			found = append(found, child)
		}
	}
	slices.Sort(names)
	m.see(r.stat)
	old := m.nodes[rel]
	n := &Node{Stat: r.stat, Children: names}
	if old != nil {
		for _, name := range old.Children {
			if _, ok := slices.BinarySearch(names, name); !ok {
				m.vanished(join(rel, name))
			}
		}
		// Mzxid stays that of the data that was read with it.
		n.Data, n.Stat = old.Data, old.Stat
		n.Stat.Pzxid, n.Stat.Cversion, n.Stat.NumChildren = r.stat.Pzxid, r.stat.Cversion, r.stat.NumChildren
	}
	m.put(rel, n, old)
	return found
}

// fetch reads the data of the znodes.
func (m *Mirror) fetch(ctx context.Context, rels map[string]struct{}) error {
	known := make([]string, 0, len(rels))
	for rel := range rels {
		if rel == "" || m.arms[rel] != nil {
			known = append(known, rel)
		}
	}
	slices.Sort(known)
	replies, err := m.fetchAll(ctx, known)
	if err != nil {
		return err
	}
	for i, rel := range known {
		r := replies[i]
		switch {
		case r.err == nil:
			m.fetched(rel, r)
		case errors.Is(r.err, session.ErrNoNode):
			// It went after its parent was listed, so the parent's watch fires.
			m.vanished(rel)
			if rel == "" {
				m.arm("", false, r.watch)
			}
		default:
			if err := m.failed(ctx, rel, r.err); err != nil {
				return err
			}
		}
	}
	return nil
}

// fewReads is how many znodes are read one by one; more are read together.
const fewReads = 4

// fetchAll reads and watches the data of the znodes.
func (m *Mirror) fetchAll(ctx context.Context, rels []string) ([]reply, error) {
	if len(rels) <= fewReads || rels[0] == "" {
		return m.each(rels, func(rel string) reply {
			var r reply
			r.data, r.stat, r.watch, r.err = m.s.GetW(ctx, m.path(rel))
			if rel == "" && errors.Is(r.err, session.ErrNoNode) {
				return m.awaitRoot(ctx)
			}
			return r
		}), nil
	}
	results, err := m.s.GetManyW(ctx, m.paths(rels), false)
	if err != nil {
		return nil, err
	}
	replies := make([]reply, len(rels))
	for i, r := range results {
		replies[i] = reply{data: r.Data, stat: r.Stat, watch: r.Watch, err: r.Err}
	}
	return replies, nil
}

// awaitRoot arms the watch for a root that does not exist. If it was created
// meanwhile, it is marked to be read.
func (m *Mirror) awaitRoot(ctx context.Context) reply {
	_, ok, w, err := m.s.ExistsW(ctx, m.root)
	if err != nil {
		return reply{err: err}
	}
	if ok {
		m.todo.mark(mark{})
	}
	return reply{watch: w, err: session.ErrNoNode}
}

func (m *Mirror) fetched(rel string, r reply) {
	m.arm(rel, false, r.watch)
	m.see(r.stat)
	old := m.nodes[rel]
	n := &Node{Data: r.data, Stat: r.stat}
	if old != nil {
		n.Children = old.Children
	}
	if _, ok := m.errs[rel]; ok {
		delete(m.errs, rel)
		m.changed[rel] = struct{}{}
	}
	if rel == "" && m.arms[""].kids == nil { // It came after the list.
		m.todo.mark(mark{})
	}
	m.put(rel, n, old)
}

// put stores a znode, and notes whether that is a change.
func (m *Mirror) put(rel string, n, old *Node) {
	if old == nil || n.Stat.Mzxid != old.Stat.Mzxid || n.Stat.Czxid != old.Stat.Czxid || !slices.Equal(n.Children, old.Children) {
		m.changed[rel] = struct{}{}
	}
	m.nodes[rel] = n
}

// failed takes in an error that is not "does not exist". It returns it when the
// context or the session has ended, and else tells it in the snapshot: the znode
// keeps its last state and is tried again after a back-off.
func (m *Mirror) failed(ctx context.Context, rel string, err error) error {
	if ctx.Err() != nil || m.s.Context().Err() != nil {
		return err
	}
	if _, ok := m.errs[rel]; !ok {
		m.opt.Logger.Warn("znode cannot be read", "path", m.path(rel), "err", err)
	}
	m.errs[rel] = err
	return nil
}

// vanished takes a znode and all below out of the copy.
func (m *Mirror) vanished(rel string) {
	if n, ok := m.nodes[rel]; ok {
		for _, name := range n.Children {
			m.vanished(join(rel, name))
		}
		delete(m.nodes, rel)
		m.changed[rel] = struct{}{}
	}
	delete(m.errs, rel)
	m.drop(rel)
}

// drop forgets the watches of a znode.
func (m *Mirror) drop(rel string) {
	a := m.arms[rel]
	if a == nil {
		return
	}
	delete(m.arms, rel)
	a.data.Stop()
	a.kids.Stop()
}

// arm waits for a new watch in place of the former one of its kind.
func (m *Mirror) arm(rel string, kids bool, w *session.Watch) {
	a := m.arms[rel]
	if a == nil {
		a = &arms{}
		m.arms[rel] = a
	}
	p := &a.data
	if kids {
		p = &a.kids
	}
	(*p).StopOne(kids)
	*p = w
	if w != nil && (!kids || w != a.data) { // One that is for both has joined.
		w.Join(m.todo.bell)
	}
}

// see keeps the largest zxid that was read.
func (m *Mirror) see(st session.Stat) { m.last = max(m.last, st.Czxid, st.Mzxid, st.Pzxid) }

// each calls fn for every path, several at once, and returns the replies in order.
func (m *Mirror) each(rels []string, fn func(rel string) reply) []reply {
	replies := make([]reply, len(rels))
	if len(rels) == 1 {
		replies[0] = fn(rels[0])
		return replies
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(m.opt.Concurrency, len(rels)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(rels)); i = next.Add(1) - 1 {
				replies[i] = fn(rels[i])
			}
		})
	}
	wg.Wait()
	return replies
}

// path is the path of a znode relative to the root.
func (m *Mirror) path(rel string) string {
	switch {
	case rel == "":
		return m.root
	case m.root == "/":
		return "/" + rel
	}
	return m.root + "/" + rel
}

// join joins a relative path and a name.
func join(rel, name string) string {
	if rel == "" {
		return name
	}
	return rel + "/" + name
}

// depth is the number of elements of a relative path.
func depth(rel string) int {
	if rel == "" {
		return 0
	}
	return strings.Count(rel, "/") + 1
}
