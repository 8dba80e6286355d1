package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
)

// A server that has lost its majority can still serve reads, if readonlymode.enabled is
// set. It accepts no session of the ensemble, only new sessions of its own, which end
// with their connection. So with Config.ReadOnly, a Manager that finds no other server
// parks its session and gives out a session of a read-only server. When a server has a
// majority again, the Manager ends that session and resumes the parked one, as after a
// restart of the process. The parked session still lives, because the new leader gives
// every session its whole timeout.
//
// Guaranteed: in a read-only session writes and Sync wait, as they do without a
// connection. It has no lease. The parked session is not lost by it. The Manager looks
// for a server with a majority all the time.
//
// Not guaranteed: that the data is current.

// seekPause is the pause between two looks for a server with, or without, a majority.
const seekPause = 2 * time.Second

// seekWriter asks the other servers until one has a majority. Then it ends the session
// of the read-only server.
func (h *hosts) seekWriter(w *wire) {
	for pace.Sleep(w.life, seekPause/2+rand.N(seekPause)) { //nolint:gosec // spreads load, no secret
		if server := h.find(func(mode string) bool { return mode != readOnlyMode }); server != "" {
			_ = h.s.leaveReader(server)
			return
		}
	}
}

// leaveReader ends a session of a read-only server.
func (s *Session) leaveReader(server string) error {
	err := fmt.Errorf("%w: %s has a majority again", ErrClosed, server)
	s.end(Closed, err)
	return err
}

// readOnlyMode is the name of the mode that a server without a majority reports.
const readOnlyMode = "read-only"

// find returns the first server whose mode fits. ZooKeeper answers srvr, whatever its
// list of allowed words says. A proxy may not: then only a server with a majority accepts
// a new session, and its mode is "".
func (h *hosts) find(fits func(mode string) bool) string {
	for _, server := range locked(&h.s.mu, &h.servers) { // never changed in place
		answer, _ := h.askWord(h.ctx, server)
		_, mode, found := strings.Cut(answer, "Mode: ")
		if mode, _, _ = strings.Cut(mode, "\n"); !found {
			found = strings.Contains(answer, "is not executed") && h.welcomes(server)
		}
		if found && fits(mode) {
			return server
		}
	}
	return ""
}

// lack returns a channel that is closed when the session has had no server for its
// timeout, and one of the servers is read-only. For a session that was parked before, a
// moment without a server is enough.
func (m *Manager) lack(ctx context.Context, s *Session, ended *sync.WaitGroup) <-chan struct{} {
	if !m.parks || s.reader.Load() {
		return nil
	}
	patience := s.Timeout()
	if m.waiting != nil {
		patience = seekPause
	}
	found := make(chan struct{})
	ended.Go(func() {
		for s.Sleep(ctx, seekPause) == nil {
			s.mu.Lock()
			away := s.cur == nil && s.id != 0 && time.Since(s.since) >= patience
			s.mu.Unlock()
			if away && s.hosts.find(func(mode string) bool { return mode == readOnlyMode }) != "" {
				close(found)
				return
			}
		}
	})
	return found
}

// park ends a session in this process, and keeps what is needed to resume it.
func (m *Manager) park(s *Session) {
	p := s.saved()
	if s.end(Closed, fmt.Errorf("%w: %w", ErrClosed, ErrReadOnly)) {
		m.waiting, m.reading = &p, true
	}
}

// unpark returns the session to try next while one is parked: first a session of a
// read-only server, and after its end the parked one.
func (m *Manager) unpark(s *Session) *Session {
	if m.reading {
		m.reading = false
		s.reader.Store(true)
		return s
	}
	s.resume(m.waiting)
	return s
}
