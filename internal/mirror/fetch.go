package mirror

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// fewReads is how many znodes are read one by one; more are read together.
const fewReads = 4

// fetch reads and watches the data of the znodes.
func (m *Mirror) fetch(ctx context.Context, zs map[*znode]struct{}) error {
	maps.DeleteFunc(zs, func(z *znode, _ struct{}) bool { return z.mzxid == znodeGone })
	alone := func(z *znode) bool { return m.isHollow(z) || session.ValidatePath(z.path) != nil }
	for _, batch := range m.batches(sorted(slices.Collect(maps.Keys(zs)))) {
		var err error
		if len(batch) <= fewReads || batch[0] == m.top || slices.ContainsFunc(batch, alone) {
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
		m.fetched(z, r)
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

// fetchEach reads and watches the data of the znodes one by one.
func (m *Mirror) fetchEach(ctx context.Context, zs []*znode) []reply {
	return m.each(zs, func(z *znode) reply {
		if m.isHollow(z) {
			return m.size(ctx, z)
		}
		var r reply
		r.data, r.stat, r.watch, r.err = m.s.GetW(ctx, z.path)
		if z == m.top && errors.Is(r.err, session.ErrNoNode) {
			return m.awaitRoot(ctx)
		}
		return r
	})
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

func (m *Mirror) fetched(z *znode, r reply) {
	m.arm(z, false, r.watch)
	m.see(r.stat)
	m.fine(z, false)
	if z == m.top && z.kids == nil && m.errs[mark{kids: true}] == nil { // It came after the list.
		m.todo.mark(mark{})
	}
	if !z.isRead() {
		m.n++
	}
	if z.mzxid != r.stat.Mzxid {
		m.note(z)
	}
	m.part(z).bytes += int64(r.stat.DataLength) - int64(z.size)
	z.data, z.size = r.data, r.stat.DataLength
	z.setStat(r.stat)
}
