// Package zktest is an embedded ZooKeeper for the tests of programs that use this
// library: no Java, no ports, no waiting.
//
//	func TestWorker(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			zk := zktest.NewServer(t)
//			s := zk.Session(t, "a")
//			...
//			zk.Partition("a") // a cannot reach the server
//			time.Sleep(time.Minute)
//			zk.Heal("a")
//		})
//	}
//
// The server speaks ZooKeeper's wire protocol over pipes in memory, so it runs
// inside a testing/synctest bubble: sessions expire and leases run out in virtual
// time, and an hour of faults takes milliseconds. It works outside of a bubble,
// too, in real time.
//
// Every client has a name. The name stands for the client's network: Partition,
// CutReplies, DropConnections, Heal, Lag and CatchUp take it.
//
// # Ensembles
//
// With [Options.Servers] the clients see an ensemble, whose servers are named "zk1", "zk2"
// and so on. Kill and Revive take them, and so does each method that takes clients.
// The ensemble serves as long as a majority of its servers is alive. The end of the leader
// ends all connections, as does a new leader; sessions live on.
//
// # Guarantees
//
// Replies, errors, watches and their order are as in ZooKeeper 3.8. This module's
// tests compare them with a real server. The server ends with the test.
//
// # Limitations
//
// An election takes no time, and a write reaches all servers that do not lag. Test code that
// depends on Kerberos or disks against a real ensemble. The server is for tests only.
package zktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// Op is a kind of request, for [Server.LoseReply] and [Server.Delay].
type Op int32

// Kinds of requests.
const (
	AnyRequest = Op(memzk.AnyOp)
	Create     = Op(jute.OpCreate2)
	Set        = Op(jute.OpSetData)
	Delete     = Op(jute.OpDelete)
	Get        = Op(jute.OpGetData)
	Exists     = Op(jute.OpExists)
	Children   = Op(jute.OpGetChildren2)
	Multi      = Op(jute.OpMulti)
	Sync       = Op(jute.OpSync)
)

// Server is a ZooKeeper in memory: one server, or an ensemble. Its methods may be called from
// any goroutine.
type Server struct {
	zk       *memzk.Server
	servers  []string // their names
	readOnly bool     // Options.ReadOnly

	mu      sync.Mutex // guards the fields below
	dead    map[string]bool
	stopped bool // Stop was called
	reads   bool // a minority serves reads
	leader  string
}

// Options configure a server. The zero value of a field means its default.
type Options struct {
	// TickTime is the server's tick, 2 s by default. It rounds expiries up to a tick,
	// and grants session timeouts of 2 to 20 ticks.
	TickTime time.Duration
	// Version is the ZooKeeper version that the server imitates: "3.5", "3.8" (the
	// default) or "3.9", for example.
	Version string
	// Users are users of SASL DIGEST-MD5 and their passwords; nil: the server has no SASL.
	// See session.DigestMD5. A wrong password is refused as a real server does it.
	Users map[string]string
	// RequireSASL refuses clients that have not authenticated by SASL.
	RequireSASL bool
	// Servers is the number of servers of the ensemble, 1 by default.
	Servers int
	// ReadOnly lets the servers that are alive serve reads while they are no majority, to
	// clients with session.Config.ReadOnly. By default they serve nobody then.
	ReadOnly bool
}

// NewServer starts a server that ends with the test.
func NewServer(tb testing.TB, opts ...Options) *Server {
	tb.Helper()
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	s := &Server{
		zk:       memzk.New(memzk.Options{TickTime: o.TickTime, Version: o.Version, SASLUsers: o.Users, RequireSASL: o.RequireSASL}),
		readOnly: o.ReadOnly, dead: map[string]bool{}, leader: "zk1",
	}
	for n := range max(o.Servers, 1) {
		s.servers = append(s.servers, fmt.Sprintf("zk%d", n+1))
	}
	tb.Cleanup(s.zk.Close)
	return s
}

// Config returns the configuration of a client of that name, which reaches all servers.
// The session timeout is the library's default. A test may change every field but Dial.
func (s *Server) Config(client string) session.Config {
	cfg := session.Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		server, _, _ := strings.Cut(addr, ":")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.dead[server] {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return s.zk.Dial(ctx, network, client+"@"+server)
	}}
	for _, server := range s.servers {
		cfg.Servers = append(cfg.Servers, server+":2181")
	}
	return cfg
}

// Session opens a session for the client of that name. The end of the test closes it.
func (s *Server) Session(tb testing.TB, client string) *session.Session {
	tb.Helper()
	z, err := session.Dial(tb.Context(), s.Config(client))
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	tb.Cleanup(func() { _ = z.Close() })
	return z
}

// Manager starts a session manager for the client of that name. It runs until the test
// ends.
func (s *Server) Manager(tb testing.TB, client string) *session.Manager {
	tb.Helper()
	m, err := session.New(s.Config(client))
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx) // its error ends with the test
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	return m
}

// Listen makes the server reachable by TCP on a free port of 127.0.0.1, for other
// clients, and returns host:port. Not for use in a bubble.
func (s *Server) Listen(tb testing.TB) string {
	tb.Helper()
	addr, err := s.zk.Listen("127.0.0.1:0")
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	return addr.String()
}

// ListenTLS is Listen for clients that use TLS. The configuration is the server's; it may
// ask for client certificates.
func (s *Server) ListenTLS(tb testing.TB, cfg *tls.Config) string {
	tb.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err == nil {
		err = s.zk.Serve(l)
	}
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	return l.Addr().String()
}

// Partition makes packets between the clients and the servers vanish in both
// directions, until Heal. Without names it concerns all clients.
func (s *Server) Partition(names ...string) { s.zk.Partition(names...) }

