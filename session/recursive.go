package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/jute"
)

// RecursiveWatch is for internal use and may change. It watches a znode and all znodes
// below it with one persistent recursive watch of the server (addWatch, from 3.6 on). We
// call it a cover. It has no events itself. On its connection it replaces the server
// watches of GetW, ExistsW and EachManyW at and below its path. Lists of children always
// have a server watch of their own: a server may hide from a recursive watch the creation
// of a znode that the session may not read.
//
// A cover ends with its connection. On the next connection the session sets the watches
// one by one.
//
// Why no event is lost: a watch relies on a cover (is "soft") only if the cover's reply
// came before the watch's request was sent on the same connection. Before 3.9 a server
// holds one watch per path and table, the latest. So no data watch may be set at the path
// of a cover. If one was already under way, the session gives the cover up, as it does
// with a released one: it sets the watches that relied on the cover one by one, as of a
// zxid up to which the cover has reported all events.
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

// WatchRecursive is for internal use. It watches the subtree at path, or adds a user to
// its cover. If the server does not know addWatch, or refuses it, the error matches
// ErrUnimplemented. Each server is asked only once.
func (s *Session) WatchRecursive(ctx context.Context, path string) (*RecursiveWatch, error) {
	r, err := s.newRequest(jute.OpAddWatch, path, []any{jute.AddWatchPersistentRecursive})
	if err != nil {
		return nil, err
	}
	for losses := 0; ; losses++ {
		s.calm(ctx, losses)
		w, err := s.connection(ctx, false)
		if err != nil {
			return nil, r.fail(err)
		}
		if w.able.refuses(jute.OpAddWatch) || w.able.refuses(jute.OpMultiRead) {
			return nil, r.fail(ErrUnimplemented)
		}
		c, first := s.watches.cover(s, w, full(s.cfg.Chroot, path))
		if !first {
			return c, nil
		}
		switch err = s.addCover(ctx, r, c); {
		case err == nil:
			return c, nil
		case !errors.Is(err, errLost):
			return nil, err
		}
	}
}

// addCover sends the request for a cover and waits for its reply.
func (s *Session) addCover(ctx context.Context, r *request, c *RecursiveWatch) error {
	zxid := s.zxid.Load() // What the server has applied, or the connection has ended.
	q := &call{op: r.op, frame: r.frame, done: make(chan struct{})}
	q.after = func(code int32) {
		s.watches.mu.Lock()
		defer s.watches.mu.Unlock()
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

// Live reports whether reads below the path work without their own server watches. It may be
// called on nil.
func (c *RecursiveWatch) Live() bool {
	if c == nil {
		return false
	}
	b := c.s.watches
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.live
}

// Release gives the cover up. The Release of the last user removes it from the server.
// Each user must call it once. It may be called on nil. Other watches below the path
// stay.
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
	// Hold the lock, so that no other request for a cover of the path comes between.
	zxid := c.s.zxid.Load()
	b.uncover(c, zxid)
	c.w.send(&call{
		op: jute.OpRemoveWatches, done: make(chan struct{}),
		frame: newFrame(jute.OpRemoveWatches, c.path, jute.WatcherAny),
		// The removal also removed all watches that were set at the path before.
		after: func(int32) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.set(zxid, []string{c.path}, everyKind, c.w.send)
		},
	})
}

// WatchChildren is for internal use. It sets server watches on the lists of children of
// znodes whose EachManyW watches rely on a cover. Call it before reading those lists. The
// error matches ErrUnimplemented when the server refuses.
func (s *Session) WatchChildren(ctx context.Context, watches []*Watch) error {
	r := &request{op: jute.OpSetWatches}
	w, err := s.connection(ctx, false)
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
		if err := codeError(c.code); err != nil {
			return r.fail(fmt.Errorf("%w: %w", ErrUnimplemented, err))
		}
	}
	return nil // The next connection sets what was not sent, with all others.
}
