package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// usable returns why no request about path can be sent.
func (s *Session) usable(path string) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return ValidatePath(path)
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

// The lease says until when this process may act on what it holds in ZooKeeper.
//
// A server ends a session when it has heard nothing for T. It has heard every request
// that it answered, and it heard the request after it was sent. So the session lives at
// least until T after the send time of the latest answered request. The lease ends
// 2/3 T after that time, which leaves T/3 to stop the work. A process may still pause
// between the check and the act: fencing tokens are for that.
//
// Go's clock stops while the machine sleeps, but the server's does not. So the session
// adds the time slept: it stores times by clock, and returns times by time.Now, as of
// now.

// clock returns the current time by a clock that also runs while the machine sleeps.
func (s *Session) clock() time.Time { return time.Now().Add(s.cfg.slept()) }

// awake converts t from clock to time.Now, if the machine does not sleep from now on.
func (s *Session) awake(t time.Time) time.Time { return t.Add(-s.cfg.slept()) }

// asleep is how long the machine had slept when the process began. It is the same
// for all sessions.
var asleep = sleepOfMachine()

// slept returns how long the machine has slept since the process began. It is exactly
// zero where it never did, so that it does not disturb the clock of a test.
func slept() time.Duration {
	return max(sleepOfMachine()-asleep, 0).Truncate(time.Millisecond)
}

// sleepOfMachine returns the difference between the clock that runs during sleep and
// the one that stops. It may be too small by the time between the two readings, and
// never too large.
func sleepOfMachine() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(clockAlways, &boot) != nil || unix.ClockGettime(clockAwake, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}

// freshZxid is how long the latest zxid that a session has seen counts as current.
const freshZxid = 100 * time.Millisecond

// zxidIsFresh reports whether the session has seen nearly everything that the server has
// applied.
func (s *Session) zxidIsFresh() bool {
	n := s.zxidAt.Load()
	return n != 0 && s.clock().Sub(s.epoch)-time.Duration(n) < freshZxid
}

// heard notes the answer on this connection to a request that was sent at `at`, by clock. It
// runs in the reader. The answer of a read-only server says nothing about the session.
func (w *wire) heard(at time.Time, zxid int64) {
	s := w.s
	if w.readOnly.Load() {
		at = s.epoch
	}
	n := int64(at.Sub(s.epoch))
	for {
		old := s.answer.Load()
		if n <= old || s.answer.CompareAndSwap(old, n) {
			break
		}
	}
	if zxid > 0 { // one reader at a time
		s.zxid.Store(max(zxid, s.zxid.Load()))
		s.zxidAt.Store(n)
	}
}

// LastAnswer returns the send time of the latest answered request. It is zero before
// the first answer.
func (s *Session) LastAnswer() time.Time {
	n := s.answer.Load()
	if n == 0 {
		return time.Time{}
	}
	return s.awake(s.epoch.Add(time.Duration(n)))
}

// Lease returns the time until which the process may act on this session's znodes: 2/3
// of the timeout after it sent the latest answered request. It is zero before the first
// connection.
func (s *Session) Lease() time.Time {
	at := s.LastAnswer()
	if at.IsZero() {
		return at
	}
	return at.Add(s.Timeout() * 2 / 3)
}

// Held reports whether the lease runs and the session has not ended.
func (s *Session) Held() bool {
	return s.ctx.Err() == nil && time.Now().Before(s.Lease())
}

// WithLease returns a context that ends with ctx, with the session (and its cause),
// and when the lease runs out, with a cause that matches ErrSuspended. The cancel
// function releases its resources.
func (s *Session) WithLease(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	out := func() bool {
		switch {
		case s.ctx.Err() != nil:
			cancel(context.Cause(s.ctx))
		case time.Now().Before(s.Lease()):
			return false
		default:
			cancel(fmt.Errorf("%w: nothing heard from a server for 2/3 of the session timeout", ErrSuspended))
		}
		return true
	}
	guard := func() {
		// Answers move the end of the lease. Timers stop while the machine sleeps, so it
		// looks again after a second.
		for !out() && ctx.Err() == nil {
			_ = s.Sleep(ctx, min(time.Until(s.Lease()), time.Second))
		}
	}
	if !out() && !s.background(guard) {
		cancel(s.cause())
	}
	return ctx, func() { cancel(context.Canceled) }
}