// CutReplies makes packets from the servers to the clients vanish, until Heal. The servers
// still carry out their requests.
func (s *Server) CutReplies(names ...string) { s.zk.CutServerToClient(names...) }

// DropConnections ends the connections of the clients. They connect again.
func (s *Server) DropConnections(names ...string) { s.zk.DropConnections(names...) }

// Heal ends Partition and CutReplies.
func (s *Server) Heal(names ...string) { s.zk.Heal(names...) }

// Stop stops all servers like a power failure. They keep sessions and znodes until Start.
// No session expires meanwhile.
func (s *Server) Stop() { s.change(s.servers, func(string) { s.stopped = true }) }

// Start ends Stop.
func (s *Server) Start() { s.change(s.servers, func(string) { s.stopped = false }) }

// Wipe ends all connections and loses what the servers keep, as if their disks were empty:
// znodes, sessions and transaction numbers.
func (s *Server) Wipe() { s.zk.Wipe() }

// Kill ends these servers, until Revive. While no majority is left the other servers refuse
// clients (but see Options.ReadOnly), and no session expires.
func (s *Server) Kill(servers ...string) {
	s.change(servers, func(name string) { s.dead[name] = true })
}

// Revive starts servers that Kill has ended. They serve all that was written meanwhile.
func (s *Server) Revive(servers ...string) {
	s.change(servers, func(name string) { delete(s.dead, name) })
}

// Lead makes a server that is alive the leader.
func (s *Server) Lead(server string) {
	s.change([]string{server}, func(name string) { s.leader = name })
}

// Leader returns the server that leads, or "" while there is no majority.
func (s *Server) Leader() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.majority() {
		return s.leader
	}
	return ""
}

// majority needs Server.mu.
func (s *Server) majority() bool { return !s.stopped && 2*len(s.dead) < len(s.servers) }

// change calls f with each of the servers, and shows the changes to the clients.
func (s *Server) change(servers []string, f func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had, led, was := s.majority(), s.leader, s.reads
	for _, name := range servers {
		if !slices.Contains(s.servers, name) {
			panic(fmt.Sprintf("zktest: no server is named %q; there are %s", name, strings.Join(s.servers, ", ")))
		}
		f(name)
		s.zk.DropConnections(name)
	}
	if alive := slices.IndexFunc(s.servers, func(name string) bool { return !s.dead[name] }); alive >= 0 && s.dead[s.leader] {
		s.leader = s.servers[alive]
	}
	has := s.majority()
	if s.reads = s.readOnly && !s.stopped && !has; s.reads != was {
		s.zk.SetReadOnly(s.reads)
	}
	switch {
	case !has && !s.reads:
		s.zk.Stop()
	case has && len(s.servers) > 1 && (!had || led != s.leader):
		s.zk.NewEpoch()
	case !had && !was:
		s.zk.Start()
	}
}

// SetReadOnly makes the ensemble one that has lost its majority and serves reads, or ends
// that. Connections end each time. Meanwhile it serves clients with session.Config.ReadOnly
// alone, and no session expires.
func (s *Server) SetReadOnly(on bool) { s.zk.SetReadOnly(on) }

// Lag makes servers fall behind: the reads and watches of their clients see the tree as it
// is now, until CatchUp, or a sync or a write of one of these clients. With the name of
// a client it is all servers, for this client alone.
func (s *Server) Lag(names ...string) { s.zk.Lag(names...) }

// CatchUp ends Lag. The watches that were due fire.
func (s *Server) CatchUp(names ...string) { s.zk.CatchUp(names...) }

// Expire ends a session now, as if its client had been silent for its timeout.
func (s *Server) Expire(z *session.Session) { s.zk.ExpireSession(z.ID()) }

// LoseReply loses the reply to the nth request of the kind from now on, counted from 1,
// and drops that connection. applied says whether the server applies the request. The
// channel is closed when that has happened.
func (s *Server) LoseReply(op Op, n int, applied bool) <-chan struct{} {
	return s.zk.LoseReply(int32(op), n, !applied)
}

// Delay delays the replies to requests of the kind; 0 ends it. The server applies the
// requests at once.
func (s *Server) Delay(op Op, d time.Duration) { s.zk.Delay(int32(op), d) }

// Put creates the znode, with its parents, or sets its data, as another client
// would.
func (s *Server) Put(tb testing.TB, path, data string) {
	tb.Helper()
	err := s.zk.Set(path, []byte(data))
	if err != nil {
		err = s.zk.Create(path, []byte(data))
	}
	if err != nil {
		tb.Fatalf("zktest: put %s: %v", path, err)
	}
}

// Remove deletes the znode, as another client would.
func (s *Server) Remove(tb testing.TB, path string) {
	tb.Helper()
	if err := s.zk.Delete(path); err != nil {
		tb.Fatalf("zktest: delete %s: %v", path, err)
	}
}

// Data returns the data of the znode. ok is false when the znode does not exist.
func (s *Server) Data(path string) (data string, ok bool) { //nolint:nonamedreturns // the second tells of the first
	n, err := s.zk.Get(path)
	return string(n.Data), err == nil
}

// List returns the names of the children, in order.
func (s *Server) List(path string) []string {
	names, _ := s.zk.Children(path) // a missing znode has none
	return names
}

// Owner returns the id of the session that owns the ephemeral znode. It is 0 for any other
// znode, and when the znode does not exist.
func (s *Server) Owner(path string) int64 {
	n, err := s.zk.Get(path)
	if err != nil {
		return 0
	}
	return n.Stat.EphemeralOwner
}

// Requests returns how many requests of each kind the server has received.
func (s *Server) Requests() map[string]uint64 { return s.zk.Requests() }

// String names the server in messages.
func (s *Server) String() string { return fmt.Sprintf("zktest server at zxid %d", s.zk.Zxid()) }
