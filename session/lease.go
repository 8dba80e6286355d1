package session

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

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

// heard notes the answer to a request that was sent at `at`, by clock. It runs in the
// reader.
func (s *Session) heard(at time.Time, zxid int64) {
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

// freshZxid is for how long the latest zxid seen is taken for that of the server.
const freshZxid = 100 * time.Millisecond

// zxidIsFresh reports whether the latest zxid seen is hardly older than what the server
// has applied.
func (s *Session) zxidIsFresh() bool {
	n := s.zxidAt.Load()
	return n != 0 && s.clock().Sub(s.epoch)-time.Duration(n) < freshZxid
}

// heard notes an answer on this connection. The answer of a read-only server says
// nothing about the session.
func (w *wire) heard(at time.Time, zxid int64) {
	if w.readOnly.Load() {
		at = w.s.epoch
	}
	w.s.heard(at, zxid)
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

// Lease returns the end of the time in which the process may act on this session's znodes:
// 2/3 of the timeout after the send time of the latest answered request. It is zero
// before the first connection.
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
