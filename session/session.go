package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// Session is one ZooKeeper session. Its ephemeral znodes and its watches end with it. It
// is safe for concurrent use.
type Session struct {
	cfg Config
	log *slog.Logger
	met Metrics

	ctx    context.Context // ends with the session, whose life it is
	cancel context.CancelCauseFunc

	watches  *watchBook
	hosts    *hosts
	epoch    time.Time       // zero of answer, by clock
	answer   atomic.Int64    // send time of the latest answered request, by clock
	zxid     atomic.Int64    // latest zxid seen in a reply
	zxidAt   atomic.Int64    // when the request of a reply with a zxid was sent, since epoch
	timeout  atomic.Int64    // negotiated
	counts   [128]counter    // requests by opIndex
	seen     sizes           // of the znodes read so far
	inFlight inFlight        // limits of the reads of many znodes
	up       chan struct{}   // closed at the first connection
	resumed  bool            // taken over from a previous process, or parked before
	reader   atomic.Bool     // of a read-only server
	cert     atomic.Bool     // a server asked for a client certificate, and got one
	rebooted bool            // of a previous boot: taken over only to be closed
	note     json.RawMessage // of the previous process
	close    func() error    // what Close does
	cleanups sync.WaitGroup  // goroutines in the background

	mu       sync.Mutex // guards the fields below; taken before wire.mu
	state    State
	since    time.Time
	changed  chan struct{}
	endCause error
	id       int64
	password []byte
	cur      *wire // open, or nil
	dialed   *wire // the latest, whatever its phase
	conns    uint64
	server   string
	lastErr  error
	kick     string // the server that ended the last connection, see stolen
	kicks    []time.Time

	notRenewed error // why the identity could not be renewed, or nil
}

type counter = atomic.Uint64

func opIndex(op int32) int { return int(op) & 127 }

func newSession(ctx context.Context, cfg Config) *Session {
	s := &Session{
		cfg: cfg, log: cfg.Logger, met: cfg.Metrics,
		epoch:    time.Now().Add(cfg.slept() - time.Nanosecond),
		inFlight: inFlight{turn: make(chan struct{}, 1), tokens: make(chan struct{}, manyTokens)},
		up:       make(chan struct{}),
		changed:  make(chan struct{}),
		since:    time.Now(),
		password: make([]byte, passwordLength),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.timeout.Store(int64(cfg.Timeout))
	s.watches = &watchBook{met: cfg.Metrics, t: watchTable{}, chroot: cfg.Chroot, ctx: s.ctx}
	s.hosts = newHosts(s)
	s.met.State(Connecting)
	return s
}

// attach makes w the connection of the session. It returns false if the session has
// ended.
func (s *Session) attach(w *wire, r jute.ConnectResponse) bool {
	s.mu.Lock()
	if s.stolen(w) {
		s.mu.Unlock()
		s.expire("another process keeps taking it over")
		return false
	}
	defer s.mu.Unlock()
	if s.endCause != nil {
		return false
	}
	first := s.conns == 0
	timeout := granted(r)
	s.id, s.password = r.SessionID, slices.Clone(r.Password)
	s.timeout.Store(int64(timeout))
	w.heard(w.asked, 0)
	if !s.watches.renew(w.zxid, min(w.able.watches(), s.cfg.MaxFrame/2), w.setUp) || !w.open(timeout) {
		return false
	}
	s.cur, s.server, s.lastErr = w, w.server, w.able.warning()
	s.conns++
	s.hosts.tries, s.hosts.silent = 0, 0 // the back-off ends only with a useful connection, see lost
	clear(s.hosts.hung)
	if s.cfg.SASL != nil {
		s.hosts.writers.Go(func() { s.keepIdentity(w) })
	}
	if w.readOnly.Load() {
		s.reader.Store(true)
		s.setState(ReadOnly)
		s.hosts.writers.Go(func() { s.hosts.seekWriter(w) })
	} else {
		s.setState(Connected)
	}
	if first {
		close(s.up)
	} else {
		if s.cfg.StateDir != "" && !w.readOnly.Load() {
			// Its answer shows that w is served.
			w.send(&call{op: jute.OpExists, frame: newFrame(jute.OpExists, "/", false), probe: true, done: make(chan struct{}), after: func(int32) {}})
		}
		s.met.Reconnected()
	}
	s.log.Info("session connected", "session", hexID(s.id), "server", w.server, "timeout", timeout,
		"connection", s.conns, "resumed", s.resumed && first, "read_only", w.readOnly.Load())
	return true
}

// lost notes that w ended in phase was, without answering calls.
func (s *Session) lost(w *wire, was phase, calls []*call, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastErr = fmt.Errorf("%s: %w", w.server, err)
	if old := w.able.warning(); old != nil {
		s.lastErr = fmt.Errorf("%w: %w", s.lastErr, old)
	}
	awaited := slices.ContainsFunc(calls, (*call).awaitsReply)
	if hungUp(err) {
		w.able.hungUp(calls, awaited)
	}
	h := s.hosts
	if was == phaseAsking {
		h.hung[w.server] = hungUp(err)
		h.turns[w.server]++
		if s.id == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			h.silent++
		}
	}
	if s.cur != w {
		return
	}
	s.cur = nil
	if s.endCause != nil {
		return
	}
	if time.Since(s.since) >= hardlyBegun || w.useful.Load() && !awaited {
		h.failed, h.idle, h.rest = 0, 0, false
	} else { // it answered no request, or a request ended it
		h.idle++
		h.rest = true
	}
	s.kicked(w, awaited, err)
	s.setState(Suspended)
	s.log.Warn("connection lost", "session", hexID(s.id), "server", w.server, "err", err)
}

// ID returns the session id; 0 before the first connection.
func (s *Session) ID() int64 { return locked(&s.mu, &s.id) }

// Timeout returns the negotiated session timeout. Before the first connection it returns
// the configured one.
func (s *Session) Timeout() time.Duration { return time.Duration(s.timeout.Load()) }

// Context returns a context that ends with the session, with a cause that matches
// ErrExpired or ErrClosed.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Resumed reports whether this process took the session over from a previous one. Such a
// session may own znodes, and has no watches.
func (s *Session) Resumed() bool { return s.resumed }

// Connection returns the number of connections so far. It changes when the session has
// connected again. Compare it to learn whether events may have a gap.
func (s *Session) Connection() uint64 { return locked(&s.mu, &s.conns) }

// Server returns the server last connected to, as host:port.
func (s *Session) Server() string { return locked(&s.mu, &s.server) }

// Zxid returns the latest zxid seen in a reply.
func (s *Session) Zxid() int64 { return s.zxid.Load() }

// Requests returns the number of requests sent so far by operation, as ZooKeeper names
// them ("getData", "create2", ...), for tests that bound them. It does not count pings.
func (s *Session) Requests() map[string]uint64 {
	m := make(map[string]uint64)
	for op := int32(-11); op <= jute.OpWhoAmI; op++ {
		if n := s.counts[opIndex(op)].Load(); n > 0 {
			m[jute.OpName(op)] += n
		}
	}
	return m
}

// Close ends the session in this process and, if it is connected, on the server. Its
// ephemeral znodes are gone when Close returns, or after the session timeout.
func (s *Session) Close() error { return s.close() }

func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
