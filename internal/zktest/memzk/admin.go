package memzk

import (
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// openACL lets everybody do everything.
var openACL = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}

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
	_, err := s.Write(0, op, path, data, acl, flags)
	return err
}

// CreateEphemeral creates a znode that the session owns; flags are
// jute.FlagEphemeral or jute.FlagEphemeralSequential. It returns the path.
func (s *Server) CreateEphemeral(id int64, path string, data []byte, flags int32) (string, error) {
	return s.Write(id, jute.OpCreate, path, data, openACL, flags)
}

// Set sets the data of a znode, whatever its version.
func (s *Server) Set(path string, data []byte) error {
	_, err := s.Write(0, jute.OpSetData, path, data, int32(-1))
	return err
}

// SetACL sets the ACL of a znode.
func (s *Server) SetACL(path string, acl []jute.ACL) error {
	_, err := s.Write(0, jute.OpSetACL, path, acl, int32(-1))
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
	_, err = s.Write(0, jute.OpDelete, path, int32(-1))
	return err
}

// SessionIDs returns the ids of all sessions in the order of their creation.
func (s *Server) SessionIDs() []int64 { return slices.Sorted(maps.Keys(s.State().Sessions)) }

// Connected reports whether the session has a connection.
func (s *Server) Connected(id int64) bool { return s.State().Sessions[id] }

// Zxid returns the zxid of the last transaction.
func (s *Server) Zxid() int64 { return s.State().Zxid }

// Requests returns how many requests of each operation came, by the names of
// jute.OpName.
func (s *Server) Requests() map[string]uint64 {
	now := s.State().Requests
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	counts := map[string]uint64{}
	for op, n := range now {
		if n > s.faults.counted[op] {
			counts[jute.OpName(op)] += n - s.faults.counted[op]
		}
	}
	return counts
}

// ResetRequests sets the counts of Requests to 0.
func (s *Server) ResetRequests() {
	now := s.State().Requests
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.counted = now
}

// Handshakes counts the handshakes that were tried.
func (s *Server) Handshakes() uint64 { return s.Requests()["createSession"] }

// Restart is Stop and Start.
func (s *Server) Restart() {
	s.Stop()
	s.Start()
}
