package session

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// State is the state of a session.
type State int32

// States of a session. In Suspended the server may still have the session, but we cannot
// ask it.
const (
	Connecting State = iota // not yet a session
	Connected
	Suspended // connection lost; the session may live or not
	Expired   // the server has ended it
	Closed    // we have ended it, or handed it over
	ReadOnly  // connected to a server without a majority, which reads can ask
)

var stateNames = [...]string{"connecting", "connected", "suspended", "expired", "closed", "read-only"}

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("state %d", int32(s))
	}
	return stateNames[s]
}

// locked returns the value at p, which mu guards.
func locked[T any](mu *sync.Mutex, p *T) T {
	mu.Lock()
	defer mu.Unlock()
	return *p
}

// State returns the current state.
func (s *Session) State() State { return locked(&s.mu, &s.state) }

// Changed returns a channel that is closed at the next change of state or connection. To
// miss no change, call Changed before State.
func (s *Session) Changed() <-chan struct{} { return locked(&s.mu, &s.changed) }

// setState moves to st and wakes all waiters. s.mu is held.
func (s *Session) setState(st State) {
	s.state, s.since = st, time.Now()
	s.met.State(st)
	s.wake()
}

// wake wakes all waiters for a change. s.mu is held.
func (s *Session) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// connection waits for an open connection. For a write it waits for a server that
// accepts writes.
func (s *Session) connection(ctx context.Context, write bool) (*wire, error) {
	for {
		w, changed, err := s.connectionNow(ctx, write)
		if w != nil || err != nil {
			return w, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if last := s.lastError(); last != nil {
				return nil, fmt.Errorf("%w: %w: %w", context.Cause(ctx), ErrNoServer, last)
			}
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), ErrNoServer)
		}
	}
}

// connectionNow returns the open connection, or an error when there will be no further
// connection. Otherwise it returns a channel that is closed when that changes.
func (s *Session) connectionNow(ctx context.Context, write bool) (*wire, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.endCause != nil:
		return nil, nil, s.endCause
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case write && s.cur != nil && s.cur.readOnly.Load():
		return nil, s.changed, nil
	}
	return s.cur, s.changed, nil
}

func (s *Session) cause() error { return locked(&s.mu, &s.endCause) }

// end ends the session. Only the first call counts. The context ends before the server
// hears of the end, so that holders learn of it first.
func (s *Session) end(st State, cause error) bool {
	s.mu.Lock()
	if s.endCause != nil {
		s.mu.Unlock()
		return false
	}
	s.endCause = cause
	w := s.dialed
	if st == Expired {
		s.cur = nil
	}
	s.setState(st)
	s.mu.Unlock()
	s.cancel(cause)
	if st == Expired && w != nil {
		w.detach()
	}
	return true
}

func (s *Session) expire(why string) {
	switch {
	case !s.end(Expired, fmt.Errorf("%w: %s", ErrExpired, why)):
	case s.Connection() == 0: // it was the previous process's
		s.log.Info("session of the previous process is gone", "session", hexID(s.ID()), "why", why)
	default:
		s.met.Expired()
		s.log.Warn("session expired", "session", hexID(s.ID()), "why", why)
	}
}
