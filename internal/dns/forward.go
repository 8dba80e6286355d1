package dns

import (
	"context"
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

func newForwarder(recursors []string) *forwarder {
	return &forwarder{
		recursors: recursors, slots: make(chan struct{}, maxForwarded), known: map[hostKey]hostAddrs{},
		udp: dns.Client{Net: "udp", Timeout: forwardTimeout, UDPSize: maxUDP}, tcp: dns.Client{Net: "tcp", Timeout: forwardTimeout},
	}
}

func (f *forwarder) enabled() bool { return len(f.recursors) > 0 }

// pass returns the answer of the first recursor that answers, or m if no recursor
// does.
func (f *forwarder) pass(ctx context.Context, r, m *dns.Msg) *dns.Msg {
	got := f.ask(ctx, r)
	if got == nil {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	got.Id, got.Compress = r.Id, true
	return got
}

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
