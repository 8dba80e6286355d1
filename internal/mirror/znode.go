package mirror

import (
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
