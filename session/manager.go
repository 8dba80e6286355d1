package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zkagent/zkagent/internal/jute"
)

// Manager keeps a session: it connects, and starts the next session when one has
// ended. Run does the work. Call the other methods at any time.
type Manager struct {
	cfg      Config
	handOver atomic.Bool

	mu          sync.Mutex // guards the fields below
	cur         *Session   // connected at least once; may have ended
	trying      *Session   // not yet connected
	changed     chan struct{}
	stopped     error // why Run has returned
	expirations uint64
	reconnects  uint64
	lastErr     error
	note        json.RawMessage

	// Set and used by Run.
	store   *stateStore // nil: no handoff
	waiting *saved      // the session that waits for a majority, or nil
	reading bool        // the next session uses a read-only server
	parks   bool        // Run may park sessions
}

// Status is the state of a Manager, for operators.
type Status struct {
	State       State         // now
	Server      string        // last connected to
	SessionID   int64         // 0 before the first
	Timeout     time.Duration // negotiated
	Since       time.Time     // of State
	LastAnswer  time.Time     // send time of the latest answered request
	Expirations uint64        // sessions lost to expiry so far
	Reconnects  uint64        // connections after the first of a session
	Watches     int           // set and not fired
	Resumed     bool          // the session is of a previous process
	LastError   string        // of the latest connection that failed; empty: none
	Refused     bool          // it failed because a server, or this process, refused the identity of the other
	Warning     string        // a problem of the server, such as that it is too old
	NotRenewed  string        // why the identity could not be renewed; the next connection may fail
}

// New checks cfg and returns a Manager. It does no I/O.
func New(cfg Config) (*Manager, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, changed: make(chan struct{})}, nil
}

// HandOver makes Run only drop the connection when it ends. The session lives on for
// its timeout, so that the next process can take it over from the state directory.
func (m *Manager) HandOver() { m.handOver.Store(true) }

