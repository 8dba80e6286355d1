package session

import (
	"context"
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
	var c *RecursiveWatch
	r.needs = jute.OpMultiRead
	r.calls = func(w *wire) []*call {
		var first bool
		if c, first = s.watches.cover(s, w, full(s.cfg.Chroot, path)); !first {
			return nil
		}
		zxid := s.zxid.Load() // What the server has applied, or the connection has ended.
		added, q := c, newCall(r.op, r.frame)
		q.after = func(code int32) {
			if code != jute.ErrCodeOK && code != jute.ErrCodeThrottled {
				w.able.refuse(jute.OpAddWatch)
			}
			s.watches.covered(added, zxid, code == jute.ErrCodeOK)
		}
		return []*call{q}
	}
	if _, err = s.exchange(ctx, r); err == nil {
		return c, nil
	}
	c.Release() // also when ctx has ended before the reply
	if c != nil && c.w.able.refuses(jute.OpAddWatch) {
		err = fmt.Errorf("%w: %w", ErrUnimplemented, err)
	}
	return nil, err
}

// Live reports whether reads below the path work without their own server watches. It may be
// called on nil.
func (c *RecursiveWatch) Live() bool {
	return c != nil && locked(&c.s.watches.mu, &c.live)
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
	removal := newCall(jute.OpRemoveWatches, newFrame(jute.OpRemoveWatches, c.path, jute.WatcherAny))
	removal.after = func(int32) { // it also removed all watches that were set at the path before
		b.mu.Lock()
		defer b.mu.Unlock()
		b.set(zxid, []string{c.path}, everyKind, c.w.send)
	}
	c.w.send(removal)
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
		if err := awaitAll(ctx, c); err != nil {
			return r.fail(err)
		}
		if c.err != nil {
			break
		}
		if err := codeError(c.code); err != nil {
			return r.fail(fmt.Errorf("%w: %w", ErrUnimplemented, err))
		}
	}
	return nil //nolint:nilerr // the next connection sets what was not sent, with all others
}
