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
// list at the path, so covered sets that one again. b.mu is held.
func (b *watchBook) covered(c *RecursiveWatch, zxid int64) {
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
	paths := slices.DeleteFunc(b.t.paths(), func(path string) bool {
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
