package mirror

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// A part of the tree that is too large. Its znodes are watched, and their sizes are
// known, so that the mirror sees at once when it is small enough again; their data is
// let go. What is left is about 200 bytes a znode.

// part is what Options.MaxBytes bounds: the whole tree, or a child of the root.
type part struct {
	bytes  int64 // of the data of its znodes
	hollow bool  // the data is more than MaxBytes: it is not kept
}

// partName is the name of the part that the znode belongs to; "" is the whole tree, or
// the root of one with parts.
func (m *Mirror) partName(z *znode) string {
	if !m.opt.Parts {
		return ""
	}
	name, _, _ := strings.Cut(m.rel(z), "/")
	return name
}

func (m *Mirror) part(z *znode) *part {
	name := m.partName(z)
	p := m.parts[name]
	if p == nil {
		p = &part{}
		m.parts[name] = p
	}
	return p
}

// isHollow reports whether the part of the znode is hollow. It only reads, because
// several goroutines ask at once.
func (m *Mirror) isHollow(z *znode) bool {
	p := m.parts[m.partName(z)]
	return p != nil && p.hollow
}

// readTogether is how many znodes of a part are worth a batch of their own.
const readTogether = 500

// batches splits znodes into those that are read together: the many of one part, or the
// few of several.
func (m *Mirror) batches(zs []*znode) [][]*znode {
	if len(zs) == 0 {
		return nil
	}
	if !m.opt.Parts {
		return [][]*znode{zs}
	}
	byPart := map[string][]*znode{}
	for _, z := range zs {
		name := m.partName(z)
		byPart[name] = append(byPart[name], z)
	}
	var all [][]*znode
	var few []*znode
	for _, name := range slices.Sorted(maps.Keys(byPart)) {
		if of := byPart[name]; len(of) >= readTogether {
			all = append(all, of)
		} else if few = append(few, of...); len(few) >= readTogether {
			all, few = append(all, few), nil
		}
	}
	if len(few) > 0 {
		all = append(all, few)
	}
	return all
}

// mixed reports whether the znodes belong to several parts.
func (m *Mirror) mixed(zs []*znode) bool {
	return slices.ContainsFunc(zs, func(z *znode) bool { return m.partName(z) != m.partName(zs[0]) })
}

// room is how many bytes may still be read of znodes that are new; 0: any number.
func (m *Mirror) room(zs []*znode) int64 {
	if m.opt.MaxBytes == 0 || m.mixed(zs) {
		return m.opt.MaxBytes
	}
	return max(m.opt.MaxBytes-m.part(zs[0]).bytes, 1)
}

// walkPart calls fn for the znodes of a part that have been read.
func (m *Mirror) walkPart(name string, fn func(*znode)) {
	top := m.top.find(name)
	if top == nil {
		return
	}
	top.walk(func(z *znode) bool {
		fn(z)
		return !m.opt.Parts || name != ""
	})
}

// empty lets go of all data of a part.
func (m *Mirror) empty(name string) {
	m.parts[name].hollow = true
	m.walkPart(name, func(z *znode) { z.data = nil })
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

// fill lets go of the data of the parts that are too large, and reads that of those that
// are not any more.
func (m *Mirror) fill(ctx context.Context) error {
	if m.opt.MaxBytes == 0 {
		return nil
	}
	for _, name := range slices.Collect(maps.Keys(m.parts)) {
		if err := m.fillPart(ctx, name, m.parts[name]); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mirror) fillPart(ctx context.Context, name string, p *part) error {
	for range 3 { // it may grow while it is read
		if !p.hollow && p.bytes > m.opt.MaxBytes {
			m.empty(name)
		}
		if !p.hollow || p.bytes > m.opt.MaxBytes {
			return nil
		}
		p.hollow = false
		top, below := m.top.find(name), map[*znode]struct{}{}
		if top == nil {
			return nil
		}
		m.walkPart(name, func(z *znode) {
			if z != top {
				below[z] = struct{}{}
			}
		})
		for _, zs := range []map[*znode]struct{}{{top: {}}, below} {
			if err := m.fetch(ctx, zs); err != nil {
				return err
			}
		}
	}
	if p.bytes > m.opt.MaxBytes {
		m.empty(name)
	}
	return nil // the next look continues
}
