package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

// Back-off between rounds in which every server refused.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 3 * time.Second
	// Bounds of the time for a handshake, and of the pause before it, when servers do
	// not answer, see hosts.patience. A pause is hardly longer than the silence before
	// it.
	maxPatience     = 30 * time.Second
	maxSilencePause = 2 * time.Minute
)

// hosts chooses and dials servers for one session. It replaces the client library's own
// HostProvider, which resolves names only once, gives the dialer addresses instead of
// names, and sleeps for a fixed second after every round.
type hosts struct {
	s       *Session
	ctx     context.Context // ends when the session dials no more
	cancel  context.CancelFunc
	writers sync.WaitGroup

	// The library has done its handshake with a detached wire and reads from it. From then
	// on it handles a close request at once. Between connections it may miss the request,
	// and then it waits for a second.
	settled context.Context
	settle  context.CancelFunc

	// Guarded by Session.mu.
	servers []string // in an order of our own
	next    int
	again   string          // the server to try first
	tries   int             // attempts since the last handshake that succeeded
	failed  int             // attempts since the last useful connection
	idle    int             // useless connections in a row
	rest    bool            // the latest was useless: wait before the next
	silent  int             // handshakes in a row, for a new session, without an answer in time
	hung    map[string]bool // servers that ended the latest handshake without an answer
	bare    map[string]bool // servers whose latest attempt ended in ErrTLS
	turns   map[string]int  // attempts at a server that failed: which address is next
	first   int             // where the turns begin, so that load spreads
}

