package mirror

import (
	"maps"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/zkagent/zkagent/session"
)

// Node is one znode as it was read. It must not be changed.
type Node struct {
	Data []byte
	Stat session.Stat
	// Children are the names of the children, sorted; nil at the depth limit.
	Children []string
}

// Snapshot is the copy of the subtree at one time. It is immutable.
type Snapshot struct {
	// Root is the path of the root znode.
	Root string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64

	nodes *iradix.Tree[*Node]
	errs  map[string]error
}

// Exists reports whether the root znode exists.
func (s *Snapshot) Exists() bool {
	_, ok := s.nodes.Get(nil)
	return ok
}

// Len is the number of znodes, the root included.
func (s *Snapshot) Len() int { return s.nodes.Len() }

// Get returns the znode at a path relative to the root; "" is the root.
func (s *Snapshot) Get(rel string) (*Node, bool) { return s.nodes.Get([]byte(rel)) }

// Walk calls fn for each znode in bytewise order of the relative paths, the
// root ("") first, until fn returns false.
func (s *Snapshot) Walk(fn func(rel string, n *Node) bool) {
	s.nodes.Root().Walk(func(k []byte, n *Node) bool { return !fn(string(k), n) })
}

// Errors returns the znodes that exist and cannot be read, with the reasons.
func (s *Snapshot) Errors() map[string]error { return maps.Clone(s.errs) }
