package mirror

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
)

// discover reads znodes that the copy does not have yet: their data and, from
// those that have children, the lists. It returns what the lists brought, and
// the znodes whose lists are still to be read.
//
// Few of them are read one by one, many together: then one pair of requests
// reads a few hundred and watches data and children, and a znode that had no
// child when it was read needs no list: its watch reports the first child.
func (m *Mirror) discover(ctx context.Context, zs []*znode) ([]*znode, []*znode, error) {
	zs = sorted(slices.DeleteFunc(zs, func(z *znode) bool { return z.stat.Mzxid == znodeGone }))
	if err := m.coverAll(ctx, len(zs)); err != nil {
		return nil, nil, err
	}
	data := make(map[*znode]struct{}, len(zs)) // read without lists
	var inner, last []*znode                   // The last level has no lists.
	for _, z := range zs {
		switch {
		case len(zs) <= fewReads, m.part(z).hollow:
			data[z] = struct{}{}
		case m.watchesKids(z):
			inner = append(inner, z)
		default:
			last = append(last, z)
		}
	}
	for _, batch := range m.batches(last) {
		if _, _, err := m.readMany(ctx, batch, false, m.room(batch)); err != nil {
			return nil, nil, err
		}
	}
	var found, lists []*znode
	for _, batch := range m.batches(inner) {
		more, left, err := m.readMany(ctx, batch, true, m.room(batch))
		if err != nil {
			return nil, nil, err
		}
		found, lists = append(found, more...), append(lists, left...)
	}
	for z := range data {
		if m.watchesKids(z) {
			lists = append(lists, z)
		}
	}
	return found, lists, m.fetch(ctx, data)
}

// readMany reads and watches znodes together, and with kids the lists of those that have
// children. It returns like discover. It leaves out data beyond limit bytes.
func (m *Mirror) readMany(ctx context.Context, zs []*znode, kids bool, limit int64) ([]*znode, []*znode, error) {
	var lists, parents, left []*znode
	below := 0 // children of the parents
	var failure error
	taken := make([]bool, len(zs))
	took := func(i int, r session.WatchedResult) {
		z := zs[i]
		taken[i] = true
		notRead, err := m.took(ctx, z, reply{data: r.Data, stat: r.Stat, watch: r.Watch, err: r.Err})
		failure = cmp.Or(failure, err)
		if notRead {
			left = append(left, z)
		}
		switch {
		case !kids || r.Err != nil && !notRead:
		case !r.Kids: // It was left out, or the server wants to be asked one by one.
			lists = append(lists, z)
		default:
			m.arm(z, true, r.Watch)
			if r.Stat.NumChildren > 0 {
				parents, below = append(parents, z), below+int(r.Stat.NumChildren)
			}
		}
	}
	err := m.s.EachManyW(ctx, paths(zs), kids, limit, took)
	if err != nil && m.ended(ctx) {
		return nil, nil, err
	}
	for i := range zs {
		if !taken[i] {
			took(i, session.WatchedResult{Result: session.Result{Err: err}})
		}
	}
	if failure != nil {
		return nil, nil, failure
	}
	if err = m.fetchLeft(ctx, left, m.mixed(zs)); err != nil {
		return nil, nil, err
	}
	parents = sorted(parents)
	switch err = m.watchLists(ctx, parents); {
	case errors.Is(err, session.ErrUnimplemented):
		return nil, append(lists, parents...), nil
	case err != nil:
		return nil, nil, err
	}
	found, err := m.listMany(ctx, parents, below)
	return found, lists, err
}

// listMany reads the lists of znodes whose children are watched already. When so many
// children make the tree a large one, it is covered meanwhile.
func (m *Mirror) listMany(ctx context.Context, zs []*znode, children int) ([]*znode, error) {
	if len(zs) == 0 {
		return nil, nil
	}
	covered := make(chan error, 1)
	go func() { covered <- m.coverAll(ctx, children) }()
	var failure error
	join := sync.OnceFunc(func() { failure = <-covered }) // What is listed may end the cover.
	found := make([][]*znode, len(zs))
	taken := make([]bool, len(zs))
	took := func(i int, r session.ListResult) {
		join()
		switch z := zs[i]; {
		case r.Err == nil:
			m.fine(z, true)
			found[i] = m.listed(z, r.Names)
		case errors.Is(r.Err, session.ErrNoNode):
			m.vanished(z)
		default:
			failure = cmp.Or(failure, m.failed(ctx, z, true, r.Err))
		}
		taken[i] = true
	}
	err := m.s.ListMany(ctx, paths(zs), took)
	join()
	if err = cmp.Or(failure, err); err != nil && m.ended(ctx) {
		return nil, err
	}
	for i := range zs {
		if !taken[i] {
			took(i, session.ListResult{Err: err})
		}
	}
	return slices.Concat(found...), failure
}

func paths(zs []*znode) []string {
	return lists.Map(zs, func(z *znode) string { return z.path })
}

