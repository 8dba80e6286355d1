package recipe

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/session"
)

// revokeData is what a requester writes into the znode of a holder that is
// asked to give back (Apache Curator, "Shared Reentrant Lock", Revoking).
const revokeData = "__REVOKE__"

// Hold is something held: a lock, a permit, a place. It is held until Release,
// or until its context ends with the cause: ErrReleased, ErrLost (its znode is
// gone), session.ErrSuspended (the lease ran out while the connection was
// gone), session.ErrExpired or session.ErrClosed. Work that needs the hold
// runs under its Context; a hold that was lost is still to be released, which
// deletes what may be left of it.
//
// A paused process can act after the lease ended and before it looks at its
// context. What must be protected from that takes the [Hold.Fence], or writes
// in one multi with the [Hold.Guard].
type Hold struct {
	s       *session.Session
	path    string
	fence   int64
	fixed   bool            // others may use the name of our znode, too
	ctx     context.Context // what is held is a context
	cancel  context.CancelCauseFunc
	end     context.CancelFunc
	watched chan struct{} // closed when the watcher has returned
	revoked chan struct{} // closed when a requester asks for it back
	// finished tells the first Release from later ones.
	finished atomic.Bool
}

// heldKey marks the context of a hold, so that waiting for oneself is seen.
type heldKey struct{}

// held is the chain of what is held by the caller of a context.
type held struct {
	path   string
	shared bool
	s      *session.Session
	outer  *held
}

// holdOptions tells how a znode of ours is held.
type holdOptions struct {
	shared bool
	fixed  bool
	// now sets the watch on our own znode at once. Otherwise it is set when
	// the hold has lasted a sixth of the session timeout: a short hold then
	// costs no request of its own.
	now bool
	// seen is a watch on our own znode that is set already; nil: none.
	seen *session.Watch
	// disputed returns a KindError while somebody contends at the path who does not
	// see our znode; nil: that cannot be.
	disputed func(context.Context) error
}

// newHold begins to hold a znode of ours whose turn it is. The hold does not
// end with ctx, of which it keeps the values only.
func newHold(ctx context.Context, s *session.Session, dir, path string, fence int64, opts holdOptions) *Hold {
	outer, _ := ctx.Value(heldKey{}).(*held)
	leased, end := s.WithLease(context.WithValue(context.WithoutCancel(ctx), heldKey{}, &held{dir, opts.shared, s, outer}))
	own, cancel := context.WithCancelCause(leased)
	h := &Hold{
		s: s, path: path, fence: fence, fixed: opts.fixed, ctx: own, cancel: cancel, end: end,
		watched: make(chan struct{}), revoked: make(chan struct{}),
	}
	go func() {
		defer close(h.watched)
		h.watch(opts)
	}()
	return h
}

// waitsForItself returns an error when the caller of ctx holds dir already.
func waitsForItself(ctx context.Context, s *session.Session, dir string, shared bool) error {
	h, _ := ctx.Value(heldKey{}).(*held)
	for ; h != nil; h = h.outer {
		if h.path != dir || h.s != s {
			continue
		}
		if h.shared && !shared {
			return fmt.Errorf("lock %s: %w", dir, ErrUpgrade)
		}
		return fmt.Errorf("lock %s: %w", dir, ErrReentrant)
	}
	return nil
}

// Context ends, with a cause, when the hold does.
func (h *Hold) Context() context.Context { return h.ctx }

// Fence is the fencing token: the czxid of our znode. It grows from holder to
// holder, so that a resource that remembers the largest one it has seen can
// refuse a holder of the past.
func (h *Hold) Fence() int64 { return h.fence }

// Path returns the path of our znode.
func (h *Hold) Path() string { return h.path }

// Guard is the operation that makes a multi fail when the hold is gone.
func (h *Hold) Guard() session.Op { return session.CheckOp(h.path, -1) }

// Revoked is closed when somebody asks for it back. Only revocable locks are.
func (h *Hold) Revoked() <-chan struct{} { return h.revoked }

// Err returns nil while it is held, otherwise the cause of its end.
func (h *Hold) Err() error { return context.Cause(h.ctx) }

// Release gives it back: its context ends and its znode is deleted. It returns
// an error that matches ErrNotHeld when it had been lost or given back before,
// and the error of the delete when ctx ended first, or when nothing was heard of
// ZooKeeper for a session timeout; the delete then goes on in the background for
// as long as the session lives. A deferred Release may therefore run under
// context.WithoutCancel(ctx).
func (h *Hold) Release(ctx context.Context) error {
	cause := context.Cause(h.ctx)
	if !h.finish() {
		return fmt.Errorf("release %s: %w", h.path, ErrNotHeld)
	}
	ctx, cancel := h.bound(ctx)
	defer cancel()
	err := h.remove(ctx)
	switch {
	case cause != nil:
		return fmt.Errorf("release %s: %w: %w", h.path, ErrNotHeld, cause)
	case err != nil:
		return fmt.Errorf("release %w", err)
	}
	return nil
}

