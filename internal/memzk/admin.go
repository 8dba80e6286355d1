package memzk

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

// Node is a znode as it stands in the tree.
type Node struct {
	Data []byte
	Stat jute.Stat
	ACL  []jute.ACL
}

// openACL lets everybody do everything.
var openACL = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}

// operator is who the methods below act as: no ACL stops it.
var operator = []identity{{superScheme, ""}}

// Write carries out the request of a create, delete, setData or setACL without a
// connection, past every ACL. Session 0 creates no ephemeral znodes. It returns the
// path of the znode. Errors are of type Error.
func (s *Server) Write(session int64, op int32, request ...any) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session != 0 && s.sessions[session] == nil {
		return "", Error(jute.ErrCodeSessionExpired)
	}
	p := s.preparer(session, operator)
	r, err := decodeRequest(op, jute.NewDecoder(encoded(request...)))
	if err == nil {
		err = p.prepare(op, r)
	}
	if err != nil {
		return "", err
	}
	s.commit(p.steps)
	return p.steps[0].path, nil
}

// Create creates a persistent znode that everybody may use, with its missing
// parents.
func (s *Server) Create(path string, data []byte) error {
	for i := range path {
		if i > 0 && path[i] == '/' {
			_, err := s.Write(0, jute.OpCreate, path[:i], []byte(nil), openACL, jute.FlagPersistent)
			if err != nil && codeOf(err) != jute.ErrCodeNodeExists {
				return err
			}
		}
	}
	_, err := s.Write(0, jute.OpCreate, path, data, openACL, jute.FlagPersistent)
	return err
}

// Get returns a znode.
func (s *Server) Get(path string) (Node, error) { return look(s, path, (*node).snapshot) }

// look calls f with a znode that must exist.
func look[T any](s *Server, path string, f func(*node) T) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.primary.tree.get(path)
	if n == nil {
		return *new(T), Error(jute.ErrCodeNoNode)
	}
	return f(n), nil
}

// Exists reports whether there is such a znode.
func (s *Server) Exists(path string) bool {
	_, err := s.Get(path)
	return err == nil
}

// Children returns the names of a znode's children in order.
func (s *Server) Children(path string) ([]string, error) { return look(s, path, (*node).childNames) }

// Tree returns all znodes by path, but those of the server itself: the root
// and what is below /zookeeper.
func (s *Server) Tree() map[string]Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Node, len(s.primary.tree.nodes))
	for path, n := range s.primary.tree.nodes {
		if path != rootPath && path != zookeeperPath && !strings.HasPrefix(path, zookeeperPath+"/") {
			all[path] = n.snapshot()
		}
	}
	return all
}

func (n *node) snapshot() Node {
	return Node{Data: slices.Clone(n.data), Stat: n.stat(), ACL: slices.Clone(n.acl)}
}

// SetSequence sets the number that the next sequential child of path gets, so
// that a test can come to its end.
func (s *Server) SetSequence(path string, next int32) error {
	_, err := look(s, path, func(n *node) int32 {
		n.cversion = next
		return next
	})
	return err
}

// State is the state of a server at one moment.
type State struct {
	Zxid     int64            // of the last transaction
	Sessions map[int64]bool   // whether the session has a connection
	Requests map[int32]uint64 // that came, by operation
}

// State returns the current state.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := map[int64]bool{}
	for id, sess := range s.sessions {
		sessions[id] = sess.conn != nil
	}
	return State{Zxid: s.primary.tree.zxid, Sessions: sessions, Requests: maps.Clone(s.requests)}
}

// Watches counts the watches that are set.
func (s *Server) Watches() WatchCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n WatchCounts
	s.primary.countWatches(&n)
	for _, r := range s.lagging {
		r.countWatches(&n)
	}
	return n
}

// StopClock makes the time of sessions and containers stand still, or ends that. What
// has become due meanwhile happens before StopClock returns.
func (s *Server) StopClock(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = on
	s.runDue(time.Now())
	pace.Notify(s.wake)
}

// DropConnections closes the connections of these names, or all without one. Sessions
// live on.
func (s *Server) DropConnections(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if len(names) == 0 || slices.ContainsFunc(Names(c.addr), func(n string) bool { return slices.Contains(names, n) }) {
			c.kill()
		}
	}
}

