package dns

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Bounds of forwarding.
const (
	maxForwarded   = 256 // queries in flight
	forwardTimeout = 2 * time.Second
	maxKnownHosts  = 4096
	minKept        = time.Second
	maxKept        = time.Minute
)

// forwarder asks other servers for names outside of our domain.
type forwarder struct {
	recursors []string
	slots     chan struct{}
	udp, tcp  dns.Client

	mu    sync.Mutex
	known map[hostKey]hostAddrs // hosts of members that are names
}

type hostKey struct {
	host   string
	rrtype uint16
}

type hostAddrs struct {
	addrs []netip.Addr
	until time.Time
}

func (f *forwarder) enabled() bool { return len(f.recursors) > 0 }

// ask asks the recursors in order. It returns nil if no recursor answers or too
// many queries are in flight.
func (f *forwarder) ask(ctx context.Context, r *dns.Msg) *dns.Msg {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil
	}
	q := r.Copy()
	q.Id = dns.Id()
	for _, server := range f.recursors {
		got, _, err := f.udp.ExchangeContext(ctx, q, server)
		if err == nil && got.Truncated {
			got, _, err = f.tcp.ExchangeContext(ctx, q, server)
		}
		if err == nil && got.Rcode != dns.RcodeServerFailure {
			return got
		}
	}
	return nil
}

// addresses resolves the host of a member. It caches the result for the records'
// TTL.
func (f *forwarder) addresses(ctx context.Context, host string, rrtype uint16) []netip.Addr {
	if !f.enabled() {
		return nil
	}
	key, now := hostKey{host, rrtype}, time.Now()
	f.mu.Lock()
	had, ok := f.known[key]
	f.mu.Unlock()
	if ok && now.Before(had.until) {
		return had.addrs
	}
	got := f.ask(ctx, new(dns.Msg).SetQuestion(host, rrtype))
	if got == nil {
		return had.addrs // keep the last known addresses during an outage
	}
	fresh := hostAddrs{until: now.Add(maxKept)}
	for _, rr := range got.Answer {
		var raw []byte
		switch rr := rr.(type) {
		case *dns.A:
			raw = rr.A
		case *dns.AAAA:
			raw = rr.AAAA
		default:
			continue
		}
		if addr, ok := netip.AddrFromSlice(raw); ok {
			fresh.addrs = append(fresh.addrs, addr.Unmap())
		}
		kept := max(time.Duration(rr.Header().Ttl)*time.Second, minKept)
		if until := now.Add(kept); until.Before(fresh.until) {
			fresh.until = until
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) >= maxKnownHosts {
		clear(f.known)
	}
	f.known[key] = fresh
	return fresh.addrs
}

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
	maps.DeleteFunc(l.buckets, func(_ netip.Prefix, b *bucket) bool { return b.left+now.Sub(b.at).Seconds()*perSecond >= burst })
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

// Write writes an answer. Who has it has its new place: another client may come at once.
func (c *cappedConn) Write(p []byte) (int, error) {
	c.of.mu.Lock()
	if _, ok := c.of.open[c]; ok {
		c.of.open[c] = time.Now()
	}
	c.of.mu.Unlock()
	return c.Conn.Write(p) //nolint:wrapcheck // It stands for the connection.
}

// Close closes the connection and gives its place back.
func (c *cappedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