// bound ends the wait of a Release when the session can have ended without our
// knowledge: T after the newest answer, but not before a sixth of T from now.
// So a deferred Release under a context without an end does not wait for as long
// as ZooKeeper is away.
func (h *Hold) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	end := h.s.LastAnswer().Add(h.s.Timeout())
	if least := time.Now().Add(h.s.Timeout() / 6); end.Before(least) {
		end = least
	}
	return context.WithDeadlineCause(ctx, end, session.ErrSuspended)
}

// Keep ends the hold and leaves its znode standing, for a successor in the same
// session: another process that takes the session over, or a later term.
func (h *Hold) Keep() { h.finish() }

// finish ends the context and waits for the watcher. Only the first caller is
// told true: it deletes the znode.
func (h *Hold) finish() bool {
	first := h.finished.CompareAndSwap(false, true)
	h.cancel(ErrReleased)
	h.end()
	<-h.watched
	return first
}

// remove deletes our znode, and goes on in the background when ctx ends.
func (h *Hold) remove(ctx context.Context) error {
	remove := func(ctx context.Context) error {
		if h.fixed {
			return removeExactly(ctx, h.s, h.path, h.fence)
		}
		return removeOwn(ctx, h.s, h.path)
	}
	err := remove(ctx)
	if err != nil {
		inBackground(h.s, remove)
	}
	return err
}

// watch follows our own znode: that it is still there and ours after each
// reconnect (rule "own it before you believe it"), and what requesters write
// into it. It returns when the hold ends.
func (h *Hold) watch(opts holdOptions) {
	d := dispute{look: opts.disputed, confirm: h.s.Timeout() / 3}
	if opts.now {
		d.next = time.Now().Add(h.s.Timeout() / 6)
	}
	watch := opts.seen
	if watch == nil && !opts.now && !h.ripen() {
		return
	}
	for {
		if watch == nil {
			var err error
			if watch, err = h.look(); err != nil {
				h.cancel(err)
				return
			}
		}
		if err := d.check(h.ctx); err != nil {
			watch.Stop()
			h.cancel(err)
			return
		}
		_, err := watch.WaitFor(h.ctx, d.wait())
		watch.Stop()
		if err != nil {
			return
		}
		watch = nil
	}
}

// dispute looks now and then whether a client that does not see our znode holds the
// same: Curator's locks look only at contenders of their own kind. One of ours that is
// refused stands there for a moment, so a sighting is confirmed.
type dispute struct {
	look    func(context.Context) error // nil: there can be none
	confirm time.Duration
	next    time.Time // when to look
	child   string    // that was seen the last time
}

// check returns why what is held is disputed; nil: it is not, as far as is known.
func (d *dispute) check(ctx context.Context) error {
	if d.look == nil || time.Now().Before(d.next) {
		return nil
	}
	seen := ""
	d.next = time.Now().Add(session.RecheckAfter())
	if kind, ok := errors.AsType[*KindError](d.look(ctx)); ok {
		if kind.Child == d.child {
			return kind
		}
		seen, d.next = kind.Child, time.Now().Add(d.confirm)
	}
	d.child = seen
	return nil
}

// wait is how long it is until something is looked at without an event.
func (d *dispute) wait() time.Duration {
	again := session.RecheckAfter()
	if d.look == nil {
		return again
	}
	return max(min(again, time.Until(d.next)), time.Millisecond) // 0 would be no limit
}

// ripen waits until the hold is worth a watch: it has lasted a while, or the
// connection is another one. False means that it has ended.
func (h *Hold) ripen() bool {
	connection := h.s.Connection()
	timer := time.NewTimer(h.s.Timeout() / 6)
	defer timer.Stop()
	for {
		changed := h.s.Changed()
		if h.s.Connection() != connection {
			return true
		}
		select {
		case <-h.ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-changed:
		}
	}
}

// look reads our znode with a watch. Its error is the cause of the loss.
func (h *Hold) look() (*session.Watch, error) {
	data, stat, watch, err := h.s.GetW(h.ctx, h.path)
	if errors.Is(err, session.ErrNoAuth) {
		var exists bool
		if stat, exists, watch, err = h.s.ExistsW(h.ctx, h.path); err == nil && !exists {
			watch.Stop()
			return nil, ErrLost
		}
	}
	switch {
	case errors.Is(err, session.ErrNoNode):
		return nil, ErrLost
	case err != nil:
		return nil, err
	case stat.EphemeralOwner != h.s.ID() || stat.Czxid != h.fence:
		watch.Stop()
		return nil, ErrLost
	}
	if string(data) == revokeData {
		select {
		case <-h.revoked:
		default:
			close(h.revoked)
		}
	}
	return watch, nil
}
