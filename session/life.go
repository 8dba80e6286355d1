package session

import (
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// shutdown ends the session from our side. It closes the session on the server too,
// unless it hands the session over.
func (s *Session) shutdown(handOver bool) error {
	s.mu.Lock()
	w := s.cur
	s.mu.Unlock()
	if !s.end(Closed, ErrClosed) {
		return nil
	}
	if w != nil && !handOver {
		s.sayGoodbye(w)
	}
	return nil
}

// sayGoodbye asks the server to end the session, and waits briefly for the reply.
func (s *Session) sayGoodbye(w *wire) {
	c := &call{op: jute.OpClose, frame: newFrame(jute.OpClose), done: make(chan struct{})}
	if !w.send(c) {
		return
	}
	t := time.NewTimer(min(max(s.Timeout()/3, minHandshake), maxHandshake))
	defer t.Stop()
	select {
	case <-c.done:
	case <-t.C:
	}
}

// run connects again and again until the session ends. It reads in this goroutine.
func (s *Session) run() {
	for s.ctx.Err() == nil {
		if w := s.hosts.dial(); w != nil {
			w.read()
		}
	}
}

// finish ends the connection and waits for all goroutines of the session.
func (s *Session) finish() {
	s.hosts.cancel()
	s.mu.Lock()
	w := s.dialed
	s.cur = nil
	s.mu.Unlock()
	if w != nil {
		w.detach()
	}
	s.hosts.writers.Wait()
	s.cleanups.Wait()
	s.watches.end()
}
