package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The lease says until when this process may act on what it holds in ZooKeeper.
//
// A server ends a session when it has heard nothing for T. It has certainly heard a
// request that it answered, and no later than that no earlier than the request was
// sent: so the session lives at least until T after the send time of the newest
// answered request. The lease is 2/3 T after it, which leaves T/3 to stop what runs.
// A pause of the process between the check and the act remains: fencing tokens are
// for that.
//
// Go's clock stops while the machine sleeps, and the server's does not. So the time
// slept counts: what is kept here are times by clock, and what is told are times by
// time.Now, as of now.

// clock returns the present time by a clock that goes on while the machine sleeps.
func (s *Session) clock() time.Time { return time.Now().Add(s.cfg.slept()) }

// awake returns when by time.Now it was or will be t by clock, if the machine does
// not sleep from now on.
func (s *Session) awake(t time.Time) time.Time { return t.Add(-s.cfg.slept()) }

// asleep is how long the machine had slept when the process began. It is the same
// for all sessions.
var asleep = sleepOfMachine()

// slept returns how long the machine has slept since the process began. It is exactly
// zero where it never did, so that it does not disturb the clock of a test.
func slept() time.Duration {
	return max(sleepOfMachine()-asleep, 0).Truncate(time.Millisecond)
}

// sleepOfMachine is the difference of the clock that goes on during sleep and the one
// that stops: less by the time between the two readings, and never more.
func sleepOfMachine() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(clockAlways, &boot) != nil || unix.ClockGettime(clockAwake, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}

// heard notes that a request sent at `at`, by clock, was answered. It runs in the reader.
func (s *Session) heard(at time.Time, zxid int64) {
	n := int64(at.Sub(s.epoch))
	for {
		old := s.answer.Load()
		if n <= old || s.answer.CompareAndSwap(old, n) {
			break
		}
	}
	if zxid > s.zxid.Load() { // one reader at a time
		s.zxid.Store(zxid)
	}
}

// heard notes an answer that came by this connection. That of a read-only server
// says nothing about the session.
func (w *wire) heard(at time.Time, zxid int64) {
	if w.readOnly.Load() {
		at = w.s.epoch
	}
	w.s.heard(at, zxid)
}

// LastAnswer returns the send time of the newest request that was answered; zero
// before the first.
func (s *Session) LastAnswer() time.Time {
	n := s.answer.Load()
	if n == 0 {
		return time.Time{}
	}
	return s.awake(s.epoch.Add(time.Duration(n)))
}

// Lease returns the time until which what this session owns may be acted upon: 2/3
// of the timeout after the send time of the newest answered request. Zero before
// the first connection.
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
// function frees what it holds.
func (s *Session) WithLease(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	g := &leaseGuard{s: s, cancel: cancel}
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	g.check()
	return ctx, func() {
		stop()
		g.stop()
		cancel(context.Canceled)
	}
}

// leaseGuard cancels when the lease has run out. Its timer is set to the end of the
// lease as last seen, so that answers cost nothing, but to no more than a second:
// timers stop while the machine sleeps.
type leaseGuard struct {
	s      *Session
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	done  bool
}

func (g *leaseGuard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done {
		return
	}
	left := time.Until(g.s.Lease())
	switch {
	case left <= 0:
		g.done = true
		g.cancel(fmt.Errorf("%w: nothing heard from a server for 2/3 of the session timeout", ErrSuspended))
	case g.timer == nil:
		g.timer = time.AfterFunc(min(left, time.Second), g.check)
	default:
		g.timer.Reset(min(left, time.Second))
	}
}

func (g *leaseGuard) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
	if g.timer != nil {
		g.timer.Stop()
	}
}
