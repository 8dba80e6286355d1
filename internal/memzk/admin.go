package memzk

import (
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// Node is a znode as it stands in the tree.
type Node struct {
	Data []byte
	Stat jute.Stat
	ACL  []jute.ACL
}

// openACL lets everybody do everything.
var openACL = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}

// operator is who the methods below act as: no ACL stops it.
var operator = []identity{{superScheme, ""}}

// edit carries out one write without a session. Errors are of type Error.
func (s *Server) edit(prepare func(*preparer) error) ([]step, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.preparer(0, operator)
	if err := prepare(p); err != nil {
		return nil, err
	}
	s.commit(p.steps)
	return p.steps, nil
}

// Create creates a persistent znode that everybody may use, with its missing
// parents.
func (s *Server) Create(path string, data []byte) error {
	for i := range path {
		if i > 0 && path[i] == '/' {
			err := s.CreateWith(path[:i], nil, jute.FlagPersistent, nil)
			if err != nil && codeOf(err) != jute.ErrCodeNodeExists {
				return err
			}
		}
	}
	return s.CreateWith(path, data, jute.FlagPersistent, nil)
}

// CreateWith creates a znode with a jute.Flag constant that is not ephemeral,
// and an ACL; nil lets everybody do everything.
func (s *Server) CreateWith(path string, data []byte, flags int32, acl []jute.ACL) error {
	if acl == nil {
		acl = openACL
	}
	op := jute.OpCreate
	if flags == jute.FlagContainer {
		op = jute.OpCreateContainer
	}
	_, err := s.edit(func(p *preparer) error {
		return p.create(op, createRequest{path: path, data: data, acl: acl, flags: flags, ttl: -1})
	})
	return err
}

// CreateEphemeral creates a znode that the session owns; flags are
// jute.FlagEphemeral or jute.FlagEphemeralSequential. It returns the path.
func (s *Server) CreateEphemeral(id int64, path string, data []byte, flags int32) (string, error) {
	s.mu.Lock()
	exists := s.sessions[id] != nil
	s.mu.Unlock()
	if !exists {
		return "", Error(jute.ErrCodeSessionExpired)
	}
	steps, err := s.edit(func(p *preparer) error {
		p.session = id
		return p.create(jute.OpCreate, createRequest{path: path, data: data, acl: openACL, flags: flags, ttl: -1})
	})
	if err != nil {
		return "", err
	}
	return steps[0].path, nil
}

// Set sets the data of a znode, whatever its version.
func (s *Server) Set(path string, data []byte) error {
	_, err := s.edit(func(p *preparer) error { return p.setData(path, data, -1) })
	return err
}

// SetACL sets the ACL of a znode.
func (s *Server) SetACL(path string, acl []jute.ACL) error {
	_, err := s.edit(func(p *preparer) error { return p.setACL(path, acl, -1) })
	return err
}

// Delete deletes a znode and everything below it, each in a transaction.
func (s *Server) Delete(path string) error {
	names, err := s.Children(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err = s.Delete(strings.TrimSuffix(path, "/") + "/" + name); err != nil {
			return err
		}
	}
	_, err = s.edit(func(p *preparer) error { return p.delete(path, -1) })
	return err
}

// Get returns a znode.
func (s *Server) Get(path string) (Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.primary.tree.get(path)
	if n == nil {
		return Node{}, Error(jute.ErrCodeNoNode)
	}
	return n.snapshot(), nil
}

// Exists reports whether there is such a znode.
func (s *Server) Exists(path string) bool {
	_, err := s.Get(path)
	return err == nil
}

// Children returns the names of a znode's children in order.
func (s *Server) Children(path string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.primary.tree.get(path)
	if n == nil {
		return nil, Error(jute.ErrCodeNoNode)
	}
	return n.childNames(), nil
}

// Tree returns all znodes by path, but those of the server itself: the root
// and what is below /zookeeper.
func (s *Server) Tree() map[string]Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Node, len(s.primary.tree.nodes))
	for path, n := range s.primary.tree.nodes {
		if path != rootPath && path != zookeeperPath && !strings.HasPrefix(path, zookeeperPath+"/") {
			all[path] = n.snapshot()
		}
	}
	return all
}

func (n *node) snapshot() Node {
	return Node{Data: slices.Clone(n.data), Stat: n.stat(), ACL: slices.Clone(n.acl)}
}

// SetSequence sets the number that the next sequential child of path gets, so
// that a test can come to its end.
func (s *Server) SetSequence(path string, next int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.primary.tree.get(path)
	if n == nil {
		return Error(jute.ErrCodeNoNode)
	}
	n.cversion = next
	return nil
}

// SessionIDs returns the ids of all sessions in the order of their creation.
func (s *Server) SessionIDs() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

// Connected reports whether the session has a connection.
func (s *Server) Connected(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	return sess != nil && sess.conn != nil
}

// Zxid returns the zxid of the last transaction.
func (s *Server) Zxid() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.primary.tree.zxid
}

// Requests returns how many requests of each operation came, by the names of
// jute.OpName.
func (s *Server) Requests() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]uint64{}
	for op, n := range s.requests {
		counts[jute.OpName(op)] += n
	}
	return counts
}

// ResetRequests sets the counts of Requests to 0.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.requests)
}

// Watches counts the watches that are set.
func (s *Server) Watches() WatchCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n WatchCounts
	s.primary.countWatches(&n)
	for _, r := range s.lagging {
		r.countWatches(&n)
	}
	return n
}

// Handshakes counts the handshakes that were tried.
func (s *Server) Handshakes() uint64 { return s.Requests()["createSession"] }
