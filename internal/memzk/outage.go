package memzk

import (
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

// StopClock makes the time of sessions and containers stand still, or ends that. What
// has become due meanwhile happens before StopClock returns.
func (s *Server) StopClock(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = on
	s.runDue(time.Now())
	pace.Notify(s.wake)
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
	pace.Notify(s.wake)
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
	pace.Notify(s.wake)
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
	pace.Notify(s.wake)
}

// Faults decides what goes wrong in a server. A test passes its own in Options. The
// server calls Arrive and Leave without a lock, and the other methods with its lock
// held: they must not call the server.
type Faults interface {
	// Refuse reports whether a client that dials addr is refused.
	Refuse(addr string) bool
	// Arrive waits until a packet of a client that dialed addr may be handled. request
	// is nil unless it is a request within a session. Arrive returns false when stop is
	// closed first.
	Arrive(addr string, request []byte, stop <-chan struct{}) bool
	// Leave waits until a packet may be sent to a client that dialed addr. It returns
	// false when stop is closed first.
	Leave(addr string, stop <-chan struct{}) bool
	// Strike returns what happens to a request. The body of a handshake is all of it.
	Strike(op int32, body []byte) Fault
	// LoseEvent reports whether a watch event for a client that dialed addr is lost.
	LoseEvent(addr string) bool
	// Queue counts bytes of replies that begin to wait for their client, or no longer
	// wait when the number is negative. It reports whether the server dies of them.
	Queue(bytes int) bool
	// Now is the time that stamps transactions.
	Now() time.Time
}

// Fault is what happens to one request. The zero value means that nothing goes wrong.
type Fault struct {
	Drop       bool      // the connection ends before the request is applied
	Lose       bool      // the request is applied, and the connection ends without a reply
	Close      bool      // the connection ends behind the reply to this handshake
	NewSession bool      // this handshake takes up no session: the old one ends, and it gets a new one
	Code       int32     // the error that refuses the request; 0 for none
	At         time.Time // before which the reply must not be sent
}

// noFaults is for a server that works.
type noFaults struct{}

func (noFaults) Refuse(string) bool                          { return false }
func (noFaults) Arrive(string, []byte, <-chan struct{}) bool { return true }
func (noFaults) Leave(string, <-chan struct{}) bool          { return true }
func (noFaults) Strike(int32, []byte) Fault                  { return Fault{} }
func (noFaults) LoseEvent(string) bool                       { return false }
func (noFaults) Queue(int) bool                              { return false }
func (noFaults) Now() time.Time                              { return time.Now() }
