package web

import (
	"math"
	"net"
	"net/http"
	"sync"
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
func (s *Server) mostHTTP() int {
	c := s.Source.HTTP()
	if c == nil {
		return mostConnections(0)
	}
	return mostConnections(c.MaxConnections)
}
