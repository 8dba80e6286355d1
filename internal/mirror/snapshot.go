package mirror

import (
	"maps"
	"slices"
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
	n := Node{
		Data: z.data, Children: z.names(),
		Stat: Stat{Czxid: z.czxid, Mzxid: z.mzxid, Ctime: z.ctime, Mtime: z.mtime, Version: z.version},
	}
	if z.inner != nil {
		n.Over = z.inner.over
	}
	return n
}

// Walk calls fn for each znode in bytewise order of the relative paths, the
// root ("") first, until fn returns false.
func (s *Snapshot) Walk(fn func(rel string, n *Node) bool) {
	all := make(map[string]*znode, s.n)
	s.top.walk(func(z *znode) bool {
		all[relative(s.Root, z.path)] = z
		return true
	})
	for _, rel := range slices.Sorted(maps.Keys(all)) {
		if n := all[rel].node(); !fn(rel, &n) {
			return
		}
	}
}

// Errors returns the znodes that exist and cannot be read or listed, with the reasons.
func (s *Snapshot) Errors() map[string]error { return maps.Clone(s.errs) }
