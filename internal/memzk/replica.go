package memzk

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

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
	parent, name := splitPath(st.path)
	p := r.tree.get(parent)
	if p.children == nil {
		p.children = map[string]struct{}{}
	}
	p.children[name] = struct{}{}
	r.tree.nodes[st.path] = n
	switch {
	case isEphemeral(n.owner):
		if r.tree.ephemerals[n.owner] == nil {
			r.tree.ephemerals[n.owner] = map[string]struct{}{}
		}
		r.tree.ephemerals[n.owner][st.path] = struct{}{}
	case n.owner != 0:
		r.tree.reapable[st.path] = struct{}{}
	}
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
	parent, name := splitPath(st.path)
	p := r.tree.get(parent)
	delete(p.children, name)
	delete(r.tree.nodes, st.path)
	delete(r.tree.reapable, st.path)
	if owned := r.tree.ephemerals[n.owner]; owned != nil {
		delete(owned, st.path)
		if len(owned) == 0 {
			delete(r.tree.ephemerals, n.owner)
		}
	}
	r.tree.account(st.path, -len(n.data), -1)
	p.pzxid = t.zxid
	reported := r.dataWatches.fire(jute.EventDeleted, st.path, n.acl, nil)
	r.childWatches.fire(jute.EventDeleted, st.path, n.acl, reported)
	r.childWatches.fire(jute.EventChildrenChanged, parent, p.acl, nil)
}

// Names returns the names of a connection that a client dialed under addr: the address,
// and each part of "client@server". Faults and views go by any of them.
func Names(addr string) []string { return append(strings.Split(addr, "@"), addr) }

// Lag lets the views of the given names fall behind from now on, like
// followers that are slow: their reads, and their watches, see the tree as it is
// now, until CatchUp, a sync or a write on one of their connections. After the
// sync or the write the view lags again.
func (s *Server) Lag(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.lagging[name] != nil {
			continue
		}
		s.lagging[name] = newReplica(s.primary.tree.clone(), s.opts.since("3.9.3"))
		s.moveConns(name)
	}
}

// view returns the replica that a connection sees.
func (s *Server) view(addr string) *replica {
	r := s.primary
	for _, name := range Names(addr) {
		r = cmp.Or(s.lagging[name], r)
	}
	return r
}

// CatchUp ends Lag; the watches that were due fire.
func (s *Server) CatchUp(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		r := s.lagging[name]
		if r == nil {
			continue
		}
		r.catchUp()
		delete(s.lagging, name)
		s.moveConns(name)
	}
}

// moveConns gives the connections of that name, with their watches, to the replica that
// they see now.
func (s *Server) moveConns(name string) {
	for c := range s.conns {
		if slices.Contains(Names(c.addr), name) && c.ended.Err() == nil {
			r := s.view(c.addr)
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

type session struct {
	id       int64
	password []byte
	timeout  time.Duration
	deadline time.Time // a multiple of the tick; then the session expires
	conn     *conn     // nil while disconnected
	local    bool      // of a read-only server: not of the ensemble
}

// sessionCount keeps ids of servers that start in the same instant apart, as
// they do in a bubble.
var sessionCount atomic.Int64

// openSession makes a session; that is a transaction. No earlier server has used its id:
// the time in the upper bytes, as ZooKeeper does, and a count.
func (s *Server) openSession(wanted time.Duration) *session {
	id := 1<<56 | int64(uint64(time.Now().UnixMilli()<<24)>>8) + sessionCount.Add(1)
	sess := &session{id: id, password: make([]byte, 16), timeout: s.clamp(wanted)}
	_, _ = rand.Read(sess.password)
	s.sessions[sess.id] = sess
	s.touch(sess)
	if sess.local = s.readOnly; !sess.local {
		s.commit(nil)
	}
	pace.Notify(s.wake)
	return sess
}

func (s *Server) clamp(d time.Duration) time.Duration {
	return min(max(d, s.opts.MinTimeout), s.opts.MaxTimeout)
}

// touch moves the deadline: now and the timeout, rounded up to the next tick.
func (s *Server) touch(sess *session) {
	tick := s.opts.TickTime
	due := time.Since(s.started) + sess.timeout
	deadline := s.started.Add(due.Truncate(tick) + tick)
	if deadline.After(sess.deadline) {
		sess.deadline = deadline
	}
}

// closeSession ends a session and deletes its ephemerals in one transaction.
func (s *Server) closeSession(sess *session) {
	delete(s.sessions, sess.id)
	var steps []step
	for _, path := range slices.Sorted(maps.Keys(s.primary.tree.ephemerals[sess.id])) {
		steps = append(steps, step{op: jute.OpDelete, path: path})
	}
	s.commit(steps)
}

// ExpireSession ends a session now, as if the server had not heard of it for its
// timeout. It reports whether there was one.
func (s *Server) ExpireSession(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		return false
	}
	s.expireSession(sess)
	return true
}

// expireSession is closeSession for one that did not ask for it.
func (s *Server) expireSession(sess *session) {
	s.opts.Logger.Info("session expired", "session", sess.id)
	s.closeSession(sess)
	if sess.conn != nil {
		sess.conn.end()
	}
}

// clock expires sessions and reaps containers until the server closes. It
// wakes only when one of them is due, so that hours cost little.
func (s *Server) clock() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		next := s.runDue(time.Now())
		s.mu.Unlock()
		timer.Reset(next)
	}
}

// runDue does what is due and returns the time until the next thing is.
func (s *Server) runDue(now time.Time) time.Duration {
	if s.frozen || s.down || s.readOnly {
		return time.Hour // StopClock, Start and SetReadOnly wake the clock.
	}
	if !now.Before(s.nextReap) {
		t := s.primary.tree
		for _, path := range slices.Sorted(maps.Keys(t.reapable)) {
			n := t.nodes[path]
			if len(n.children) > 0 {
				continue
			}
			if isTTL(n.owner) && now.UnixMilli()-n.mtime <= n.owner&^ownerTTLMask || n.owner == ownerContainer && n.cversion == 0 {
				continue
			}
			s.commit([]step{{op: jute.OpDelete, path: path}})
		}
		s.nextReap = now.Add(s.opts.ContainerInterval)
	}
	next := s.nextReap
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		sess := s.sessions[id]
		if !sess.deadline.After(now) {
			s.expireSession(sess)
		} else if sess.deadline.Before(next) {
			next = sess.deadline
		}
	}
	return max(next.Sub(now), time.Millisecond)
}
