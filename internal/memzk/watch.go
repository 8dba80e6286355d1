package memzk

import "github.com/zkagent/zkagent/internal/jute"

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
	recursive int // number of recursive watches; 0 spares the walk up the path
}

func newWatchTable(separate bool) *watchTable {
	return &watchTable{separate: separate, byPath: map[string]map[*conn]watchMode{}}
}

// add sets a watch. On servers before 3.9 the latest mode replaces the one
// that was there, which a recursive watch does not survive.
func (w *watchTable) add(path string, c *conn, mode watchMode) {
	if w.byPath[path] == nil {
		w.byPath[path] = map[*conn]watchMode{}
	}
	if w.separate {
		mode |= w.byPath[path][c]
	}
	w.set(path, c, mode)
}

// set changes a mode and keeps count of the recursive ones.
func (w *watchTable) set(path string, c *conn, after watchMode) {
	if w.byPath[path][c]&recursive != 0 {
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
	w.set(path, c, mode&^modes)
	return true
}

func (w *watchTable) forget(c *conn) {
	for path, watchers := range w.byPath {
		if watchers[c] != 0 {
			w.set(path, c, 0)
		}
	}
}

// move gives all watches of a connection to another table.
func (w *watchTable) move(c *conn, to *watchTable) {
	for path, watchers := range w.byPath {
		if watchers[c] != 0 {
			to.add(path, c, watchers[c])
		}
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
		w.set(path, c, mode&^oneShot)
	}
	if event != jute.EventChildrenChanged {
		for p := path; w.recursive > 0 && p != rootPath; {
			p, _ = splitPath(p)
			for c, mode := range w.byPath[p] {
				if mode&recursive != 0 {
					found[c] = true
				}
			}
		}
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

// setWatches takes up the watches of a previous connection. What changed since
// the zxid that the client names gives an event at once instead.
func (c *conn) setWatches(op int32, d *jute.Decoder) error {
	since := d.Int64()
	data, exist, child := d.Strings(), d.Strings(), d.Strings()
	var kept, deep []string
	if op == jute.OpSetWatches2 {
		kept, deep = d.Strings(), d.Strings()
	}
	if d.Err() != nil {
		return d.Err()
	}
	r := c.replica
	for _, path := range data {
		c.takeUp(r.dataWatches, path, jute.EventDataChanged, func(n *node) bool { return n.mzxid > since })
	}
	for _, path := range exist {
		if n := r.tree.get(path); n != nil {
			c.missed(n, jute.EventCreated, path)
		} else {
			r.dataWatches.add(path, c, oneShot)
		}
	}
	for _, path := range child {
		c.takeUp(r.childWatches, path, jute.EventChildrenChanged, func(n *node) bool { return n.pzxid > since })
	}
	for _, path := range kept {
		c.addPersistent(path, persistent)
	}
	for _, path := range deep {
		c.addPersistent(path, recursive)
	}
	return nil
}

// takeUp sets one watch, or sends the event of what happened to its znode.
func (c *conn) takeUp(w *watchTable, path string, event int32, changed func(*node) bool) {
	switch n := c.replica.tree.get(path); {
	case n == nil:
		c.notify(jute.EventDeleted, path)
	case changed(n):
		c.missed(n, event, path)
	default:
		w.add(path, c, oneShot)
	}
}

// addPersistent sets a watch that stays. From 3.9 on a recursive one is none of
// children.
func (c *conn) addPersistent(path string, mode watchMode) {
	if mode != recursive || !c.replica.childWatches.separate {
		c.replica.childWatches.add(path, c, mode)
	}
	c.replica.dataWatches.add(path, c, mode)
}

// missed sends the event of a change that the previous connection has missed. Newer
// servers send it only to a session that may read the znode.
func (c *conn) missed(n *node, event int32, path string) {
	if !c.s.opts.since("3.9.6") || allowed(n.acl, jute.PermRead, c.ids) {
		c.notify(event, path)
	}
}

// checkOrRemoveWatches answers whether there is such a watch, and for
// removeWatches takes it away.
func (c *conn) checkOrRemoveWatches(op int32, path string, kind int32) error {
	var tables []*watchTable
	modes := oneShot
	both := []*watchTable{c.replica.childWatches, c.replica.dataWatches}
	switch recent := both[0].separate; {
	case kind == jute.WatcherChildren:
		tables = both[:1]
	case kind == jute.WatcherData:
		tables = both[1:]
	case kind == jute.WatcherAny:
		tables, modes = both, anyMode
	case kind == jute.WatcherPersistent && recent:
		tables, modes = both, persistent
	case kind == jute.WatcherPersistentRecursive && recent:
		tables, modes = both, recursive
	default:
		return Error(jute.ErrCodeMarshallingError)
	}
	found := false
	for _, w := range tables {
		switch {
		case op == jute.OpRemoveWatches:
			found = w.remove(path, c, modes) || found
		case w.separate:
			found = found || w.byPath[path][c]&modes != 0
		default: // before 3.9 a watch of any connection will do
			found = found || len(w.byPath[path]) > 0
		}
	}
	if !found {
		return Error(jute.ErrCodeNoWatcher)
	}
	return nil
}