func newHosts(s *Session) *hosts {
	h := &hosts{s: s, servers: serverOrder(&s.cfg), hung: make(map[string]bool), bare: make(map[string]bool), turns: make(map[string]int), first: rand.N(1 << 16)} //nolint:gosec // spreads load, no secret
	h.settled, h.settle = context.WithCancel(context.Background())
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// The library calls Init, Len, Next and Connected.

func (h *hosts) Init([]string) error { return nil }
func (h *hosts) Connected()          {}

// Len returns the number of servers.
func (h *hosts) Len() int { return len(locked(&h.s.mu, &h.servers)) }

// Next returns the server to try. The second result would make the library sleep.
func (h *hosts) Next() (string, bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if server := h.again; server != "" {
		h.again = ""
		return server, false
	}
	server := h.servers[h.next%len(h.servers)]
	h.next++
	return server, false
}

// patience returns the time for a handshake, and the longest pause before it. Servers
// that accept connections and do not answer are overloaded with new sessions, for
// example of a fleet whose sessions expired together. A host that gives up and tries
// again makes it worse, because the server still makes the session that it asked for.
// So both times grow for a new session, from the second silent server on (a single one
// may hang). An existing session has no time to lose, and costs the leader nothing.
func (h *hosts) patience() (limit, pause time.Duration) { //nolint:nonamedreturns // two times need names
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	limit = handshakeLimit(h.s.Timeout())
	if h.silent < 2 {
		return limit, 0
	}
	limit <<= min(h.silent-1, 10)
	return min(limit, maxPatience), min(limit, maxSilencePause)
}

// hungUp reports whether the server ended the connection, instead of answering or
// staying silent.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dial is the library's dialer. After a failure of all servers it pauses before it
// returns the error, because the library dials again at once.
func (h *hosts) dial(_, server string, _ time.Duration) (net.Conn, error) {
	if !h.pause() {
		return newWire(h.s, nil, server), nil // a dead connection
	}
	var conn net.Conn
	var err error
	if m := h.s.cfg.SASL; m != nil {
		if err = m.Prepare(hostName(server)); err != nil {
			err = h.s.unproven(server, "SASL "+m.Name(), err)
		}
	}
	if err == nil {
		limit, _ := h.patience()
		conn, err = h.open(h.ctx, server, limit)
	}
	if h.ctx.Err() != nil {
		if err == nil {
			_ = conn.Close()
		}
		return newWire(h.s, nil, server), nil
	}
	if err != nil {
		h.s.mu.Lock()
		h.s.lastErr = err
		delete(h.hung, server)
		h.s.mu.Unlock()
		h.noTLS(server, err)
		h.s.log.Debug("cannot reach a server", "server", server, "err", err)
		return nil, err
	}
	w := newWire(h.s, conn, server)
	h.s.mu.Lock()
	h.s.dialed = w // it must end with the session
	ended := h.s.endCause != nil
	h.s.mu.Unlock()
	if ended {
		w.detach()
		return w, nil //nolint:nilerr // err is nil; the library gets a dead connection
	}
	h.writers.Go(w.writeLoop)
	if w.able.wondered() {
		h.writers.Go(func() { h.s.lookVersion(h.ctx, server, w.able) })
	}
	return w, nil
}

// pause waits before an attempt, if there is a reason. It returns false when the session
// has ended.
func (h *hosts) pause() bool {
	_, overload := h.patience()
	h.s.mu.Lock()
	round := 0
	if h.failed%len(h.servers) == 0 {
		round = h.failed / len(h.servers)
	}
	if h.rest {
		round = max(round, h.idle)
	}
	h.failed++
	h.tries++
	h.rest = false
	h.s.mu.Unlock()
	if round == 0 && overload == 0 {
		return h.ctx.Err() == nil
	}
	limit := min(maxBackoff, max(h.s.cfg.Timeout/3, minBackoff))
	d := max(overload, min(minBackoff<<min(max(round-1, 0), 10), limit))
	d = d/2 + rand.N(d/2+1) //nolint:gosec // spreads load, no secret
	if h.gone() {
		h.s.expire("a server takes new sessions but refuses this one")
		return false
	}
	return pace.Sleep(h.ctx, d)
}

// open connects to a server within limit. The connection keeps that deadline, so the
// session's handshake ends by then too.
func (h *hosts) open(ctx context.Context, server string, limit time.Duration) (net.Conn, error) {
	deadline := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := h.connect(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", server, err)
	}
	if h.s.cfg.TLS != nil {
		if conn, err = h.s.secure(ctx, conn, server); err != nil {
			return nil, fmt.Errorf("tls %s: %w", server, err)
		}
	}
	_ = conn.SetDeadline(deadline)
	return conn, nil
}

// connect dials one address of a server. Each address of a name counts as a server of
// its own: an address that hangs uses up this attempt, and the next attempt takes the
// next address. A dialer with the name would divide the limit among the addresses, with
// at least 2 s each, and begin with the same one every time.
func (h *hosts) connect(ctx context.Context, server string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(server)
	if _, no := netip.ParseAddr(host); h.s.cfg.resolve == nil || err != nil || no == nil {
		return h.s.cfg.Dial(ctx, "tcp", server)
	}
	addrs, err := h.s.cfg.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	slices.Sort(addrs) // name servers change the order
	err = errors.New("the name has no address")
	for range addrs {
		var conn net.Conn
		h.s.mu.Lock()
		addr := addrs[(h.first+h.turns[server])%len(addrs)]
		h.s.mu.Unlock()
		if conn, err = h.s.cfg.Dial(ctx, "tcp", net.JoinHostPort(addr, port)); err == nil {
			return conn, nil
		}
		h.s.mu.Lock()
		h.turns[server]++
		h.s.mu.Unlock()
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// secure makes conn a TLS connection. It reads the settings at every dial, and checks
// the certificate against the configured name.
func (s *Session) secure(ctx context.Context, conn net.Conn, server string) (net.Conn, error) {
	cfg, err := s.cfg.TLS()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrTLS, err)
	}
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(server)
	}
	cfg.GetClientCertificate = s.offer(cfg.Certificates, cfg.GetClientCertificate)
	t := tls.Client(conn, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, refusedTLS(err)
	}
	return t, nil
}

// refusedTLS makes an error match ErrTLS if we refuse the server's certificate, or if the
// server refuses ours: with TLS 1.3 that shows in the first read. A server that does not
// answer has refused nothing.
func refusedTLS(err error) error {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	op, ok := errors.AsType[*net.OpError](err)
	if certificate || record || ok && op.Op == "remote error" {
		return fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return err
}

// noTLS notes whether TLS with a server failed. A new session ends when it failed with all
// servers: another try needs another certificate.
func (h *hosts) noTLS(server string, err error) {
	h.s.mu.Lock()
	h.bare[server] = errors.Is(err, ErrTLS)
	none := h.s.id == 0 && !slices.ContainsFunc(h.servers, func(server string) bool { return !h.bare[server] })
	h.s.mu.Unlock()
	if none {
		h.s.end(Closed, fmt.Errorf("%w: %w", ErrClosed, err))
	}
}

// offer returns a function that chooses the certificate for a server that asks for one, as
// package tls does, and notes that the session has this identity.
func (s *Session) offer(certs []tls.Certificate, choose func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert, err := new(tls.Certificate), error(nil)
		if choose != nil {
			cert, err = choose(r)
		} else if i := slices.IndexFunc(certs, func(c tls.Certificate) bool { return r.SupportsCertificate(&c) == nil }); i >= 0 {
			cert = &certs[i]
		}
		if err == nil && len(cert.Certificate) > 0 {
			s.cert.Store(true)
		}
		return cert, err
	}
}