// NewEpoch drops all connections and gives zxids the next epoch, as another leader does.
// Every session has its whole timeout again.
func (s *Server) NewEpoch() {
	s.Stop()
	s.mu.Lock()
	s.primary.tree.zxid = (s.primary.tree.zxid>>32 + 1) << 32
	s.mu.Unlock()
	s.Start()
}

// Stop takes the server down: connections are dropped and refused, the tree and
// the sessions stay, and no session expires.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// stop needs Server.mu.
func (s *Server) stop() {
	s.down = true
	for c := range s.conns {
		c.kill()
	}
}

// Start ends Stop. As a real server that starts, it gives every session its
// whole timeout again.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	for _, sess := range s.sessions {
		s.touch(sess)
	}
	pace.Notify(s.wake)
}

// SetReadOnly makes the server one that has lost its majority and has
// readonlymode.enabled, or ends that. Connections are dropped each time. Meanwhile
// it takes new sessions alone, of clients that are content with it, refuses what
// changes something, and no session expires; afterwards the previous ones have their
// whole timeout again.
func (s *Server) SetReadOnly(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.kill()
	}
	s.readOnly = on
	for id, sess := range s.sessions {
		if sess.local {
			delete(s.sessions, id)
		}
		s.touch(sess)
	}
	pace.Notify(s.wake)
}

func (s *Server) refusesWrites(op int32) bool {
	refused := []int32{jute.OpSync, jute.OpSetData, jute.OpDelete, jute.OpSetACL, jute.OpMulti, jute.OpReconfig, jute.OpCheck, jute.OpClose}
	return s.readOnly && (jute.IsCreate(op) || slices.Contains(refused, op))
}

// Wipe drops all connections and forgets tree, sessions and zxid: another,
// empty server stands in the place of this one.
func (s *Server) Wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.kill()
	}
	clear(s.sessions)
	clear(s.lagging)
	s.primary = newReplica(newTree(), s.opts.since("3.9.3"))
	pace.Notify(s.wake)
}

// Faults decides what goes wrong in a server. A test passes its own in Options. The
// server calls Receive and Send without a lock, and the other methods with its lock
// held: they must not call the server.
type Faults interface {
	// Refuse reports whether a client that dials addr is refused.
	Refuse(addr string) bool
	// Receive waits until a packet of a client that dialed addr may be handled. request
	// is nil unless it is a request within a session. Receive returns false when stop is
	// closed first.
	Receive(addr string, request []byte, stop <-chan struct{}) bool
	// Send waits until a packet may be sent to a client that dialed addr. It returns
	// false when stop is closed first.
	Send(addr string, stop <-chan struct{}) bool
	// Strike returns what happens to a request. The body of a handshake is all of it.
	Strike(op int32, body []byte) Fault
	// LoseEvent reports whether a watch event for a client that dialed addr is lost.
	LoseEvent(addr string) bool
	// Queue counts bytes of replies that begin to wait for their client, or no longer
	// wait when the number is negative. It reports whether the server dies of them.
	Queue(bytes int) bool
	// Now is the time that stamps transactions.
	Now() time.Time
}

// Fault is what happens to one request. The zero value means that nothing goes wrong.
type Fault struct {
	Drop       bool      // the connection ends before the request is applied
	Lose       bool      // the request is applied, and the connection ends without a reply
	Close      bool      // the connection ends behind the reply to this handshake
	NewSession bool      // this handshake takes up no session: the old one ends, and it gets a new one
	Code       int32     // the error that refuses the request; 0 for none
	At         time.Time // before which the reply must not be sent
}

// noFaults is for a server that works.
type noFaults struct{}

func (noFaults) Refuse(string) bool                           { return false }
func (noFaults) Receive(string, []byte, <-chan struct{}) bool { return true }
func (noFaults) Send(string, <-chan struct{}) bool            { return true }
func (noFaults) Strike(int32, []byte) Fault                   { return Fault{} }
func (noFaults) LoseEvent(string) bool                        { return false }
func (noFaults) Queue(int) bool                               { return false }
func (noFaults) Now() time.Time                               { return time.Now() }

var fourLetterWords = []string{"ruok", "srvr", "stat", "mntr", "envi", "conf", "cons", "wchs", "isro", "dump"}