// Session waits for a session that has connected and has not ended, and returns it.
func (m *Manager) Session(ctx context.Context) (*Session, error) {
	if m == nil {
		return nil, ErrNoSession
	}
	for {
		m.mu.Lock()
		s, trying, changed, stopped := m.cur, m.trying, m.changed, m.stopped
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil, m.waitError(ctx, trying)
		case s != nil && s.ctx.Err() == nil:
			return s, nil
		case stopped != nil:
			return nil, stopped
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (m *Manager) waitError(ctx context.Context, trying *Session) error {
	err := fmt.Errorf("wait for a session: %w: %w", context.Cause(ctx), ErrNoServer)
	last := locked(&m.mu, &m.lastErr)
	if trying != nil {
		last = cmp.Or(trying.lastError(), last)
	}
	if last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

func (s *Session) lastError() error { return locked(&s.mu, &s.lastErr) }

// State returns the state of the current session.
func (m *Manager) State() State { return m.Status().State }

// Status returns the current status.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := cmp.Or(m.trying, m.cur)
	st := Status{State: Connecting, Expirations: m.expirations, Reconnects: m.reconnects}
	err := m.lastErr
	if s != nil {
		s.mu.Lock()
		st.State, st.Server, st.SessionID, st.Since = s.state, s.server, s.id, s.since
		st.Reconnects += max(s.conns, 1) - 1
		if s.lastErr != nil {
			err = s.lastErr
		}
		if s.notRenewed != nil {
			st.NotRenewed = s.notRenewed.Error()
		}
		s.mu.Unlock()
		st.Timeout, st.LastAnswer, st.Resumed = s.Timeout(), s.LastAnswer(), s.resumed
		st.Watches = s.watches.len()
		if old := m.cfg.abilities.server(st.Server).warning(); old != nil {
			st.Warning = old.Error()
		}
	}
	if m.stopped != nil {
		st.State = Closed
	}
	if err != nil {
		st.LastError, st.Refused = err.Error(), refused(err)
	}
	return st
}

// refused reports whether a server answered, and refused who we are.
func refused(err error) bool { return errors.Is(err, ErrAuthFailed) || errors.Is(err, ErrTLS) }

// publish wakes all callers that wait for a session. m.mu is held.
func (m *Manager) publish() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Run keeps a session until ctx ends. Then it closes the session, or hands it over.
// When Run has returned, none of its goroutines is left.
func (m *Manager) Run(ctx context.Context) error {
	err := m.loop(ctx)
	m.mu.Lock()
	m.stopped = ErrClosed
	if err != nil {
		m.stopped = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	m.publish()
	m.mu.Unlock()
	return err
}

func (m *Manager) loop(ctx context.Context) error {
	m.parks = m.cfg.ReadOnly
	if m.cfg.StateDir != "" {
		store, err := openState(m.cfg.StateDir, m.cfg.host())
		if err != nil {
			return err
		}
		defer store.lock.Close()
		m.store = store
		if m.cfg.FollowReconfig {
			m.setError(m.loadServers())
		}
	}
	var ended sync.WaitGroup // libraries of sessions that are over
	defer ended.Wait()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for n := 0; ; n++ {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		s := m.next(ctx, n == 0)
		if err := m.one(ctx, s, &ended); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		pause.Reset(m.over(s))
	}
}

// one runs one session to its end.
func (m *Manager) one(ctx context.Context, s *Session, ended *sync.WaitGroup) error {
	lib, events, err := s.connect()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.trying = s
	m.mu.Unlock()
	lack := m.lack(ctx, s, ended)
	for up := s.up; ctx.Err() == nil && s.ctx.Err() == nil; {
		select {
		case <-up:
			up = nil
			if m.connected(s) {
				m.mu.Lock()
				m.cur, m.trying = s, nil
				m.publish()
				m.mu.Unlock()
				if m.cfg.FollowReconfig {
					ended.Go(func() { m.followServers(ctx, s) })
				}
			}
		case <-lack:
			// It ends in this process, which keeps what is needed to resume it.
			if p := s.saved(); s.end(Closed, fmt.Errorf("%w: %w", ErrClosed, ErrReadOnly)) {
				m.waiting, m.reading = &p, true
			}
		case <-s.Done():
		case <-ctx.Done():
		}
	}
	if s.ctx.Err() == nil {
		err = m.leave(s)
	}
	ended.Go(func() { s.finish(lib, events) })
	return err
}

// over counts the end of s and returns how long to wait before the next session.
func (m *Manager) over(s *Session) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trying, m.lastErr = nil, s.cause()
	m.reconnects += max(s.Connection(), 1) - 1
	m.publish()
	if !s.reader.Load() && !errors.Is(m.lastErr, ErrReadOnly) {
		m.waiting = nil
	}
	if errors.Is(m.lastErr, ErrExpired) && s.Connection() > 0 {
		m.expirations++
	}
	if refused(m.lastErr) {
		return maxBackoff
	}
	return 0
}

// Dial connects to an ensemble with a single session and no state, for commands and
// tests. It starts no other session after the end of this one. It returns when the session
// is connected, its identity or certificate is refused, or ctx ends. The session does not
// end with ctx: call Close.
func Dial(ctx context.Context, cfg Config) (*Session, error) {
	m, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := newSession(ctx, m.cfg)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ended, runner sync.WaitGroup
	runner.Go(func() {
		if failed := m.one(run, s, &ended); failed != nil {
			s.end(Closed, fmt.Errorf("%w: %w", ErrClosed, failed))
		}
		ended.Wait()
	})
	s.close = sync.OnceValue(func() error {
		stop()
		runner.Wait()
		return nil
	})
	select {
	case <-s.up:
		return s, nil
	case <-s.Done():
		err = s.cause()
	case <-ctx.Done():
		err = m.waitError(ctx, s)
	}
	_ = s.Close()
	return nil, fmt.Errorf("dial zookeeper: %w", err)
}

// Usable returns s, or instead a session that has ended with the reason why nobody can use
// path in it: s is nil, the path is not valid, or a callback is not given. A constructor
// that returns no error calls it, so that the first call does.
func Usable(s *Session, path string, given ...bool) *Session {
	err := ValidatePath(path)
	switch {
	case s == nil:
		err = ErrNoSession
	case slices.Contains(given, false):
		err = ErrNoCallback
	case err == nil, s.ctx.Err() != nil:
		return s
	}
	cfg, _ := Config{Servers: []string{"none"}}.complete()
	s = newSession(context.Background(), cfg)
	s.close = func() error { return nil }
	s.end(Closed, err)
	return s
}

// libraryBuffer bounds a frame of the library, which sees only pings and handshakes.
// Its own default is 1.5 MB for each direction.
const libraryBuffer = 4 << 10

// connect starts the client library, which begins to dial.
func (s *Session) connect() (*zk.Conn, <-chan zk.Event, error) {
	text := slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	text.SetPrefix("zookeeper client: ")
	lib, events, err := zk.Connect(s.cfg.Servers, s.cfg.Timeout,
		zk.WithHostProvider(s.hosts),
		zk.WithDialer(s.hosts.dial),
		zk.WithLogger(text),
		zk.WithMaxBufferSize(libraryBuffer),
		zk.WithMaxConnBufferSize(libraryBuffer),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("start the zookeeper client: %w", err)
	}
	return lib, events, nil
}

// shutdown ends the session from our side. It closes the session on the server too,
// unless it hands the session over.
func (s *Session) shutdown(handOver bool) {
	w := locked(&s.mu, &s.cur)
	if !s.end(Closed, ErrClosed) {
		return
	}
	c := newCall(jute.OpClose, newFrame(jute.OpClose))
	if w != nil && !handOver && w.send(c) { // wait briefly for the reply
		ctx, cancel := context.WithTimeout(context.Background(), handshakeLimit(s.Timeout()))
		defer cancel()
		_ = awaitAll(ctx, c)
	}
}

// finish ends the client library and waits for all of it.
func (s *Session) finish(lib *zk.Conn, events <-chan zk.Event) {
	s.hosts.cancel()
	s.mu.Lock()
	w := s.dialed
	s.cur = nil
	s.mu.Unlock()
	if w != nil {
		w.detach()
	}
	<-s.hosts.settled.Done()
	lib.Close()
	for range events {
	}
	s.hosts.writers.Wait()
	s.cleanups.Wait()
	s.watches.end()
}
