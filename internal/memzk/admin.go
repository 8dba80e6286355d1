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

// Write carries out the request of a create, delete, setData or setACL without a
// connection, past every ACL. Session 0 creates no ephemeral znodes. It returns the
// path of the znode. Errors are of type Error.
func (s *Server) Write(session int64, op int32, request ...any) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session != 0 && s.sessions[session] == nil {
		return "", Error(jute.ErrCodeSessionExpired)
	}
	p := s.preparer(session, operator)
	r, err := decodeRequest(op, jute.NewDecoder(encoded(request...)))
	if err == nil {
		err = p.prepare(op, r)
	}
	if err != nil {
		return "", err
	}
	s.commit(p.steps)
	return p.steps[0].path, nil
}

// Create creates a persistent znode that everybody may use, with its missing
// parents.
func (s *Server) Create(path string, data []byte) error {
	for i := range path {
		if i > 0 && path[i] == '/' {
			_, err := s.Write(0, jute.OpCreate, path[:i], []byte(nil), openACL, jute.FlagPersistent)
			if err != nil && codeOf(err) != jute.ErrCodeNodeExists {
				return err
			}
		}
	}
	_, err := s.Write(0, jute.OpCreate, path, data, openACL, jute.FlagPersistent)
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

// State is the state of a server at one moment.
type State struct {
	Zxid     int64            // of the last transaction
	Sessions map[int64]bool   // whether the session has a connection
	Requests map[int32]uint64 // that came, by operation
}

// State returns the current state.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := map[int64]bool{}
	for id, sess := range s.sessions {
		sessions[id] = sess.conn != nil
	}
	return State{Zxid: s.primary.tree.zxid, Sessions: sessions, Requests: maps.Clone(s.requests)}
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
