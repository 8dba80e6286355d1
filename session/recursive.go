package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/jute"
)

// RecursiveWatch is for internal use and may change. It watches a znode and all below
// it with one persistent recursive watch of the server (addWatch,
// recursive; servers from 3.6 on). It fires nothing itself: on its connection it
// stands in for the watches of GetW, ExistsW and GetManyW at and below its path,
// which then need none of their own. Lists that were read have their own always,
// because a server may keep the creation of a znode that the session may not
// read from a recursive watch.
//
// It ends with its connection: on the next one the watches are set one by one.
//
// Why nothing is lost: a watch relies on a cover (is "soft") only if the cover's
// reply came before its request was sent on the same connection. Before 3.9 a
// server holds one watch per path and table, the newest: at the path of a cover
// no data watch of its own may be set. Where one was under way already the cover
// is given up, as a released one is: what relied on it is set one by one, as of
// a zxid up to which the cover has told everything.
//
// Its methods may be called from any goroutine.
type RecursiveWatch struct {
	s    *Session
	w    *wire
	path string // the server's

	// Guarded by watchBook.mu.
	refs int
	live bool // the server has it
}

// WatchRecursive is for internal use. It watches the subtree at path, or adds a user to its cover. Servers that
// do not know addWatch, or have anything against it, give an error that matches
// ErrUnimplemented; each is asked once.
func (s *Session) WatchRecursive(ctx context.Context, path string) (*RecursiveWatch, error) {
	r := &request{op: jute.OpAddWatch, path: path}
	if err := ValidatePath(path); err != nil {
		return nil, r.fail(err)
	}
	p := full(s.cfg.Chroot, path)
	r.frame = newFrame(r.op, len(p)+8, func(e *jute.Encoder) {
		e.String(p)
		e.Int32(jute.AddWatchPersistentRecursive)
	})
	for losses := 0; ; losses++ {
		if losses > 3 {
			_ = s.Sleep(ctx, min(minBackoff<<min(losses-4, 10), maxBackoff))
		}
		w, err := s.connection(ctx)
		if err != nil {
			return nil, r.fail(err)
		}
		if w.able.refuses(jute.OpAddWatch) || w.able.refuses(jute.OpMultiRead) {
			return nil, r.fail(ErrUnimplemented)
		}
		c, first := s.watches.cover(s, w, p)
		if !first {
			return c, nil
		}
		switch err = s.ask(ctx, r, c); {
		case err == nil:
			return c, nil
		case !errors.Is(err, errLost):
			return nil, err
		}
	}
}

// ask sends the request for a cover and waits for its reply.
func (s *Session) ask(ctx context.Context, r *request, c *RecursiveWatch) error {
	zxid := s.zxid.Load() // What the server has applied, or the connection has ended.
	q := &call{op: r.op, frame: r.frame, done: make(chan struct{})}
	q.after = func(code int32) {
		if code != jute.ErrCodeOK {
			s.watches.uncover(c, zxid)
			return
		}
		s.watches.covered(c, zxid)
	}
	if !c.w.send(q) {
		return errLost
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		c.Release()
		return r.fail(context.Cause(ctx))
	}
	if q.err != nil {
		return q.err
	}
	putFrame(q.body)
	switch q.code {
	case jute.ErrCodeOK:
	case jute.ErrCodeThrottled:
		return r.fail(ErrThrottled)
	default:
		c.w.able.refuse(jute.OpAddWatch)
		return r.fail(fmt.Errorf("%w: code %d", ErrUnimplemented, q.code))
	}
	return nil
}

// Live reports whether reads below the path need no watches of their own. It may
// be called on nil.
func (c *RecursiveWatch) Live() bool {
	if c == nil {
		return false
	}
	b := c.s.watches
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.live
}

// Release gives the cover up; the last user's takes it off the server. It must be
// called once, and may be on nil. Watches that others have below stay.
func (c *RecursiveWatch) Release() {
	if c == nil {
		return
	}
	b := c.s.watches
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.refs--; c.refs > 0 || !slices.Contains(b.covers, c) {
		return
	}
	// Under the lock, so that no other cover of the path is asked for in between.
	zxid := c.s.zxid.Load()
	b.uncoverLocked(c, zxid)
	c.w.send(&call{
		op: jute.OpRemoveWatches, done: make(chan struct{}),
		frame: newFrame(jute.OpRemoveWatches, len(c.path)+8, func(e *jute.Encoder) {
			e.String(c.path)
			e.Int32(jute.WatcherAny)
		}),
		// It took away all that was set at the path before.
		after: func(int32) { b.rearm(c, zxid, everyKind) },
	})
}

// WatchChildren is for internal use. It makes watches of GetManyW that rely on a cover watch the lists of
// their znodes by themselves, which is wanted before these are read. An error
// that matches ErrUnimplemented means that the server refuses.
func (s *Session) WatchChildren(ctx context.Context, watches []*Watch) error {
	r := &request{op: jute.OpSetWatches}
	w, err := s.connection(ctx)
	if err != nil {
		return r.fail(err)
	}
	for _, c := range s.watches.lists(s.zxid.Load(), watches) {
		if !w.send(c) {
			break
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return r.fail(context.Cause(ctx))
		}
		if c.lost() {
			break
		}
		putFrame(c.body)
		if err := codeError(c.code); err != nil {
			return r.fail(fmt.Errorf("%w: %w", ErrUnimplemented, err))
		}
	}
	return nil // What was not sent is set with all others on the next connection.
}
