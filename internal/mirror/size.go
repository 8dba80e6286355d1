package mirror

import (
	"context"

	"github.com/zkagent/zkagent/session"
)

// A subtree that is too large. Its znodes are watched, and their sizes are known, so
// that it is seen at once when it is small enough again; their data is let go. What
// is left is about 200 bytes a znode.

// room is how many bytes may still be read; 0: any number.
func (m *Mirror) room() int64 {
	if m.opt.MaxBytes == 0 {
		return 0
	}
	return max(m.opt.MaxBytes-m.bytes, 1)
}

// empty lets go of all data.
func (m *Mirror) empty() {
	m.hollow = true
	m.top.walk(func(z *znode) bool {
		z.data = nil
		return true
	})
}

// size reads and watches the size of a znode instead of its data.
func (m *Mirror) size(ctx context.Context, z *znode) reply {
	st, ok, w, err := m.s.ExistsW(ctx, z.path)
	if err == nil && !ok {
		if err = session.ErrNoNode; z != m.top {
			w.Stop()
			w = nil
		}
	}
	return reply{stat: st, watch: w, err: err}
}

// fill lets go of the data of a subtree that is too large, and reads that of one
// that is not any more.
func (m *Mirror) fill(ctx context.Context) error {
	if m.opt.MaxBytes == 0 {
		return nil
	}
	for range 3 { // it may grow while it is read
		if !m.hollow && m.bytes > m.opt.MaxBytes {
			m.empty()
		}
		if !m.hollow || m.bytes > m.opt.MaxBytes {
			return nil
		}
		m.hollow = false
		below := map[*znode]struct{}{}
		m.top.walk(func(z *znode) bool {
			if z != m.top {
				below[z] = struct{}{}
			}
			return true
		})
		for _, zs := range []map[*znode]struct{}{{m.top: {}}, below} {
			if err := m.fetch(ctx, zs); err != nil {
				return err
			}
		}
	}
	if m.bytes > m.opt.MaxBytes {
		m.empty()
	}
	return nil // the next look goes on
}
