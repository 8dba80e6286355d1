package memzk

import (
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// StopClock makes the time of sessions and containers stand still, or ends that. What
// has become due meanwhile happens before StopClock returns.
func (s *Server) StopClock(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = on
	s.runDue(time.Now())
	s.wakeClock()
}

// DropConnections closes the connections of clients that dialed one of the addresses,
// or all without one. Sessions live on.
func (s *Server) DropConnections(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if len(addrs) == 0 || slices.Contains(addrs, c.addr) {
			c.kill()
		}
	}
}

// Stop takes the server down: connections are dropped and refused, the tree and
// the sessions stay, and no session expires.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// stop needs Server.mu.
func (s *Server) stop() {
	s.down = true
	for c := range s.conns {
		c.kill()
	}
}

// Start ends Stop. As a real server that starts, it gives every session its
// whole timeout again.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	for _, sess := range s.sessions {
		s.touch(sess)
	}
	s.wakeClock()
}

// SetReadOnly makes the server one that has lost its majority and has
// readonlymode.enabled, or ends that. Connections are dropped each time. Meanwhile
// it takes new sessions alone, of clients that are content with it, refuses what
// changes something, and no session expires; afterwards the previous ones have their
// whole timeout again.
func (s *Server) SetReadOnly(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.kill()
	}
	s.readOnly = on
	for id, sess := range s.sessions {
		if sess.local {
			delete(s.sessions, id)
		}
		s.touch(sess)
	}
	s.wakeClock()
}

func (s *Server) refusesWrites(op int32) bool {
	refused := []int32{jute.OpSync, jute.OpSetData, jute.OpDelete, jute.OpSetACL, jute.OpMulti, jute.OpReconfig, jute.OpCheck, jute.OpClose}
	return s.readOnly && (jute.IsCreate(op) || slices.Contains(refused, op))
}

// Wipe drops all connections and forgets tree, sessions and zxid: another,
// empty server stands in the place of this one.
func (s *Server) Wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.kill()
	}
	clear(s.sessions)
	clear(s.lagging)
	s.primary = newReplica(newTree(), s.opts.since("3.9.3"))
	s.wakeClock()
}
