package memzk

import (
	"crypto/rand"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

type session struct {
	id       int64
	password []byte
	timeout  time.Duration
	deadline time.Time // a multiple of the tick; then the session expires
	conn     *conn     // nil while disconnected
	local    bool      // of a read-only server: not of the ensemble
}

// sessionCount keeps ids of servers that start in the same instant apart, as
// they do in a bubble.
var sessionCount atomic.Int64

// newSessionID returns an id that no earlier server has used: the time in the
// upper bytes, as ZooKeeper does, and a count.
func newSessionID() int64 {
	ms := time.Now().UnixMilli()
	return 1<<56 | int64(uint64(ms<<24)>>8) + sessionCount.Add(1)
}

// openSession makes a session; that is a transaction.
func (s *Server) openSession(wanted time.Duration) *session {
	sess := &session{id: newSessionID(), password: make([]byte, 16), timeout: s.clamp(wanted)}
	_, _ = rand.Read(sess.password)
	s.sessions[sess.id] = sess
	s.touch(sess)
	if sess.local = s.readOnly; !sess.local {
		s.commit(nil)
	}
	s.wakeClock()
	return sess
}

func (s *Server) clamp(d time.Duration) time.Duration {
	return min(max(d, s.opts.MinTimeout), s.opts.MaxTimeout)
}

// touch moves the deadline: now and the timeout, rounded up to the next tick.
func (s *Server) touch(sess *session) {
	tick := s.opts.TickTime
	due := time.Since(s.started) + sess.timeout
	deadline := s.started.Add(due.Truncate(tick) + tick)
	if deadline.After(sess.deadline) {
		sess.deadline = deadline
	}
}

// closeSession ends a session and deletes its ephemerals in one transaction.
func (s *Server) closeSession(sess *session) {
	delete(s.sessions, sess.id)
	var steps []step
	for _, path := range slices.Sorted(maps.Keys(s.primary.tree.ephemerals[sess.id])) {
		steps = append(steps, step{op: jute.OpDelete, path: path})
	}
	s.commit(steps)
}

// expireSession is closeSession for one that did not ask for it.
func (s *Server) expireSession(sess *session) {
	s.opts.Logger.Info("session expired", "session", sess.id)
	s.closeSession(sess)
	if sess.conn != nil {
		sess.conn.end()
	}
}