// gone reports whether the servers have lost the session but cannot say so. A server
// whose latest transaction is older than ours hangs up without an answer. When an empty
// ensemble has replaced the old one, every server does so forever. A server that
// restarts, lags or has no quorum hangs up too. So gone has two conditions. First, more
// than 1.5 T and then max(T/2, 2 s) have passed since the last answer. Second, a server
// that hung up on this session accepts a new session: it has a quorum, and the quorum
// has had the time to end ours. Unreachable and silent servers do not count, because
// they may never come back.
func (h *hosts) gone() bool {
	timeout, last := h.s.Timeout(), h.s.LastAnswer()
	if last.IsZero() {
		last = h.s.awake(h.s.epoch)
	}
	if h.s.ID() == 0 || time.Since(last) < timeout*3/2+max(timeout/2, 2*time.Second) {
		return false
	}
	h.s.mu.Lock()
	hung := slices.DeleteFunc(slices.Clone(h.servers), func(server string) bool { return !h.hung[server] })
	h.s.mu.Unlock()
	return slices.ContainsFunc(hung, h.welcomes)
}

// welcomes reports whether server accepts a new session. It closes that session.
func (h *hosts) welcomes(server string) bool {
	conn, err := h.open(h.ctx, server, handshakeLimit(h.s.Timeout()))
	if err != nil {
		return false
	}
	defer conn.Close()
	req := jute.ConnectRequest{Timeout: int32(h.s.cfg.Timeout / time.Millisecond), Password: make([]byte, passwordLength), ReadOnly: new(false)}
	if _, err := conn.Write(packet(req)); err != nil {
		return false
	}
	head := make([]byte, 4+jute.ReplyHeaderSize) // as much as is needed of the response
	if _, err := io.ReadFull(conn, head); err != nil {
		return false
	}
	d := jute.NewDecoder(head[8:])
	if timeout, id := d.Int32(), d.Int64(); timeout <= 0 || id == 0 {
		return false
	}
	frame := newFrame(jute.OpClose)
	frame[7] = 1 // any xid
	_, _ = conn.Write(frame)
	return true
}

// The servers of the ensemble. With Config.FollowReconfig the Manager reads and watches
// the znode in which ZooKeeper keeps its servers. It tries those servers first, and then
// the configured ones. It saves the list in the state directory. So a process that
// starts when all configured servers are gone finds the others.
//
// Guaranteed: the Manager learns servers only from a server with a majority. It forgets
// servers that it learned for another configuration. A list without a client address,
// such as that of an ensemble without reconfiguration, changes nothing.

// configPath is the znode in which ZooKeeper keeps the configuration of the ensemble.
const configPath = "/zookeeper/config"

// serversName is the file in the state directory, and maxServers bounds a list.
const (
	serversName = "servers"
	maxServers  = 100
)

// learned holds the servers in the ensemble's list, for all sessions of a Manager.
type learned struct{ servers atomic.Pointer[[]string] }

func (l *learned) get() []string {
	if servers := l.servers.Load(); servers != nil {
		return slices.Clone(*servers)
	}
	return nil
}

// serverOrder returns the servers to try: the learned ones, then the configured ones. It
// shuffles each part.
func serverOrder(cfg *Config) []string {
	var order []string
	for _, part := range [][]string{cfg.learned.get(), slices.Clone(cfg.Servers)} {
		rand.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] }) //nolint:gosec // spreads load, no secret
		for _, server := range part {
			if !slices.Contains(order, server) {
				order = append(order, server)
			}
		}
	}
	return order
}

