package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// setWatchesSize bounds one setWatches request, unless the client or the server takes
// smaller ones only.
const setWatchesSize = 128 << 10

// renew sends the requests that set all armed watches on a new connection, one by one,
// until send returns false. limit bounds each. zxid is the latest that this session had
// seen when it connected: the server fires at once for all later changes. Every request
// carries that same value. The client library takes the latest zxid when it builds each
// packet, and so loses events between that zxid and the one at the connect.
func (b *watchBook) renew(zxid int64, limit int, send func(*call) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.covers {
		c.live = false
	}
	b.covers, b.limit = nil, limit
	return b.set(zxid, slices.Collect(maps.Keys(b.t)), everyKind, send)
}

// set sends the requests that set the armed watches of some paths, as of zxid, until send
// returns false. b.mu is held.
func (b *watchBook) set(zxid int64, paths []string, of kinds, send func(*call) bool) bool {
	var batch watchBatch
	for i, path := range paths {
		b.put(&batch, path, of)
		if size := batch.size(); size > b.limit || size > 0 && i == len(paths)-1 {
			if !send(b.setWatches(zxid, &batch)) {
				return false
			}
			for k := range batch.paths { // keep the memory for the next one
				batch.n[k] = 0
				batch.paths[k].Reset()
			}
		}
	}
	return true
}

// put adds the armed watches of one path to the batch. It does not add a data watch at
// the path of a cover, which would replace the cover: it fires those watches instead.
// b.mu is held.
func (b *watchBook) put(batch *watchBatch, path string, of kinds) {
	const data = 1<<watchData | 1<<watchExists
	if of&data != 0 && slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.path == path }) {
		of &^= data
		b.close(path, data, false)
	}
	armed := kinds(0)
	for w := range b.t.at(path) {
		if w.armed {
			armed |= w.live & of
			w.soft &^= of
		}
	}
	batch.put(armed, path)
}

// watchBatch is the content of a setWatches: for each kind the number of paths and the
// encoded paths.
type watchBatch struct {
	n     [watchChild + 1]int32
	paths [watchChild + 1]jute.Encoder
}

func (t *watchBatch) size() int {
	size := 0
	for i := range t.paths {
		size += t.paths[i].Len()
	}
	return size
}

func (t *watchBatch) put(of kinds, path string) {
	for k := range watchChild + 1 {
		if of.has(k) {
			t.n[k]++
			t.paths[k].String(path)
		}
	}
}

// setWatches returns the request that sets the watches of a batch. If the server refuses
// it, those watches fire.
func (b *watchBook) setWatches(zxid int64, t *watchBatch) *call {
	e := jute.NewEncoder(make([]byte, 4, t.size()+32))
	e.Put(int32(0), jute.OpSetWatches, zxid)
	for k := range t.paths {
		e.Int32(t.n[k])
		e.Raw(t.paths[k].Bytes())
	}
	frame := setLength(e.Bytes())
	return &call{
		op: jute.OpSetWatches, frame: frame, done: make(chan struct{}),
		after: func(code int32) {
			if code == jute.ErrCodeOK {
				return
			}
			d := jute.NewDecoder(frame[12:]) // behind length, xid and operation
			d.Int64()
			b.mu.Lock()
			defer b.mu.Unlock()
			for range watchChild + 1 {
				for _, p := range d.Strings() {
					b.close(p, everyKind, false)
				}
			}
		},
	}
}

// The methods of the watch book for covers.

// cover adds a user to the cover of a path on a connection, and makes the cover when it
// is missing. It reports whether the cover is new.
func (b *watchBook) cover(s *Session, w *wire, path string) (*RecursiveWatch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.coverAt(w, path); c != nil {
		c.refs++
		return c, false
	}
	c := &RecursiveWatch{s: s, w: w, path: path, refs: 1}
	b.covers = append(b.covers, c)
	return c, true
}

// covered notes the server's reply. Before 3.9 the cover has replaced the watch on the
// list at the path, so covered sets that one again.
func (b *watchBook) covered(c *RecursiveWatch, zxid int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ok {
		b.uncover(c, zxid)
		return
	}
	c.live = slices.Contains(b.covers, c)
	b.set(zxid, []string{c.path}, watchChild.set(), c.w.send)
}

// coverAt returns the cover at exactly this path on w, or nil. The cover may not be live
// yet. b.mu is held.
func (b *watchBook) coverAt(w *wire, path string) *RecursiveWatch {
	for _, c := range b.covers {
		if c.w == w && c.path == path {
			return c
		}
	}
	return nil
}

// coverOf returns the cover that replaces data watches at path on w, or nil. b.mu is
// held.
func (b *watchBook) coverOf(w *wire, path string) *RecursiveWatch {
	for _, c := range b.covers {
		if c.live && c.w == w && c.over(path) {
			return c
		}
	}
	return nil
}

func (b *watchBook) isCovered(path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.live && c.over(path) })
}

func (c *RecursiveWatch) over(path string) bool {
	rest, ok := strings.CutPrefix(path, c.path)
	return ok && (rest == "" || rest[0] == '/' || c.path == "/")
}

// uncover ends a cover. It sets the watches that relied on it one by one, as of zxid. b.mu
// is held.
func (b *watchBook) uncover(c *RecursiveWatch, zxid int64) {
	at := slices.Index(b.covers, c)
	if at < 0 {
		return
	}
	relied := c.live
	b.covers, c.live = slices.Delete(b.covers, at, at+1), false
	if !relied {
		return
	}
	paths := slices.DeleteFunc(slices.Collect(maps.Keys(b.t)), func(path string) bool {
		return !c.over(path) || path != c.path && !b.isSoft(path) || b.coverOf(c.w, path) != nil
	})
	b.set(zxid, paths, everyKind, c.w.send)
}

// isSoft reports whether a watch of a path relies on a cover. b.mu is held.
func (b *watchBook) isSoft(path string) bool {
	for w := range b.t.at(path) {
		if w.soft != 0 {
			return true
		}
	}
	return false
}

// lists returns the requests for WatchChildren.
func (b *watchBook) lists(zxid int64, watches []*Watch) []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var paths []string
	for _, w := range watches {
		if w.soft.has(watchChild) && w.live.has(watchChild) {
			paths = append(paths, w.path)
		}
	}
	var calls []*call
	b.set(zxid, paths, watchChild.set(), func(c *call) bool {
		calls = append(calls, c)
		return true
	})
	return calls
}

// RecursiveWatch saves watches of the server in large subtrees: one persistent recursive
// watch (addWatch, from 3.6 on) covers a znode and all znodes below it. It has no events
// itself. On its connection it replaces the server watches of GetW, ExistsW and EachManyW
// at and below its path. Lists of children always have a server watch of their own: a
// server may hide from a recursive watch the creation of a znode that the session may not
// read.
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

// WatchRecursive covers the subtree at path, or adds a user to its cover. recipe.Tree does
// that and all that follows from it. If the server does not know addWatch, or refuses it, the error matches
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

// WatchChildren sets server watches on the lists of children of
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
