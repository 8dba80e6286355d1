package memzk

import (
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

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

// wakeClock makes the clock look again, after something became due earlier.
func (s *Server) wakeClock() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// runDue does what is due and returns the time until the next thing is.
func (s *Server) runDue(now time.Time) time.Duration {
	if s.paused != nil || s.down || s.readOnly {
		return time.Hour // Resume, Start and SetReadOnly wake the clock.
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
		if isTTL(n.owner) && now.UnixMilli()-n.mtime <= ttlOf(n.owner) || n.owner == ownerContainer && n.cversion == 0 {
			continue
		}
		s.commit([]step{{op: jute.OpDelete, path: path}})
	}
}