// fourLetterWord answers one of the administrator's commands. It needs
// Server.mu.
func (s *Server) fourLetterWord(word string) string {
	if s.opts.NoWords {
		return word + " is not executed because it is not in the whitelist.\n"
	}
	switch word {
	case "ruok":
		return "imok"
	case "isro":
		if s.readOnly {
			return "ro"
		}
		return "rw"
	case "srvr":
		return s.srvr("")
	case "stat":
		return s.srvr("Clients:\n" + s.cons() + "\n")
	case "cons":
		return s.cons() + "\n"
	case "mntr":
		return s.mntr()
	case "envi":
		return "Environment:\nzookeeper.version=" + s.version() + "\nos.name=go\n"
	case "conf":
		o := s.opts
		return fmt.Sprintf("clientPort=0\ntickTime=%d\nmaxClientCnxns=0\nminSessionTimeout=%d\nmaxSessionTimeout=%d\nserverId=0\n",
			o.TickTime.Milliseconds(), o.MinTimeout.Milliseconds(), o.MaxTimeout.Milliseconds())
	case "dump":
		var b strings.Builder
		fmt.Fprintf(&b, "SessionTracker dump:\nSession Sets (%d):\n", len(s.sessions))
		fmt.Fprintf(&b, "ephemeral nodes dump:\nSessions with Ephemerals (%d):\n", len(s.primary.tree.ephemerals))
		for id, paths := range s.primary.tree.ephemerals {
			fmt.Fprintf(&b, "0x%x:\n", id)
			for path := range paths {
				fmt.Fprintf(&b, "\t%s\n", path)
			}
		}
		return b.String()
	}
	return s.wchs()
}

func (s *Server) srvr(clients string) string {
	received, sent := s.packets()
	mode := "standalone"
	if s.readOnly {
		mode = "read-only"
	}
	return fmt.Sprintf("Zookeeper version: %s\n%sLatency min/avg/max: 0/0.0/0\nReceived: %d\nSent: %d\nConnections: %d\n"+
		"Outstanding: 0\nZxid: 0x%x\nMode: %s\nNode count: %d\n",
		s.version(), clients, received, sent, len(s.conns), s.primary.tree.zxid, mode, len(s.primary.tree.nodes))
}

func (s *Server) packets() (uint64, uint64) {
	var received, sent uint64
	for c := range s.conns {
		received += c.received
		sent += c.sent
	}
	return received, sent
}

func (s *Server) cons() string {
	var b strings.Builder
	for c := range s.conns {
		fmt.Fprintf(&b, " /%s[1](queued=0,recved=%d,sent=%d", c.ip, c.received, c.sent)
		if c.session != nil {
			fmt.Fprintf(&b, ",sid=0x%x,est=%d,to=%d", c.session.id, c.since.UnixMilli(), c.session.timeout.Milliseconds())
		}
		b.WriteString(")\n")
	}
	return b.String()
}

func (s *Server) mntr() string {
	received, sent := s.packets()
	var n WatchCounts
	s.primary.countWatches(&n)
	ephemerals, size := 0, 0
	for _, paths := range s.primary.tree.ephemerals {
		ephemerals += len(paths)
	}
	for path, node := range s.primary.tree.nodes {
		size += len(path) + len(node.data)
	}
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "zk_%s\t%v\n", key, value) }
	line("version", s.version())
	line("server_state", "standalone")
	line("uptime", time.Since(s.started).Milliseconds())
	line("znode_count", len(s.primary.tree.nodes))
	line("watch_count", n.Data+n.Children+n.Persistent+n.Recursive)
	line("ephemerals_count", ephemerals)
	line("approximate_data_size", size)
	line("num_alive_connections", len(s.conns))
	line("outstanding_requests", 0)
	line("global_sessions", len(s.sessions))
	line("packets_received", received)
	line("packets_sent", sent)
	line("avg_latency", "0.0")
	line("min_latency", 0)
	line("max_latency", 0)
	return b.String()
}

func (s *Server) wchs() string {
	var n WatchCounts
	s.primary.countWatches(&n)
	watching, paths := map[*conn]bool{}, map[string]bool{}
	for _, w := range []*watchTable{s.primary.dataWatches, s.primary.childWatches} {
		for p, watchers := range w.byPath {
			paths[p] = true
			for c := range watchers {
				watching[c] = true
			}
		}
	}
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n",
		len(watching), len(paths), n.Data+n.Children+n.Persistent+n.Recursive)
}
