package dns

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
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

// node is the data at one name.
type node struct {
	group   *zone   // non-nil: A, AAAA and SRV of a group's members
	port    string  // with group: only members with this named port
	member  *member // one member
	leader  *view.Leader
	unknown bool // its source has not reported
}

// zone is a group, prepared for answers. It is created once for each state of
// the group.
type zone struct {
	of      *view.Group
	name    string          // "web.group" or "web.all.groups", in lower case
	block   string          // label of the block of the settings
	members []*member       // those that may get traffic, by id
	names   map[string]node // below the group: of every member, and of the ports in lower case
}

// member is one member, prepared for answers.
type member struct {
	view.Member
	label string
	addr  netip.Addr // zero: the host is a name
	host  string     // fully qualified, when it is a name
}

func newZone(g *view.Group, name, block string) *zone {
	z := &zone{of: g, name: name, block: block, names: map[string]node{"node": {}, "port": {}}}
	for _, m := range g.Members {
		id := cmp.Or(m.ID, m.Name)
		e := &member{Member: m, label: NodeLabel(id)}
		if addr, err := netip.ParseAddr(m.Host); err == nil {
			e.addr = addr.Unmap().WithZone("")
		} else if _, ok := dns.IsDomainName(m.Host); ok && m.Host != "" {
			e.host = dns.CanonicalName(m.Host)
		} else {
			continue
		}
		if _, taken := z.names[e.label+".node"]; taken {
			// Two members have one id: give each its own name.
			e.label = NodeLabel(id + "\x00" + m.Address())
		}
		z.names[e.label+".node"] = node{member: e}
		if !m.MayServe() {
			continue
		}
		z.members = append(z.members, e)
		for name := range maps.Keys(m.Ports) {
			name = strings.ToLower(name)
			z.names[name+".port"] = node{group: z, port: name}
		}
	}
	return z
}

// portOf returns the member's port of that name; the empty name means the main
// port.
func (m *member) portOf(name string) (int, bool) {
	if name == "" {
		return m.Port, m.Port > 0
	}
	for n, p := range m.Ports {
		if strings.EqualFold(n, name) {
			return p, true
		}
	}
	return 0, false
}

// tree finds names. Its owner makes a new tree when the view changes, and reuses
// the zones of unchanged groups. Its names are in lower case.
type tree struct {
	zones     map[string]*zone        // by name, as in "web.group" and "web.all.groups"; nil: not reported
	sets      map[string]bool         // by name, as in "all.groups": whether it has reported
	elections map[string]*view.Leader // nil: not reported
}

// newTree prepares a view. declared are the sources of the settings.
func newTree(v *view.View, declared []view.Source, old *tree) *tree {
	t := &tree{zones: map[string]*zone{}, sets: map[string]bool{}, elections: map[string]*view.Leader{}}
	add := func(g *view.Group, name, block string) {
		z := old.zones[name]
		switch {
		case g == nil:
			z = nil
		case z == nil || z.of != g:
			z = newZone(g, name, block)
		}
		t.zones[name] = z
	}
	for _, s := range declared {
		name := strings.ToLower(s.Name)
		switch s.Kind {
		case view.KindGroup:
			g, _ := v.Group(s.Name)
			add(g, name+".group", s.Name)
		case view.KindGroups:
			name += ".groups"
			set, reported := v.Groups(s.Name)
			if t.sets[name] = reported; !reported {
				continue
			}
			for _, g := range set.Groups {
				if !strings.Contains(g.Name, ".") { // it is no label
					add(g, strings.ToLower(g.Name)+"."+name, set.Name)
				}
			}
		case view.KindElection:
			l, _ := v.Leader(s.Name)
			t.elections[name] = l
		case view.KindConfig:
		}
	}
	return t
}

// find returns the node at a name. The labels are those before the domain, in lower
// case. exists is also true of names that only have others below them.
func (t *tree) find(labels []string) (n node, exists bool) { //nolint:nonamedreturns // The names say which is which.
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	switch labels[last] {
	case "group":
		return t.findIn(labels[:last], ".group")
	case "groups":
		if last == 0 {
			return node{}, true
		}
		set := labels[last-1] + ".groups"
		if reported, known := t.sets[set]; !reported {
			return node{unknown: known}, known
		}
		return t.findIn(labels[:last-1], "."+set)
	case "election":
		return t.findLeader(labels[:last])
	}
	return node{}, false
}

// findIn finds a name below "group" or below a set of groups.
func (t *tree) findIn(labels []string, place string) (node, bool) {
	if len(labels) == 0 {
		return node{}, true
	}
	last := len(labels) - 1
	group := labels[last]
	if group == "_tcp" || group == "_udp" {
		service, ok := strings.CutPrefix(labels[0], "_")
		if last != 1 || !ok {
			return node{}, last == 0
		}
		group, last = service, 0
	}
	z, known := t.zones[group+place]
	switch {
	case z == nil:
		return node{unknown: known}, known
	case last == 0:
		return node{group: z}, true
	}
	n, exists := z.names[strings.Join(labels[:last], ".")]
	return n, exists
}

func (t *tree) findLeader(labels []string) (node, bool) {
	if len(labels) == 0 {
		return node{}, true
	}
	l, known := t.elections[labels[len(labels)-1]]
	switch {
	case !known || len(labels) > 2 || len(labels) == 2 && labels[0] != "leader":
		return node{}, false
	case l == nil:
		return node{unknown: true}, true
	case len(labels) == 1:
		return node{}, true
	}
	return node{leader: l}, true
}

// hostOf finds the addresses of an agent's host from the members that it
// registered.
func (t *tree) hostOf(id string) []netip.Addr {
	var found []netip.Addr
	for _, z := range t.zones {
		if z == nil {
			continue
		}
		for _, n := range z.names {
			if m := n.member; m != nil && m.addr.IsValid() && (m.Node == id || m.ID == id) && !slices.Contains(found, m.addr) {
				found = append(found, m.addr)
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

// label matches what can stand as one label (RFC 1035, 2.3.4).
var label = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// IsLabel reports whether a name can stand as one label: 1 to 63 letters,
// digits, "-" and "_", not starting or ending with "-". Case does not matter.
func IsLabel(name string) bool { return label.MatchString(name) }

// unreadable are the characters that the readable part of a label does not have.
var unreadable = regexp.MustCompile(`[^a-z0-9-]`)

// digested matches a label that ends as those with a digest do.
var digested = regexp.MustCompile(`-[0-9a-f]{10}$`)

// NodeLabel returns the label of a member below "node". An id that is a valid label in
// lower case is its own label. Any other id becomes a readable part and a digest: one
// with upper case, and one that ends like a digest, too. So two ids do not share a label.
func NodeLabel(id string) string {
	lower := strings.ToLower(id)
	if IsLabel(id) && id == lower && !digested.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	readable := unreadable.ReplaceAllString(lower, "-")
	readable = strings.Trim(readable[:min(len(readable), 50)], "-")
	return cmp.Or(readable, "member") + "-" + hex.EncodeToString(sum[:5])
}
