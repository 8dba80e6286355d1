package memzk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// ErrClosed is returned by a Server that was closed.
var ErrClosed = errors.New("memzk: server is closed")

// Server is one in-memory ZooKeeper. Its methods may be called from any
// goroutine.
type Server struct {
	opts    Options
	started time.Time
	done    chan struct{} // closed by Close
	wake    chan struct{} // has one value when the clock must look again
	wg      sync.WaitGroup

	mu        sync.Mutex // guards everything that follows, and what it refers to
	closed    bool
	down      bool // Stop was called
	readOnly  bool // see SetReadOnly
	frozen    bool // see StopClock
	nextReap  time.Time
	primary   *replica            // what is true
	lagging   map[string]*replica // views that lag, by address
	sessions  map[int64]*session
	conns     map[*conn]struct{}
	listeners map[net.Listener]struct{}
	requests  map[int32]uint64
}

// New starts a server with an empty tree. Inside a synctest bubble it must be
// closed before the bubble ends.
func New(opts Options) *Server {
	s := &Server{
		opts: opts.withDefaults(), started: time.Now(), done: make(chan struct{}), wake: make(chan struct{}, 1),
		lagging: map[string]*replica{}, sessions: map[int64]*session{}, conns: map[*conn]struct{}{},
		listeners: map[net.Listener]struct{}{}, requests: map[int32]uint64{},
	}
	s.primary = newReplica(newTree(), s.opts.since("3.9.3"))
	s.nextReap = s.started.Add(s.opts.ContainerInterval)
	s.wg.Go(s.clock)
	return s
}

// Close ends all connections and goroutines and forgets all data.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		for l := range s.listeners {
			_ = l.Close()
		}
		for c := range s.conns {
			c.kill()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Dial returns the client's end of a new connection in memory. It has the
// signature of net.Dialer.DialContext. The address may be any: all lead to this
// server, and faults can be limited to the connections of one address.
func (s *Server) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	if err := s.serve(server, addr, "127.0.0.1"); err != nil {
		_, _ = client.Close(), server.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return client, nil
}

// Listen accepts clients on a TCP address, such as "127.0.0.1:2181" or
// "127.0.0.1:0", and returns the address it has. Faults name its connections by
// that address.
func (s *Server) Listen(addr string) (net.Addr, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("memzk: %w", err)
	}
	return l.Addr(), s.Serve(l)
}

// Serve accepts clients from a listener until the server closes it.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = l.Close()
		return ErrClosed
	}
	s.listeners[l] = struct{}{}
	s.wg.Go(func() { s.accept(l) })
	return nil
}

func (s *Server) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.opts.Logger.Warn("accept failed", "err", err)
			time.Sleep(50 * time.Millisecond) // running out of file descriptors is no busy loop
			continue
		}
		host, _, _ := net.SplitHostPort(nc.RemoteAddr().String())
		if err := s.serve(nc, l.Addr().String(), host); err != nil {
			_ = nc.Close()
		}
	}
}

func (s *Server) serve(nc net.Conn, addr, ip string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.down, s.opts.Faults.Refuse(addr):
		return syscall.ECONNREFUSED
	}
	c := newConn(s, nc, addr, ip)
	s.conns[c] = struct{}{}
	s.wg.Go(c.run)
	s.wg.Go(c.read)
	s.wg.Go(c.send)
	return nil
}
