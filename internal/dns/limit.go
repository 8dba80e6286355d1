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

// capped is a listener with a bounded number of open connections. One too many takes
// the place of the one that has waited the longest since its last answer. So idle
// connections lock out no client.
type capped struct {
	net.Listener

	mu   sync.Mutex
	most int
	open map[*cappedConn]time.Time // when it came, or got its last answer
}

// Accept returns the next connection.
func (c *capped) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.most {
		var oldest *cappedConn
		for other, since := range c.open {
			if oldest == nil || since.Before(c.open[oldest]) {
				oldest = other
			}
		}
		delete(c.open, oldest)
		_ = oldest.Conn.Close()
	}
	one := &cappedConn{conn, c}
	c.open[one] = time.Now()
	return one, nil
}

type cappedConn struct {
	net.Conn
	of *capped
}

// Write writes an answer.
func (c *cappedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if _, ok := c.of.open[c]; ok {
		c.of.open[c] = time.Now()
	}
	return n, err
}

// Close closes the connection and gives its place back.
func (c *cappedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
