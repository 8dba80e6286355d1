package mirror

import (
	"maps"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// Node is one znode as it was read. It must not be changed.
type Node struct {
	Data []byte
	Stat session.Stat
	// Children are the names of the children, sorted; nil at the depth limit.
	Children []string
}

// Snapshot is the copy of the subtree at one time. One that Follow brought is
// immutable; one of Refresh is good until the next Refresh.
type Snapshot struct {
	// Root is the path of the root znode.
	Root string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64

	nodes map[string]*Node
	errs  map[string]error
}

// Exists reports whether the root znode exists.
func (s *Snapshot) Exists() bool {
	_, ok := s.nodes[""]
	return ok
}

// Len is the number of znodes, the root included.
func (s *Snapshot) Len() int { return len(s.nodes) }

// Get returns the znode at a path relative to the root; "" is the root.
func (s *Snapshot) Get(rel string) (*Node, bool) {
	n, ok := s.nodes[rel]
	return n, ok
}

// Walk calls fn for each znode in bytewise order of the relative paths, the
// root ("") first, until fn returns false.
func (s *Snapshot) Walk(fn func(rel string, n *Node) bool) {
	for _, rel := range slices.Sorted(maps.Keys(s.nodes)) {
		if !fn(rel, s.nodes[rel]) {
			return
		}
	}
}

// Clone returns a copy that stays as it is.
func (s *Snapshot) Clone() *Snapshot {
	c := *s
	c.nodes = maps.Clone(s.nodes)
	return &c
}

// Errors returns the znodes that exist and cannot be read, with the reasons.
func (s *Snapshot) Errors() map[string]error { return maps.Clone(s.errs) }
