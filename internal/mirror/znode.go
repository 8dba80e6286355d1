package mirror

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// Node is one znode as it was read. It must not be changed.
type Node struct {
	Data []byte
	Stat Stat
	// Children are the names of the children, sorted; nil at the depth limit.
	Children []string
	// Over are the names of children that are not copied because of Options.MaxChildren.
	Over []string
}

// Stat is what the copy keeps of a znode's Stat.
type Stat struct {
	Czxid   int64
	Mzxid   int64
	Ctime   int64 // milliseconds, by the server's clock
	Mtime   int64 // likewise
	Version int32
}

// Snapshot is the copy of the subtree. It is good until the next Refresh.
type Snapshot struct {
	// Root is the path of the root znode.
	Root string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64
	// Bytes is the size of all data; with Options.Parts, of the root's.
	Bytes int64
	// TooLarge says that Bytes is more than Options.MaxBytes allows. Then the znodes
	// have no data here.
	TooLarge bool

	top   *znode
	n     int
	errs  map[string]error
	parts map[string]*part
}

// Size returns the size of the data of a child of the root with all below it, and whether
// that is too large. It is for a mirror with Options.Parts.
func (s *Snapshot) Size(name string) (bytes int64, tooLarge bool) { //nolint:nonamedreturns // a number and a bool need names
	if p := s.parts[name]; p != nil {
		return p.bytes, p.hollow
	}
	return 0, false
}

// Exists reports whether the root znode exists.
func (s *Snapshot) Exists() bool { return s.top.isRead() }

// Len is the number of znodes, the root included.
func (s *Snapshot) Len() int { return s.n }

// Get returns the znode at a path relative to the root; "" is the root.
func (s *Snapshot) Get(rel string) (Node, bool) {
	z := s.top.find(rel)
	if z == nil || !z.isRead() {
		return Node{}, false
	}
	return z.node(), true
}

func (z *znode) node() Node {
	n := Node{Data: z.data, Stat: z.stat}
	for _, c := range z.children() {
		n.Children = append(n.Children, c.path[z.below():])
	}
	if z.inner != nil {
		n.Over = z.inner.over
	}
	return n
}

// Walk calls fn for each znode in bytewise order of the relative paths, the
// root ("") first, until fn returns false.
func (s *Snapshot) Walk(fn func(rel string, n *Node) bool) {
	all := make([]*znode, 0, s.n)
	s.top.walk(func(z *znode) bool {
		all = append(all, z)
		return true
	})
	for _, z := range sorted(all) {
		if n := z.node(); !fn(relative(s.Root, z.path), &n) {
			return
		}
	}
}

// Errors returns the znodes that exist and cannot be read or listed, with the reasons.
func (s *Snapshot) Errors() map[string]error { return maps.Clone(s.errs) }

// Values of Stat.Mzxid for a znode without data.
const (
	unread    = -1 // known from the list of its parent, or waited for
	znodeGone = -2 // no longer part of the copy
)

// znode is one znode of the copy. There may be a hundred thousand, so it is small:
// what only those with children need is apart, and names are parts of the paths.
type znode struct {
	path  string
	data  []byte
	stat  Stat
	size  int32          // of the data, also where that is not kept
	noted bool           // as changed, in the present Refresh
	inner *inner         // nil: no children
	watch *session.Watch // of the data, and perhaps of the children
	kids  *session.Watch // of the children; may be the same as watch
}

// inner is what a znode with children has besides.
type inner struct {
	children []*znode // sorted by path
	pzxid    int64    // as of the list; 0: not known
	over     []string // names of children that are not copied
}

func (z *znode) setStat(st session.Stat) {
	z.stat = Stat{Czxid: st.Czxid, Mzxid: st.Mzxid, Ctime: st.Ctime, Mtime: st.Mtime, Version: st.Version}
}

func (z *znode) isRead() bool { return z.stat.Mzxid >= 0 }

// children are the znodes that the latest list had; some may be gone since.
func (z *znode) children() []*znode {
	if z.inner == nil {
		return nil
	}
	return z.inner.children
}

// below is where the names of the children begin in their paths.
func (z *znode) below() int { return len(z.path) + 1 - strings.Count(z.path[len(z.path)-1:], "/") }

// find returns the znode at a path relative to z, nil if it is not known.
func (z *znode) find(rel string) *znode {
	for rel != "" {
		var name string
		name, rel, _ = strings.Cut(rel, "/")
		list, at := z.children(), z.below()
		i, ok := slices.BinarySearchFunc(list, name, func(c *znode, name string) int { return strings.Compare(c.path[at:], name) })
		if !ok || list[i].stat.Mzxid == znodeGone {
			return nil
		}
		z = list[i]
	}
	return z
}

// walk calls fn for z and all below that have been read, parents first, until fn
// returns false.
func (z *znode) walk(fn func(*znode) bool) bool {
	if z.isRead() && !fn(z) {
		return false
	}
	for _, c := range z.children() {
		if !c.walk(fn) {
			return false
		}
	}
	return true
}

func relative(root, path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
}

func depth(rel string) int {
	if rel == "" {
		return 0
	}
	return strings.Count(rel, "/") + 1
}

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
