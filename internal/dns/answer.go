package dns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/zkagent/zkagent/view"
)

// Bounds of one answer. The bounds on counts avoid work for records that would not
// fit.
const (
	maxRecordsTCP = 2000
	maxRecordsUDP = 100
	maxTXTString  = 255 // bytes of one string of a TXT record (RFC 1035, 3.3.14)
)

// answer fills m for a question below the domain. group is the label of the
// metrics.
func (s *Server) answer(ctx context.Context, t *tree, q dns.Question, m *dns.Msg, most int) (group string) { //nolint:nonamedreturns // The name says what the string is.
	name := dns.CanonicalName(q.Name)
	m.Authoritative = true
	labels := dns.SplitDomainName(strings.TrimSuffix(name, s.domain))
	n, exists := t.find(labels)
	if n.group != nil {
		group = n.group.block
	}
	switch {
	case n.unknown:
		m.Authoritative, m.Rcode = false, dns.RcodeServerFailure
		return group
	case !exists:
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{s.soa()}
		return group
	}
	a := &answers{s: s, q: q, header: dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: s.ttl}, m: m, most: most}
	switch {
	case n.group != nil:
		a.members(ctx, n.group, n.port)
	case n.member != nil:
		a.member(ctx, n.member)
	case n.leader != nil:
		a.leader(t, n.leader)
	case len(labels) == 0 && a.wants(dns.TypeSOA): // the domain itself
		a.add(s.soa())
	case len(labels) == 0 && a.wants(dns.TypeNS):
		a.add(&dns.NS{Hdr: a.typed(s.domain, dns.TypeNS), Ns: "ns." + s.domain})
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{s.soa()}
	}
	return group
}

// answers builds the records of one answer.
type answers struct {
	s      *Server
	q      dns.Question
	header dns.RR_Header
	m      *dns.Msg
	most   int // records
}

func (a *answers) wants(rrtype uint16) bool { return a.q.Qtype == rrtype }

// add adds a record; beyond the bound the answer is truncated.
func (a *answers) add(rr dns.RR) {
	if len(a.m.Answer) >= a.most {
		a.m.Truncated = true
		return
	}
	a.m.Answer = append(a.m.Answer, rr)
}

func (a *answers) typed(name string, rrtype uint16) dns.RR_Header {
	h := a.header
	h.Name, h.Rrtype = name, rrtype
	return h
}

// members answers for a group, in random order, so that clients that take the first
// member spread over all. A truncated answer begins at a random member.
func (a *answers) members(ctx context.Context, z *zone, port string) {
	if len(z.members) == 0 {
		return
	}
	seen := map[netip.Addr]bool{}
	suffix := ".node." + z.name + "." + a.s.domain // of the names of its members
	start := rand.IntN(len(z.members))             //nolint:gosec // spreads load, keeps no secret
	for i := 0; i < len(z.members) && !a.m.Truncated; i++ {
		m := z.members[(start+i)%len(z.members)]
		p, ok := m.portOf(port)
		switch {
		case !ok && (port != "" || a.wants(dns.TypeSRV)):
		case a.wants(dns.TypeSRV):
			a.srv(m, p, suffix)
		case a.wants(dns.TypeA) || a.wants(dns.TypeAAAA):
			addrs := []netip.Addr{m.addr}
			if m.host != "" {
				addrs = a.s.forward.addresses(ctx, m.host, a.q.Qtype)
			}
			for _, addr := range addrs {
				if !seen[addr] {
					seen[addr] = true
					a.address(a.q.Name, addr)
				}
			}
		}
	}
	rand.Shuffle(len(a.m.Answer), func(i, j int) { a.m.Answer[i], a.m.Answer[j] = a.m.Answer[j], a.m.Answer[i] }) //nolint:gosec // spreads load, no secret
}

// srv adds a record of one member. Its target is the member's own name, with an
// address record beside it. If the member's host is a name, the target is that
// name, because a target must not be an alias (RFC 2782).
func (a *answers) srv(m *member, port int, suffix string) {
	target := cmp.Or(m.host, m.label+suffix)
	a.add(&dns.SRV{
		Hdr: a.typed(a.q.Name, dns.TypeSRV), Priority: 1, Weight: uint16(min(max(m.Weight, 0), 65535)),
		Port: uint16(port), Target: target, //nolint:gosec // a port
	})
	if m.addr.IsValid() && !a.m.Truncated {
		a.m.Extra = append(a.m.Extra, record(a.typed(target, 0), m.addr))
	}
}

// address adds an address record when its kind is asked for.
func (a *answers) address(name string, addr netip.Addr) {
	if addr.Is4() && a.wants(dns.TypeA) || addr.Is6() && a.wants(dns.TypeAAAA) {
		a.add(record(a.typed(name, 0), addr))
	}
}

func record(h dns.RR_Header, addr netip.Addr) dns.RR {
	if addr.Is4() {
		h.Rrtype = dns.TypeA
		return &dns.A{Hdr: h, A: addr.AsSlice()}
	}
	h.Rrtype = dns.TypeAAAA
	return &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()}
}

// member answers for one member by its own name, even if the member gets no
// traffic.
func (a *answers) member(ctx context.Context, m *member) {
	switch a.q.Qtype {
	case dns.TypeSRV:
		if p, ok := m.portOf(""); ok && m.host == "" {
			_, parent, _ := strings.Cut(a.q.Name, ".")
			a.srv(m, p, "."+parent)
			return
		}
	case dns.TypeTXT:
		if m.host == "" {
			for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
				a.text(name + "=" + m.Labels[name])
			}
			return
		}
	}
	if m.host == "" {
		a.address(a.q.Name, m.addr)
		return
	}
	// The host is a name, so this name is an alias for every query type.
	a.add(&dns.CNAME{Hdr: a.typed(a.q.Name, dns.TypeCNAME), Target: m.host})
	if a.wants(dns.TypeA) || a.wants(dns.TypeAAAA) {
		for _, addr := range a.s.forward.addresses(ctx, m.host, a.q.Qtype) {
			a.address(m.host, addr)
		}
	}
}

// text adds a TXT record. It splits long text into several strings.
func (a *answers) text(text string) {
	var parts []string
	for len(text) > maxTXTString {
		parts, text = append(parts, escape(text[:maxTXTString])), text[maxTXTString:]
	}
	a.add(&dns.TXT{Hdr: a.typed(a.q.Name, dns.TypeTXT), Txt: append(parts, escape(text))})
}

// escape escapes text for the library, which reads backslashes as escapes of zone
// files.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '\\' || c == '"' {
			fmt.Fprintf(&b, `\%03d`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (a *answers) leader(t *tree, l *view.Leader) {
	if l.ID == "" {
		return
	}
	switch a.q.Qtype {
	case dns.TypeTXT:
		a.text("id=" + l.ID)
		a.text(fmt.Sprintf("term=%d", l.Term))
	case dns.TypeA, dns.TypeAAAA:
		addrs := t.hostOf(l.ID)
		if addr, err := netip.ParseAddr(l.ID); err == nil {
			addrs = []netip.Addr{addr.Unmap()}
		}
		for _, addr := range addrs {
			a.address(a.q.Name, addr)
		}
	}
}

// soa sets how long an absence may be cached: as long as a record.
func (s *Server) soa() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: s.domain, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: s.ttl},
		Ns:  "ns." + s.domain, Mbox: "hostmaster." + s.domain,
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: s.ttl,
	}
}
