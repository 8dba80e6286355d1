package session

import (
	"slices"
	"strings"
)

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
func (b *watchBook) covered(c *RecursiveWatch, zxid int64) {
	b.mu.Lock()
	c.live = slices.Contains(b.covers, c)
	b.mu.Unlock()
	b.rearm(c, zxid, watchChild.set())
}

// rearm sets the watches at the path of a cover again, as of zxid.
func (b *watchBook) rearm(c *RecursiveWatch, zxid int64, of kinds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch watchBatch
	if w := b.t.get(c.path); w != nil {
		b.put(&batch, w, of)
	}
	if batch.size() > 0 {
		c.w.send(b.setWatches(zxid, &batch))
	}
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

// isCovered reports whether a path is below any cover.
func (b *watchBook) isCovered(path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.live && c.over(path) })
}

func (c *RecursiveWatch) over(path string) bool {
	rest, ok := strings.CutPrefix(path, c.path)
	return ok && (rest == "" || rest[0] == '/' || c.path == "/")
}

// uncover ends a cover. It sets the watches that relied on it one by one, as of zxid.
func (b *watchBook) uncover(c *RecursiveWatch, zxid int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uncoverLocked(c, zxid)
}

func (b *watchBook) uncoverLocked(c *RecursiveWatch, zxid int64) {
	at := slices.Index(b.covers, c)
	if at < 0 {
		return
	}
	relied := c.live
	b.covers, c.live = slices.Delete(b.covers, at, at+1), false
	if !relied {
		return
	}
	var firsts []*Watch
	for w := range b.t.all() {
		if c.over(w.path) && (w.path == c.path || soft(w)) && b.coverOf(c.w, w.path) == nil {
			firsts = append(firsts, w)
		}
	}
	b.set(c.w, zxid, firsts)
}

// soft reports whether a watch of the path of w relies on a cover. b.mu is held.
func soft(w *Watch) bool {
	for ; w != nil; w = w.next {
		if w.soft != 0 {
			return true
		}
	}
	return false
}

// set sets all armed watches of some paths, as of zxid. b.mu is held.
func (b *watchBook) set(to *wire, zxid int64, firsts []*Watch) {
	var batch watchBatch
	for _, w := range firsts {
		b.put(&batch, w, everyKind)
		if batch.size() > setWatchesSize {
			to.send(b.setWatches(zxid, &batch))
			batch.reset()
		}
	}
	if batch.size() > 0 {
		to.send(b.setWatches(zxid, &batch))
	}
}

// put adds the armed watches of one path to the batch. It does not add a data watch at
// the path of a cover, which would replace the cover: it fires those watches instead.
// b.mu is held.
func (b *watchBook) put(batch *watchBatch, first *Watch, of kinds) {
	const data = 1<<watchData | 1<<watchExists
	path := first.path
	if of&data != 0 && slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.path == path }) {
		of &^= data
		b.close(path, data, false)
		if first = b.t.get(path); first == nil {
			return
		}
	}
	batch.add(first, of)
	for w := first; w != nil; w = w.next {
		if w.armed {
			w.soft &^= of
		}
	}
}

// lists returns the requests for WatchChildren.
func (b *watchBook) lists(zxid int64, watches []*Watch) []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls []*call
	var batch watchBatch
	for i, w := range watches {
		if w.soft.has(watchChild) && w.live.has(watchChild) {
			batch.put(watchChild.set(), w.path)
			w.soft &^= watchChild.set()
		}
		if batch.size() > setWatchesSize || batch.size() > 0 && i == len(watches)-1 {
			calls = append(calls, b.setWatches(zxid, &batch))
			batch.reset()
		}
	}
	return calls
}
