package memzk

import "github.com/zkagent/zkagent/internal/jute"

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

func (c *conn) addWatch(path string, mode int32) ([]any, error) {
	switch mode {
	case jute.AddWatchPersistent:
		c.addPersistent(path, persistent)
	case jute.AddWatchPersistentRecursive:
		c.addPersistent(path, recursive)
	default:
		return nil, Error(jute.ErrCodeMarshallingError)
	}
	return []any{jute.ErrCodeOK}, nil
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
		if op == jute.OpRemoveWatches {
			found = w.remove(path, c, modes) || found
		} else {
			found = w.has(path, c, modes) || found
		}
	}
	if !found {
		return Error(jute.ErrCodeNoWatcher)
	}
	return nil
}
