package memzk

import (
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// watchMode is how a watch lives: a set of bits, of which there is only one
// before 3.9.
type watchMode uint8

const (
	oneShot watchMode = 1 << iota
	persistent
	recursive

	anyMode = oneShot | persistent | recursive
)

// watchTable holds the watches of one kind: of data (and existence), or of
// children.
type watchTable struct {
	separate  bool
	byPath    map[string]map[*conn]watchMode
	byConn    map[*conn]map[string]struct{}
	recursive int // number of recursive watches; 0 spares the walk up the path
}

func newWatchTable(separate bool) *watchTable {
	return &watchTable{separate: separate, byPath: map[string]map[*conn]watchMode{}, byConn: map[*conn]map[string]struct{}{}}
}

// add sets a watch. On servers before 3.9 the latest mode replaces the one
// that was there, which a recursive watch does not survive.
func (w *watchTable) add(path string, c *conn, mode watchMode) {
	if w.byPath[path] == nil {
		w.byPath[path] = map[*conn]watchMode{}
	}
	if w.byConn[c] == nil {
		w.byConn[c] = map[string]struct{}{}
	}
	before := w.byPath[path][c]
	if w.separate {
		mode |= before
	}
	w.set(path, c, before, mode)
	w.byConn[c][path] = struct{}{}
}

// set changes a mode and keeps count of the recursive ones.
func (w *watchTable) set(path string, c *conn, before, after watchMode) {
	if before&recursive != 0 {
		w.recursive--
	}
	if after&recursive != 0 {
		w.recursive++
	}
	if after != 0 {
		w.byPath[path][c] = after
		return
	}
	delete(w.byPath[path], c)
	if len(w.byPath[path]) == 0 {
		delete(w.byPath, path)
	}
	delete(w.byConn[c], path)
	if len(w.byConn[c]) == 0 {
		delete(w.byConn, c)
	}
}

// remove takes watches of some modes away and reports whether there was one.
// Before 3.9 a server asks for no mode.
func (w *watchTable) remove(path string, c *conn, modes watchMode) bool {
	mode := w.byPath[path][c]
	if !w.separate {
		modes = anyMode
	}
	if mode&modes == 0 {
		return false
	}
	w.set(path, c, mode, mode&^modes)
	return true
}

// has answers checkWatches: from 3.9 on for a watch of the connection with one of
// the modes, before that for any watch on path, of any connection.
func (w *watchTable) has(path string, c *conn, modes watchMode) bool {
	if !w.separate {
		return len(w.byPath[path]) > 0
	}
	return w.byPath[path][c]&modes != 0
}

// upwards calls f with the ancestors of path, the nearest first, if there are
// recursive watches at all.
func (w *watchTable) upwards(path string, f func(string)) {
	for w.recursive > 0 && strings.LastIndexByte(path, '/') >= 0 && path != rootPath {
		path = watchPath(path[:strings.LastIndexByte(path, '/')])
		f(path)
	}
}

func (w *watchTable) forget(c *conn) {
	for path := range w.byConn[c] {
		w.remove(path, c, anyMode)
	}
}

// move gives all watches of a connection to another table.
func (w *watchTable) move(c *conn, to *watchTable) {
	for path := range w.byConn[c] {
		to.add(path, c, w.byPath[path][c])
	}
	w.forget(c)
}

// fire sends the event to everybody who watches path, except those in skip, and
// uses up one-shot watches. Who has no READ permission by acl is passed over; the
// watch is used up all the same. It returns skip with whom it found.
func (w *watchTable) fire(event int32, path string, acl []jute.ACL, skip map[*conn]bool) map[*conn]bool {
	found := map[*conn]bool{}
	for c, mode := range w.byPath[path] {
		if mode == recursive && event == jute.EventChildrenChanged {
			continue
		}
		found[c] = true
		w.set(path, c, mode, mode&^oneShot)
	}
	if event != jute.EventChildrenChanged {
		w.upwards(path, func(p string) {
			for c, mode := range w.byPath[p] {
				if mode&recursive != 0 {
					found[c] = true
				}
			}
		})
	}
	for c := range found {
		if !skip[c] && allowed(acl, jute.PermRead, c.ids) {
			c.notify(event, path)
		}
	}
	return found
}

// WatchCounts says how many watches of each kind are set.
type WatchCounts struct {
	Data       int // one-shot watches of data and existence
	Children   int // one-shot watches of children
	Persistent int
	Recursive  int
}

func (r *replica) countWatches(n *WatchCounts) {
	for _, modes := range r.dataWatches.byPath {
		for _, m := range modes {
			n.Data += int(m & oneShot)
			n.Persistent += int(m & persistent >> 1)
			n.Recursive += int(m & recursive >> 2)
		}
	}
	for _, modes := range r.childWatches.byPath {
		for _, m := range modes {
			n.Children += int(m & oneShot)
		}
	}
}
