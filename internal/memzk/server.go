package memzk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
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
	lagging   map[string]*replica // views that lag, by name
	sessions  map[int64]*session
	conns     map[*conn]struct{}
	listeners map[net.Listener]struct{}
	requests  map[int32]uint64
}

// New starts a server with an empty tree. Inside a synctest bubble it must be
// closed before the bubble ends.
func New(opts Options) *Server {
	opts.TickTime = cmp.Or(max(opts.TickTime, 0), DefaultTickTime)
	opts.MinTimeout = cmp.Or(max(opts.MinTimeout, 0), 2*opts.TickTime)
	opts.MaxTimeout = cmp.Or(max(opts.MaxTimeout, 0), 20*opts.TickTime)
	opts.ContainerInterval = cmp.Or(max(opts.ContainerInterval, 0), DefaultContainerInterval)
	opts.MaxFrame = cmp.Or(max(opts.MaxFrame, 0), DefaultMaxFrame)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	opts.Faults = cmp.Or[Faults](opts.Faults, noFaults{})
	var err error
	if opts.Version, err = Personality(cmp.Or(opts.Version, DefaultVersion)); err != nil {
		panic("memzk: " + err.Error())
	}
	s := &Server{
		opts: opts, started: time.Now(), done: make(chan struct{}), wake: make(chan struct{}, 1),
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
// server, and faults can be limited to the connections of one of its Names.
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
	c := &conn{
		s: s, nc: nc, addr: addr, ip: ip, in: newQueue[packet](), out: newQueue[answer](),
		ids: []identity{{"ip", ip}}, replica: s.view(addr), since: time.Now(),
	}
	c.ended, c.stopHandling = context.WithCancel(context.Background())
	c.killed, c.stopSending = context.WithCancel(context.Background())
	s.conns[c] = struct{}{}
	s.wg.Go(c.run)
	s.wg.Go(c.read)
	s.wg.Go(c.send)
	return nil
}

// Defaults of Options.
const (
	DefaultTickTime          = 2 * time.Second
	DefaultContainerInterval = time.Minute
	DefaultMaxFrame          = 1<<20 - 1
)

// Options configures a Server. The zero value of a field means its default.
type Options struct {
	TickTime          time.Duration     // expiry is rounded up to it; DefaultTickTime
	MinTimeout        time.Duration     // smallest session timeout granted; 2 ticks
	MaxTimeout        time.Duration     // largest session timeout granted; 20 ticks
	ContainerInterval time.Duration     // pause between two reapings of containers and TTL znodes; DefaultContainerInterval
	MaxFrame          int               // largest packet from a client in bytes; DefaultMaxFrame
	SuperDigest       string            // "user:base64(sha1(user:password))" of a user whom no ACL stops; "" for none
	NoExtendedTypes   bool              // refuse TTL znodes, as a server does where they are not switched on
	Version           string            // of the ZooKeeper that the server emulates, see Personality; DefaultVersion
	SASLUsers         map[string]string // users of SASL DIGEST-MD5 and their passwords; nil: no SASL
	RequireSASL       bool              // refuse who has not done SASL, as sessionRequireClientSASLAuth does
	NoWords           bool              // answer no four-letter word, as where none is whitelisted
	Logger            *slog.Logger      // nil discards

	// Committed, when not nil, is called for every transaction: what it creates, sets
	// and deletes, in the order of the transactions, before a client can see
	// them. It must not call the server, nor change the data.
	Committed func(changes []Change)

	// Faults decides what goes wrong; nil: nothing.
	Faults Faults
}

// Change is what a transaction does to one znode.
type Change struct {
	Path string
	Data []byte // never nil, unless the znode is deleted
}

// versions are the servers whose ways this package knows, the oldest first. Those
// from 3.8 on are compared with the real ones, the others by what clients use.
var versions = []string{"3.4.13", "3.5.9", "3.6.4", "3.7.2", "3.8.0", "3.9.3", "3.9.6"}

// DefaultVersion is the version of a Server without Options.Version.
const DefaultVersion = "3.8"

// Personality returns the version whose ways a server of that version has: the
// latest of a line, as of "3.9", or the latest that is not newer, as of "3.9.4".
func Personality(version string) (string, error) {
	numbers, err := versionNumbers(version)
	if err != nil {
		return "", err
	}
	for _, known := range slices.Backward(versions) {
		if have, _ := versionNumbers(known); slices.Compare(have[:min(len(have), len(numbers))], numbers) <= 0 {
			return known, nil
		}
	}
	return "", fmt.Errorf("version %q is not known; known are %s", version, strings.Join(versions, ", "))
}

func versionNumbers(version string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("version %q is not of the form 3.9 or 3.9.6", version)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// since reports whether the server is of that version or newer.
func (o *Options) since(version string) bool {
	return slices.Index(versions, o.Version) >= slices.Index(versions, version)
}

func (s *Server) version() string {
	return s.opts.Version + "-zkagent-memzk, built on 2022-02-25 08:49 UTC"
}
