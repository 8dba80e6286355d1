package memzk

import (
	"crypto/rand"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
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

// openSession makes a session; that is a transaction. No earlier server has used its id:
// the time in the upper bytes, as ZooKeeper does, and a count.
func (s *Server) openSession(wanted time.Duration) *session {
	id := 1<<56 | int64(uint64(time.Now().UnixMilli()<<24)>>8) + sessionCount.Add(1)
	sess := &session{id: id, password: make([]byte, 16), timeout: s.clamp(wanted)}
	_, _ = rand.Read(sess.password)
	s.sessions[sess.id] = sess
	s.touch(sess)
	if sess.local = s.readOnly; !sess.local {
		s.commit(nil)
	}
	pace.Notify(s.wake)
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

// ExpireSession ends a session now, as if the server had not heard of it for its
// timeout. It reports whether there was one.
func (s *Server) ExpireSession(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		return false
	}
	s.expireSession(sess)
	return true
}

// expireSession is closeSession for one that did not ask for it.
func (s *Server) expireSession(sess *session) {
	s.opts.Logger.Info("session expired", "session", sess.id)
	s.closeSession(sess)
	if sess.conn != nil {
		sess.conn.end()
	}
}

// clock expires sessions and reaps containers until the server closes. It
// wakes only when one of them is due, so that hours cost little.
func (s *Server) clock() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		next := s.runDue(time.Now())
		s.mu.Unlock()
		timer.Reset(next)
	}
}

// runDue does what is due and returns the time until the next thing is.
func (s *Server) runDue(now time.Time) time.Duration {
	if s.frozen || s.down || s.readOnly {
		return time.Hour // StopClock, Start and SetReadOnly wake the clock.
	}
	if !now.Before(s.nextReap) {
		s.reap(now)
		s.nextReap = now.Add(s.opts.ContainerInterval)
	}
	next := s.nextReap
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		sess := s.sessions[id]
		if !sess.deadline.After(now) {
			s.expireSession(sess)
		} else if sess.deadline.Before(next) {
			next = sess.deadline
		}
	}
	return max(next.Sub(now), time.Millisecond)
}

// reap deletes containers that have had children and have none, and TTL znodes
// that have none and were not changed for their time. Each is a transaction.
func (s *Server) reap(now time.Time) {
	t := s.primary.tree
	for _, path := range slices.Sorted(maps.Keys(t.reapable)) {
		n := t.nodes[path]
		if len(n.children) > 0 {
			continue
		}
		if isTTL(n.owner) && now.UnixMilli()-n.mtime <= n.owner&^ownerTTLMask || n.owner == ownerContainer && n.cversion == 0 {
			continue
		}
		s.commit([]step{{op: jute.OpDelete, path: path}})
	}
}