// Setting two watches for each znode takes a server as long as reading them does,
// so a large tree is covered with one recursive watch before it is read (see
// [session.RecursiveWatch]). That brings the events of all that is below the root, so
// it is not done where the copy leaves out what may be loud: levels below its
// depth, and what it skips unless that is known to be quiet.
//
// A cover ends with its connection, and then the session sets all watches one
// by one, which reports what changed meanwhile: reading everything again would
// take the server longer, and move all data.

// coverFrom is the number of znodes from which on a tree is covered.
const coverFrom = 512

// coverAll covers the tree if n more znodes make that worth it.
func (m *Mirror) coverAll(ctx context.Context, n int) error {
	if m.opt.Depth > 0 || m.loud || n < m.opt.coverFrom || m.cover.Live() {
		return nil
	}
	m.cover.Release()
	c, err := m.s.WatchRecursive(ctx, m.root)
	m.cover = c
	if err != nil && (ctx.Err() != nil || m.s.Context().Err() != nil) {
		return err
	}
	return nil // Without a cover there is a watch for each.
}

// watchLists gives znodes that have children a watch of the list: otherwise
// the server may not report a child that the session may not read.
func (m *Mirror) watchLists(ctx context.Context, zs []*znode) error {
	if len(zs) == 0 || !m.cover.Live() {
		return nil
	}
	watches := lists.Map(zs, func(z *znode) *session.Watch { return z.watch })
	err := m.s.WatchChildren(ctx, watches)
	if err != nil && ctx.Err() == nil && m.s.Context().Err() == nil && !errors.Is(err, session.ErrUnimplemented) {
		return nil
	}
	return err
}

// fewReads is how many znodes are read one by one; more are read together.
const fewReads = 4

func (m *Mirror) fetch(ctx context.Context, zs map[*znode]struct{}) error {
	maps.DeleteFunc(zs, func(z *znode, _ struct{}) bool { return z.stat.Mzxid == znodeGone })
	for _, batch := range m.batches(sorted(slices.Collect(maps.Keys(zs)))) {
		var err error
		if len(batch) <= fewReads || batch[0] == m.top || slices.ContainsFunc(batch, m.isHollow) {
			err = m.tookData(ctx, batch, m.fetchEach(ctx, batch))
		} else {
			_, _, err = m.readMany(ctx, batch, false, m.opt.MaxBytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Mirror) tookData(ctx context.Context, known []*znode, replies []reply) error {
	var left []*znode
	for i, z := range known {
		notRead, err := m.took(ctx, z, replies[i])
		if err != nil {
			return err
		}
		if notRead {
			left = append(left, z)
		}
	}
	return m.fetchLeft(ctx, left, m.mixed(known))
}

// took takes in the data of a znode. It reports whether that was left out because of the
// limit of bytes.
func (m *Mirror) took(ctx context.Context, z *znode, r reply) (bool, error) {
	switch {
	case r.err == nil:
		m.arm(z, false, r.watch)
		m.see(r.stat)
		m.fine(z, false)
		if z == m.top && z.kids == nil && m.errs[mark{kids: true}] == nil { // It came after the list.
			m.todo.mark(mark{})
		}
		if !z.isRead() {
			m.n++
		}
		if z.stat.Mzxid != r.stat.Mzxid {
			m.note(z)
		}
		m.part(z).bytes += int64(r.stat.DataLength) - int64(z.size)
		z.data, z.size = r.data, r.stat.DataLength
		z.setStat(r.stat)
	case errors.Is(r.err, session.ErrNotRead):
		return true, nil
	case errors.Is(r.err, session.ErrNoNode):
		// It went after its parent was listed, so the parent's watch fires.
		m.vanished(z)
		if z == m.top {
			m.arm(z, false, r.watch)
		}
	default:
		return false, m.failed(ctx, z, false, r.err)
	}
	return false, nil
}

// fetchLeft reads the znodes that were not read because a batch was too large. One part
// alone is too large then; of several each is read alone.
func (m *Mirror) fetchLeft(ctx context.Context, left []*znode, mixed bool) error {
	byPart := map[string]map[*znode]struct{}{}
	for _, z := range left {
		name := m.partName(z)
		if byPart[name] == nil {
			byPart[name] = map[*znode]struct{}{}
		}
		byPart[name][z] = struct{}{}
	}
	for name, zs := range byPart {
		if !mixed {
			m.empty(name)
		}
		if err := m.fetch(ctx, zs); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mirror) fetchEach(ctx context.Context, zs []*znode) []reply {
	return m.each(zs, func(z *znode) reply {
		if m.isHollow(z) {
			return m.size(ctx, z)
		}
		var r reply
		r.data, r.stat, r.watch, r.err = m.s.GetW(ctx, z.path)
		if z == m.top && errors.Is(r.err, session.ErrNoNode) {
			if r = m.size(ctx, z); r.err == nil { // it was created meanwhile
				m.todo.mark(mark{})
				r.err = session.ErrNoNode
			}
		}
		return r
	})
}