// followServers follows the list of the ensemble's servers until the session ends.
func (m *Manager) followServers(ctx context.Context, s *Session) {
	for {
		var data []byte // of a znode outside of the chroot
		w, err := s.exchange(ctx, &request{
			op: jute.OpGetData, path: configPath, kind: watchData, watch: configPath,
			frame: newFrame(jute.OpGetData, configPath, true), result: []any{&data},
		})
		if err != nil {
			if s.Context().Err() == nil && ctx.Err() == nil {
				s.log.Warn("cannot read the servers of the ensemble", "path", configPath, "err", err)
			}
			return
		}
		servers := parseMembers(string(data))
		if len(servers) > 0 && s.State() != ReadOnly && !slices.Equal(servers, m.cfg.learned.get()) {
			s.log.Info("servers of the ensemble", "servers", strings.Join(servers, ","))
			m.cfg.learned.servers.Store(&servers)
			order := serverOrder(&s.cfg)
			s.mu.Lock()
			s.hosts.servers, s.hosts.next = order, 0
			s.mu.Unlock()
			if m.store != nil {
				if err := files.SaveJSON(filepath.Join(m.store.dir, serversName), savedServers{ensemble(m.cfg), servers}); err != nil {
					s.log.Error("cannot save the servers for the next process", "err", err)
				}
			}
		}
		if w.Wait(ctx) != nil {
			w.Stop()
			return
		}
	}
}

// parseMembers finds the client addresses in lines such as
// "server.1=zk1:2888:3888:participant;0.0.0.0:2181". It skips a line without one: such a
// server has its client port elsewhere.
func parseMembers(text string) []string {
	var servers []string
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "=")
		peer, client, ok := strings.Cut(rest, ";")
		if !strings.HasPrefix(name, "server.") || !ok || len(servers) == maxServers {
			continue
		}
		if addr, err := clientAddr(peer, client); err == nil && !slices.Contains(servers, addr) {
			servers = append(servers, addr)
		}
	}
	slices.Sort(servers)
	return servers
}

// clientAddr returns the address at which clients reach a server. If the client address
// is only a port, or any address of the host, it takes the host from the server's own
// address.
func clientAddr(peer, client string) (string, error) {
	host, port, err := net.SplitHostPort(client)
	if err != nil {
		host, port = "", client
	}
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		first, _, _ := strings.Cut(peer, "|") // of several addresses
		if end := strings.LastIndexByte(first, ']'); end >= 0 {
			host = strings.TrimPrefix(first[:end], "[")
		} else {
			host, _, _ = strings.Cut(first, ":")
		}
	}
	return serverAddr(net.JoinHostPort(host, port))
}

type savedServers struct {
	Ensemble []string `json:"ensemble"` // that was configured, sorted
	Servers  []string `json:"servers"`
}

func (m *Manager) loadServers() error {
	var v savedServers
	err := files.LoadJSON(filepath.Join(m.store.dir, serversName), &v)
	for _, server := range v.Servers {
		if _, bad := serverAddr(server); err == nil {
			err = bad
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("servers of the previous process: %w", err)
	case slices.Equal(v.Ensemble, ensemble(m.cfg)) && len(v.Servers) <= maxServers:
		m.cfg.learned.servers.Store(&v.Servers)
	}
	return nil
}

// Reconfiguration is a change of the servers of an ensemble: Join and Leave, or Members.
type Reconfiguration struct {
	Join    []string // servers as in "server.4=zk4:2888:3888:participant;2181"; a known id changes that server
	Leave   []string // ids of servers
	Members []string // all servers, as in Join
	From    int64    // version of the configuration that this changes; 0: any
}

// Reconfig changes the servers of the ensemble (ZooKeeper 3.5, with reconfigEnabled=true)
// and returns the new configuration as ZooKeeper writes it, with its version in the last
// line. The session needs to be super, or the ACL of /zookeeper/config lets it write.
// The error matches ErrReconfigDisabled, ErrReconfigInProgress, ErrNoQuorum, ErrBadVersion
// (From is not current), ErrBadArguments or ErrNoAuth.
func (s *Session) Reconfig(ctx context.Context, change Reconfiguration) (string, error) {
	list := func(servers []string) []byte {
		if len(servers) == 0 {
			return nil
		}
		return []byte(strings.Join(servers, ","))
	}
	from := change.From
	from = cmp.Or(from, -1)
	var data []byte
	_, err := s.exchange(ctx, &request{
		op: jute.OpReconfig, path: configPath, write: true, result: []any{&data},
		frame: newFrame(jute.OpReconfig, list(change.Join), list(change.Leave), list(change.Members), from),
	})
	return string(data), err
}
