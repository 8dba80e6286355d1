package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of full answers over UDP to one network. Source addresses can be forged,
// so beyond the rate an answer is no larger than its query.
const (
	perSecond   = 200
	burst       = 400
	maxNetworks = 4096
)

// limiter is a bucket of answers for each network (/24 or /56) of sources.
type limiter struct {
	mu      sync.Mutex
	buckets map[netip.Prefix]*bucket
	swept   time.Time // when full buckets were last dropped
}

type bucket struct {
	left float64
	at   time.Time
}

func newLimiter() *limiter { return &limiter{buckets: map[netip.Prefix]*bucket{}} }

// allow takes one answer from a source's bucket; false: the bucket is empty. The
// loopback has no limit, because other hosts cannot forge it.
func (l *limiter) allow(source netip.Addr, now time.Time) bool {
	source = source.Unmap()
	if source.IsLoopback() {
		return true
	}
	bits := 24
	if source.Is6() {
		bits = 56
	}
	network, err := source.WithZone("").Prefix(bits)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[network]
	if b == nil {
		if len(l.buckets) >= maxNetworks && !l.forget(now) {
			return false
		}
		b = &bucket{left: burst, at: now}
		l.buckets[network] = b
	}
	b.left, b.at = min(b.left+now.Sub(b.at).Seconds()*perSecond, burst), now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// forget drops networks whose buckets are full again; false: the table is still
// full. It runs at most once a second, so that forged sources cost little.
func (l *limiter) forget(now time.Time) bool {
	if now.Sub(l.swept) < time.Second {
		return false
	}
	l.swept = now
	before := len(l.buckets)
	for n, b := range l.buckets {
		if b.left+now.Sub(b.at).Seconds()*perSecond >= burst {
			delete(l.buckets, n)
		}
	}
	return len(l.buckets) < before
}

// capped is a listener with a bounded number of open connections. Beyond the bound
// it closes a new connection at once. In a queue, the connection would block its
// client until a timeout.
type capped struct {
	net.Listener
	free chan struct{}
}

func newCapped(l net.Listener, most int) *capped {
	return &capped{Listener: l, free: make(chan struct{}, most)}
}

// Accept returns the next connection within the bound.
func (c *capped) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case c.free <- struct{}{}:
			return &cappedConn{Conn: conn, release: sync.OnceFunc(func() { <-c.free })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type cappedConn struct {
	net.Conn
	release func()
}

// Close closes the connection and gives its place back.
func (c *cappedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
