package memzk

import "github.com/zkagent/zkagent/internal/jute"

// replica is what the connections of one view see: a tree, and the watches on
// it. There is one, until a test lets a view lag.
type replica struct {
	tree         *tree
	dataWatches  *watchTable // of data and of existence
	childWatches *watchTable
	pending      []*txn // not applied yet; only while lagging
}

func newReplica(t *tree, separate bool) *replica {
	return &replica{tree: t, dataWatches: newWatchTable(separate), childWatches: newWatchTable(separate)}
}

// txn is one transaction: what one write request changes.
type txn struct {
	zxid  int64
	time  int64 // milliseconds
	steps []step
}

// step is one change within a transaction.
type step struct {
	op       int32 // OpCreate, OpDelete, OpSetData, OpSetACL, OpCheck
	path     string
	data     []byte
	acl      []jute.ACL
	owner    int64
	version  int32 // the new one, of data or ACL
	cversion int32 // the parent's new one
}

// apply changes the tree and fires the watches, step by step. It returns the
// Stat after each step.
func (r *replica) apply(t *txn) []jute.Stat {
	stats := make([]jute.Stat, len(t.steps))
	for i := range t.steps {
		st := &t.steps[i]
		switch st.op {
		case jute.OpCreate:
			stats[i] = r.applyCreate(t, st)
		case jute.OpDelete:
			r.applyDelete(t, st)
		case jute.OpSetData:
			n := r.tree.get(st.path)
			r.tree.account(st.path, len(st.data)-len(n.data), 0)
			n.data, n.version, n.mzxid, n.mtime = st.data, st.version, t.zxid, t.time
			stats[i] = n.stat()
			r.dataWatches.fire(jute.EventDataChanged, st.path, n.acl, nil)
		case jute.OpSetACL:
			n := r.tree.get(st.path)
			n.acl, n.aversion = st.acl, st.version
			stats[i] = n.stat()
		}
	}
	r.tree.zxid = t.zxid
	return stats
}

func (r *replica) applyCreate(t *txn, st *step) jute.Stat {
	n := &node{
		data: st.data, acl: st.acl, owner: st.owner,
		czxid: t.zxid, mzxid: t.zxid, pzxid: t.zxid, ctime: t.time, mtime: t.time,
	}
	parent, _ := splitPath(st.path)
	p := r.tree.get(parent)
	r.tree.insert(st.path, n)
	if st.cversion > p.cversion { // never after 2147483647: a server repeats that number
		p.cversion, p.pzxid = st.cversion, t.zxid
	}
	r.tree.account(st.path, len(st.data), 1)
	r.dataWatches.fire(jute.EventCreated, st.path, n.acl, nil)
	r.childWatches.fire(jute.EventChildrenChanged, parent, p.acl, nil)
	return n.stat()
}

func (r *replica) applyDelete(t *txn, st *step) {
	n := r.tree.get(st.path)
	parent, _ := splitPath(st.path)
	p := r.tree.get(parent)
	r.tree.remove(st.path)
	r.tree.account(st.path, -len(n.data), -1)
	p.pzxid = t.zxid
	reported := r.dataWatches.fire(jute.EventDeleted, st.path, n.acl, nil)
	r.childWatches.fire(jute.EventDeleted, st.path, n.acl, reported)
	r.childWatches.fire(jute.EventChildrenChanged, parent, p.acl, nil)
}

// Lag lets the views of the given addresses fall behind from now on, like
// followers that are slow: their reads, and their watches, see the tree as it is
// now, until CatchUp, a sync or a write on one of their connections. After the
// sync or the write the view lags again.
func (s *Server) Lag(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range addrs {
		if s.lagging[addr] != nil {
			continue
		}
		r := newReplica(s.primary.tree.clone(), s.opts.since("3.9.3"))
		s.lagging[addr] = r
		s.moveConns(addr, r)
	}
}

// CatchUp ends Lag; the watches that were due fire.
func (s *Server) CatchUp(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range addrs {
		r := s.lagging[addr]
		if r == nil {
			continue
		}
		r.catchUp()
		delete(s.lagging, addr)
		s.moveConns(addr, s.primary)
	}
}

// moveConns makes the connections of addr, with their watches, see r.
func (s *Server) moveConns(addr string, r *replica) {
	for c := range s.conns {
		if c.addr == addr && c.ended.Err() == nil {
			c.replica.dataWatches.move(c, r.dataWatches)
			c.replica.childWatches.move(c, r.childWatches)
			c.replica = r
		}
	}
}

// catchUp applies what is pending; a write or a sync of a connection must see
// its own effects.
func (r *replica) catchUp() {
	for _, t := range r.pending {
		r.apply(t)
	}
	r.pending = nil
}

func (c *conn) catchUp() { c.replica.catchUp() }
