package recipe

import (
	"cmp"
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

// Hold is a lock, a permit or a place that we hold. It lasts until Release, or until
// its context ends. The cause is ErrReleased, ErrLost (its znode is gone),
// session.ErrSuspended (the lease ran out while the connection was gone),
// session.ErrExpired or session.ErrClosed. Run work that needs the hold under its
// Context. Release a lost hold too: that deletes the rest of it.
//
// A paused process can act after the lease ended and before it checks its context.
// To protect a resource from that, check the [Hold.Fence] there, or write in one
// multi with the [Hold.Guard].
type Hold struct {
	s        *session.Session
	path     string
	fence    int64
	czxid    int64           // of our znode
	fixed    bool            // other clients may use the name of our znode too
	ctx      context.Context // ends with the hold
	cancel   context.CancelCauseFunc
	end      context.CancelFunc
	watched  chan struct{} // closed when the watcher has returned
	revoked  chan struct{} // closed when a requester asks for it back
	finished atomic.Bool
}

// heldKey marks the context of a hold. With it a caller that would wait for itself
// gets an error.
type heldKey struct{}

// heldChain is the chain of the holds whose contexts enclose the caller's.
type heldChain struct {
	path   string
	shared bool
	s      *session.Session
	outer  *heldChain
}

// holdOptions says how a znode of ours is held.
type holdOptions struct {
	shared bool
	fence  int64 // of the hold that this one continues; 0: the czxid is the fence
	fixed  bool
	// now sets the watch on our own znode at once. Otherwise the watch is set
	// after a sixth of the session timeout, so a short hold costs no request for
	// it.
	now bool
	// seen is a watch on our own znode that is set already; nil: none.
	seen *session.Watch
	// disputed returns a KindError while a client that does not see our znode
	// contends at the path. It is nil where that cannot happen.
	disputed func(context.Context) error
}

// newHold begins to hold a znode of ours whose turn it is. The hold keeps the values
// of ctx, but does not end with it.
func newHold(ctx context.Context, s *session.Session, dir, path string, czxid int64, opts holdOptions) *Hold {
	outer, _ := ctx.Value(heldKey{}).(*heldChain)
	leased, end := s.WithLease(context.WithValue(context.WithoutCancel(ctx), heldKey{}, &heldChain{dir, opts.shared, s, outer}))
	own, cancel := context.WithCancelCause(leased)
	h := &Hold{
		s: s, path: path, czxid: czxid, fence: cmp.Or(opts.fence, czxid), fixed: opts.fixed, ctx: own, cancel: cancel, end: end,
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
	h, _ := ctx.Value(heldKey{}).(*heldChain)
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

// Context returns a context that ends with the hold, with a cause.
func (h *Hold) Context() context.Context { return h.ctx }

// Fence returns the fencing token: the czxid of our znode, or after a Downgrade of
// the writer's. It grows from holder to holder. A resource that remembers the largest token it has seen can refuse a
// previous holder.
func (h *Hold) Fence() int64 { return h.fence }

// Session returns the session of the hold. Work under the hold uses this one.
func (h *Hold) Session() *session.Session { return h.s }

// Path returns the path of our znode.
func (h *Hold) Path() string { return h.path }

// Guard returns an operation that makes a multi fail when the hold is gone.
func (h *Hold) Guard() session.Op { return session.CheckOp(h.path, -1) }

// Revoked is closed when another client asks us to release the lock. That happens
// only to revocable locks.
func (h *Hold) Revoked() <-chan struct{} { return h.revoked }

// Err returns nil during the hold, and the cause after its end.
func (h *Hold) Err() error { return context.Cause(h.ctx) }

// Release ends the hold: it ends the context and deletes the znode. It returns an
// error that matches ErrNotHeld when the hold was lost or released before. It returns
// the error of the delete when ctx ended first, or when ZooKeeper did not answer for
// a session timeout. The delete then continues in the background as long as the
// session lives. So a deferred Release may run under context.WithoutCancel(ctx).
func (h *Hold) Release(ctx context.Context) error {
	cause := context.Cause(h.ctx)
	if !h.finish() {
		return fmt.Errorf("release %s: %w", h.path, ErrNotHeld)
	}
	// The session may have ended without our knowledge T after the latest answer. Without
	// a bound, a deferred Release would wait until ZooKeeper is back.
	end, least := h.s.LastAnswer().Add(h.s.Timeout()), time.Now().Add(h.s.Timeout()/6)
	if end.Before(least) {
		end = least
	}
	ctx, cancel := context.WithDeadlineCause(ctx, end, session.ErrSuspended)
	defer cancel()
	err := h.delete(ctx)
	if err != nil {
		inBackground(h.s, h.delete)
	}
	switch {
	case cause != nil:
		return fmt.Errorf("release %s: %w: %w", h.path, ErrNotHeld, cause)
	case err != nil:
		return fmt.Errorf("release %w", err)
	}
	return nil
}

// Keep ends the hold and keeps its znode for a successor in the same session: another
// process that takes the session over, or a later term.
func (h *Hold) Keep() { h.finish() }

// finish ends the context and waits for the watcher. It returns true to the first
// caller only, which then deletes the znode.
func (h *Hold) finish() bool {
	first := h.finished.CompareAndSwap(false, true)
	h.cancel(ErrReleased)
	h.end()
	<-h.watched
	return first
}

func (h *Hold) delete(ctx context.Context) error {
	if h.fixed {
		return removeExactly(ctx, h.s, h.path, h.czxid)
	}
	return removeOwn(ctx, h.s, h.path)
}

// watch follows our own znode. After each reconnect it checks that the znode is still
// there and ours (rule "own it before you believe it"). It also notices what
// requesters write into the znode. It returns when the hold ends.
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

// dispute looks now and then for a client that holds the same lock and does not see
// our znode: Curator's locks look only at contenders of their own kind. A contender of
// ours that is refused exists for a moment, so dispute looks twice before it reports.
type dispute struct {
	look    func(context.Context) error // nil: there can be none
	confirm time.Duration
	next    time.Time // when to look
	child   string    // that was seen the last time
}

// check returns why the hold is disputed, or nil when it knows of no dispute.
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

// wait returns the time until the next look without an event.
func (d *dispute) wait() time.Duration {
	again := session.RecheckAfter()
	if d.look == nil {
		return again
	}
	return max(min(again, time.Until(d.next)), time.Millisecond) // 0 would be no limit
}

// ripen waits until the hold needs a watch: it has lasted a while, or the session has
// a new connection. It returns false when the hold has ended.
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
	data, watch, err := watchOwn(h.ctx, h.s, h.path, h.czxid)
	if err != nil {
		return nil, err
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
