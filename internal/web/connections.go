package web

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How the connections of the listeners are bounded.
const (
	DefaultMaxConnections = 1500             // of the HTTP listener, readers who wait among them
	adminConnections      = 128              // of the admin socket
	headerLimit           = 5 * time.Second  // for the header of a request
	idleLimit             = 20 * time.Second // for a connection between two requests
	filesKept             = 256              // file descriptors for the agent's own work
	fewestConnections     = 4                // however few file descriptors there are
)

// busy is the answer to a connection too many.
const busy = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

// connections is a listener with a bound. A connection too many takes the place of
// the one that has been idle, or slow to ask, for the longest; when all of them are
// being served, it is refused. So idle connections lock out no client, and the agent
// keeps file descriptors for its own work.
type connections struct {
	net.Listener
	max func() int

	mu   sync.Mutex // mu guards what follows.
	open map[net.Conn]time.Time
}

// bounded returns the listener with a bound, and makes the server report which
// connections are being served.
func bounded(ln net.Listener, s *http.Server, most func() int) net.Listener {
	c := &connections{Listener: ln, max: most, open: map[net.Conn]time.Time{}}
	s.ConnState = c.state
	return c
}

// served marks a connection that answers a request.
var served = time.Unix(math.MaxInt32, 0)

// state notes what becomes of a connection.
func (c *connections) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.open[conn]; !ok {
		return // it lost its place.
	}
	switch state {
	case http.StateActive:
		c.open[conn] = served
	case http.StateIdle:
		c.open[conn] = time.Now()
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	case http.StateNew:
	}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.admit(conn) {
			return conn, nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(busy))
		_ = conn.Close()
	}
}

// admit gives the connection a place, if there is one.
func (c *connections) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.max() {
		var oldest net.Conn
		for other, since := range c.open {
			if since != served && (oldest == nil || since.Before(c.open[oldest])) {
				oldest = other
			}
		}
		if oldest == nil {
			return false
		}
		delete(c.open, oldest)
		_ = oldest.Close()
	}
	c.open[conn] = time.Now()
	return true
}

// mostConnections is how many connections a listener may have: what the settings
// say, and less when the process may open few files.
func mostConnections(settings int) int {
	if settings <= 0 {
		settings = DefaultMaxConnections
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return settings
	}
	return max(min(settings, (int(limit.Cur)-filesKept)/2), fewestConnections)
}

// mostStreams leaves a quarter of the connections to those who do not wait.
func (s *Server) mostStreams() int64 { return int64(s.mostHTTP() * 3 / 4) }

// mostHTTP is the bound of the HTTP listener.
func (s *Server) mostHTTP() int { return mostConnections(s.settings().MaxConnections) }

// maxSocketPath is how long the path of a unix socket may be.
const maxSocketPath = 107

// adminSocket opens the unix socket: one left over by a dead process is
// removed, one that answers is not.
func adminSocket(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket %s: the path has %d bytes, at most %d are possible", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("admin socket %s: a file that is not a socket is in the way", path)
		}
		var d net.Dialer
		dial, cancel := context.WithTimeout(ctx, time.Second)
		conn, err := d.DialContext(dial, "unix", path)
		cancel()
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("admin socket %s: another agent is listening", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("admin socket %s: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group may give orders.
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), ln.Close())
	}
	return ln, nil
}

// peerKey is the key of the peer of a connection.
type peerKey struct{}

// peerID is the process at the other end of a unix socket.
type peerID struct {
	uid uint32
	pid int32
}

// String returns the peer for the log.
func (p peerID) String() string { return fmt.Sprintf("uid %d pid %d", p.uid, p.pid) }

// name returns the user of the peer.
func (p peerID) name() string {
	u, err := user.LookupId(strconv.FormatUint(uint64(p.uid), 10))
	if err != nil {
		return fmt.Sprintf("uid %d", p.uid)
	}
	return u.Username
}

// withPeer notes who is at the other end of the socket.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var id peerID
	known := false
	_ = raw.Control(func(fd uintptr) {
		id, known = peerOf(int(fd))
	})
	if !known {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, id)
}

// peer returns who is at the other end of the admin socket, if the system tells.
func peer(ctx context.Context) (peerID, bool) {
	id, ok := ctx.Value(peerKey{}).(peerID)
	return id, ok
}
