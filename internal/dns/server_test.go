package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/view"
)

func up(id, host string, port, weight int) view.Member {
	return view.Member{ID: id, Name: id, Host: host, Port: port, Weight: weight, Status: view.StatusUp}
}

func testState() State {
	draining := up("old", "10.0.0.9", 8080, 1)
	draining.Status = "draining"
	held := up("held", "10.0.0.3", 8080, 5)
	held.Held = true
	labelled := up("api-1", "10.0.0.1", 8080, 10)
	labelled.Labels = map[string]string{"zone": "a", "long": strings.Repeat("x", 300), "odd": "a\"b\\c\x01"}
	labelled.Ports = map[string]int{"Admin": 9090}
	labelled.Node = "host-1"
	six := up("api-2", "2001:db8::2", 8081, 0)
	named := up("api-3", "Host.Example.org", 8082, 70000)
	odd := up("a b/c", "10.0.0.4", 8084, 1)
	v := view.View{}.
		With(&view.Group{Name: "api", Members: []view.Member{labelled, six, named, draining, held, odd}}).
		With(&view.Group{Name: "Empty"}).
		With(&view.Group{Name: "draining", Members: []view.Member{draining}}).
		With(&view.Groups{Name: "all", Groups: []*view.Group{{Name: "Web", Members: []view.Member{up("w1", "10.1.0.1", 80, 1)}}}}).
		With(&view.Leader{Name: "nightly", ID: "host-1", Term: 77}).
		With(&view.Leader{Name: "vacant"})
	return State{Key: 1, View: v, Declared: append(v.Sources(), view.Source{Kind: view.KindGroup, Name: "late"})}
}

// start runs a server and returns it.
func start(t *testing.T, cfg Config, state func() State) *Server {
	t.Helper()
	cfg.Listen, cfg.Domain = "127.0.0.1:0", "ZKagent."
	s, err := New(cfg, state, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !s.Addr().IsValid() {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-tick.C:
		}
	}
	return s
}

func query(t *testing.T, s *Server, network, name string, rrtype, edns uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, rrtype)
	if edns > 0 {
		m.SetEdns0(edns, false)
	}
	c := dns.Client{Net: network, Timeout: 5 * time.Second, UDPSize: edns}
	got, _, err := c.Exchange(m, s.Addr().String())
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[rrtype], err)
	}
	return got
}

// short writes the records without their names and times, sorted.
func short(records []dns.RR) []string {
	var list []string
	for _, rr := range records {
		_, text, _ := strings.Cut(rr.String(), "\tIN\t")
		list = append(list, strings.Join(strings.Fields(text), " "))
	}
	slices.Sort(list)
	return list
}

// Every form of name answers as the package says.
func TestServer_Answers(t *testing.T) {
	t.Parallel()
	state := testState()
	s := start(t, Config{TTL: 3 * time.Second}, func() State { return state })
	odd := NodeLabel("a b/c")
	for _, c := range []struct {
		name   string
		rrtype uint16
		rcode  int
		want   []string
	}{
		{"api.group.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.1", "A 10.0.0.3", "A 10.0.0.4"}},
		{"API.Group.ZKAGENT.", dns.TypeAAAA, 0, []string{"AAAA 2001:db8::2"}},
		{"api.group.zkagent.", dns.TypeSRV, 0, []string{
			"SRV 1 0 8081 api-2.node.api.group.zkagent.", "SRV 1 1 8084 " + odd + ".node.api.group.zkagent.",
			"SRV 1 10 8080 api-1.node.api.group.zkagent.", "SRV 1 5 8080 held.node.api.group.zkagent.", "SRV 1 65535 8082 host.example.org.",
		}},
		{"_api._tcp.group.zkagent.", dns.TypeSRV, 0, []string{
			"SRV 1 0 8081 api-2.node.api.group.zkagent.", "SRV 1 1 8084 " + odd + ".node.api.group.zkagent.",
			"SRV 1 10 8080 api-1.node.api.group.zkagent.", "SRV 1 5 8080 held.node.api.group.zkagent.", "SRV 1 65535 8082 host.example.org.",
		}},
		{"admin.port.api.group.zkagent.", dns.TypeSRV, 0, []string{"SRV 1 10 9090 api-1.node.api.group.zkagent."}},
		{"admin.port.api.group.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.1"}},
		{"nosuch.port.api.group.zkagent.", dns.TypeSRV, dns.RcodeNameError, nil},
		{"api-1.node.api.group.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.1"}},
		{"api-1.node.api.group.zkagent.", dns.TypeSRV, 0, []string{"SRV 1 10 8080 api-1.node.api.group.zkagent."}},
		{"api-1.node.api.group.zkagent.", dns.TypeAAAA, 0, nil},
		{odd + ".node.api.group.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.4"}},
		{"old.node.api.group.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.9"}},
		{"api-3.node.api.group.zkagent.", dns.TypeA, 0, []string{"CNAME host.example.org."}},
		{"nosuch.node.api.group.zkagent.", dns.TypeA, dns.RcodeNameError, nil},
		{"node.api.group.zkagent.", dns.TypeA, 0, nil},
		{"empty.group.zkagent.", dns.TypeA, 0, nil},
		{"draining.group.zkagent.", dns.TypeSRV, 0, nil},
		{"nosuch.group.zkagent.", dns.TypeA, dns.RcodeNameError, nil},
		{"late.group.zkagent.", dns.TypeA, dns.RcodeServerFailure, nil},
		{"web.all.groups.zkagent.", dns.TypeA, 0, []string{"A 10.1.0.1"}},
		{"_web._tcp.all.groups.zkagent.", dns.TypeSRV, 0, []string{"SRV 1 1 80 w1.node.web.all.groups.zkagent."}},
		{"w1.node.web.all.groups.zkagent.", dns.TypeA, 0, []string{"A 10.1.0.1"}},
		{"nosuch.all.groups.zkagent.", dns.TypeA, dns.RcodeNameError, nil},
		{"leader.nightly.election.zkagent.", dns.TypeTXT, 0, []string{`TXT "id=host-1"`, `TXT "term=77"`}},
		{"leader.nightly.election.zkagent.", dns.TypeA, 0, []string{"A 10.0.0.1"}},
		{"leader.vacant.election.zkagent.", dns.TypeTXT, 0, nil},
		{"leader.nosuch.election.zkagent.", dns.TypeTXT, dns.RcodeNameError, nil},
		{"zkagent.", dns.TypeNS, 0, []string{"NS ns.zkagent."}},
		{"group.zkagent.", dns.TypeA, 0, nil},
		{"x.zkagent.", dns.TypeA, dns.RcodeNameError, nil},
		{"example.org.", dns.TypeA, dns.RcodeRefused, nil},
		{"notzkagent.", dns.TypeA, dns.RcodeRefused, nil},
		{"zkagent.", dns.TypeAXFR, dns.RcodeRefused, nil},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if c.rrtype == dns.TypeAXFR && network == "tcp" {
				continue // the client takes it for a transfer
			}
			got := query(t, s, network, c.name, c.rrtype, 4096)
			if got.Rcode != c.rcode || !slices.Equal(short(got.Answer), c.want) {
				t.Errorf("%s %s over %s: got %s %q\nwant %s %q", c.name, dns.TypeToString[c.rrtype], network,
					dns.RcodeToString[got.Rcode], short(got.Answer), dns.RcodeToString[c.rcode], c.want)
			}
			ours := strings.HasSuffix(strings.ToLower(c.name), ".zkagent.")
			if negative := len(got.Answer) == 0 && (c.rcode == 0 || c.rcode == dns.RcodeNameError); ours && negative {
				if len(got.Ns) != 1 || got.Ns[0].(*dns.SOA).Minttl != 3 {
					t.Errorf("%s: no SOA of 3 s: %v", c.name, got.Ns)
				}
			}
			for _, rr := range got.Answer {
				if rr.Header().Ttl != 3 {
					t.Errorf("%s: ttl %d", c.name, rr.Header().Ttl)
				}
			}
		}
	}
}

// The labels of a member arrive as they are, also long and odd ones.
func TestServer_TXT(t *testing.T) {
	t.Parallel()
	state := testState()
	s := start(t, Config{}, func() State { return state })
	got := query(t, s, "tcp", "api-1.node.api.group.zkagent.", dns.TypeTXT, 0)
	want := []string{
		`TXT "long=` + strings.Repeat("x", 250) + `" "` + strings.Repeat("x", 50) + `"`,
		`TXT "odd=a\"b\\c\001"`, `TXT "zone=a"`,
	}
	if !slices.Equal(short(got.Answer), want) {
		t.Errorf("got %q\nwant %q", short(got.Answer), want)
	}
}

// A large group is truncated over UDP and whole over TCP; an answer over UDP
// never exceeds what the client takes, and the addresses of SRV targets come
// along.
func TestServer_Sizes(t *testing.T) {
	t.Parallel()
	g := &view.Group{Name: "big"}
	for i := range 1500 {
		g.Members = append(g.Members, up(fmt.Sprintf("m-%d", i), fmt.Sprintf("10.2.%d.%d", i/250, i%250), 80, 1))
	}
	v := view.View{}.With(g)
	var state atomic.Pointer[State]
	state.Store(&State{Key: 1, View: v, Declared: v.Sources()})
	s := start(t, Config{}, func() State { return *state.Load() })
	for _, c := range []struct {
		edns uint16
		most int
	}{{0, 512}, {100, 512}, {700, 700}, {4096, maxUDP}} {
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeSRV} {
			got := query(t, s, "udp", "big.group.zkagent.", rrtype, c.edns)
			got.Compress = true // as it was sent
			if n := got.Len(); !got.Truncated || n > c.most || len(got.Answer) == 0 {
				t.Errorf("edns %d: truncated %v, %d bytes, %d records", c.edns, got.Truncated, n, len(got.Answer))
			}
		}
	}
	if got := query(t, s, "tcp", "big.group.zkagent.", dns.TypeA, 0); got.Truncated || len(got.Answer) != 1500 {
		t.Errorf("over TCP: truncated %v, %d records", got.Truncated, len(got.Answer))
	}
	g2 := &view.Group{Name: "big", Members: g.Members[:3]}
	v2 := view.View{}.With(g2)
	state.Store(&State{Key: 2, View: v2, Declared: v2.Sources()})
	if got := query(t, s, "udp", "big.group.zkagent.", dns.TypeSRV, 1232); len(got.Answer) != 3 || len(got.Extra) != 4 {
		t.Errorf("after a leave: %v", got)
	}
}

// Answers come in changing order.
func TestServer_Order(t *testing.T) {
	t.Parallel()
	state := testState()
	s := start(t, Config{}, func() State { return state })
	first := map[string]bool{}
	for range 200 {
		first[query(t, s, "udp", "api.group.zkagent.", dns.TypeA, 0).Answer[0].String()] = true
	}
	if len(first) != 3 {
		t.Errorf("%d of 3 members came first: %v", len(first), first)
	}
}

// Foreign names go to the recursors, and hosts of members are resolved there;
// without an answer the last known addresses stay.
func TestServer_Recursors(t *testing.T) {
	t.Parallel()
	var other State
	{
		m := up("x", "192.0.2.7", 1, 1)
		v := view.View{}.With(&view.Group{Name: "x", Members: []view.Member{m}})
		other = State{Key: 1, View: v, Declared: v.Sources()}
	}
	upstream := start(t, Config{}, func() State { return other })
	named := up("m", "x.group.zkagent", 80, 1)
	v := view.View{}.With(&view.Group{Name: "g", Members: []view.Member{named}})
	state := State{Key: 1, View: v, Declared: v.Sources()}
	s, err := New(Config{Listen: "127.0.0.1:0", Domain: "ours.", Recursors: []string{upstream.Addr().String()}},
		func() State { return state }, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(name string) *dns.Msg {
		m, _ := s.reply(t.Context(), new(dns.Msg).SetQuestion(name, dns.TypeA), maxRecordsTCP, func() bool { return false })
		return m
	}
	if got := ask("x.group.zkagent."); !slices.Equal(short(got.Answer), []string{"A 192.0.2.7"}) {
		t.Errorf("foreign name: %v", got)
	}
	if got := ask("g.group.ours."); !slices.Equal(short(got.Answer), []string{"A 192.0.2.7"}) {
		t.Errorf("member whose host is a name: %v", got)
	}
	if got := ask("m.node.g.group.ours."); !slices.Equal(short(got.Answer), []string{"A 192.0.2.7", "CNAME x.group.zkagent."}) {
		t.Errorf("its own name: %v", got)
	}
	s.forward.recursors = []string{"127.0.0.1:1"}
	for k, h := range s.forward.known {
		h.until = time.Time{}
		s.forward.known[k] = h
	}
	if got := ask("g.group.ours."); !slices.Equal(short(got.Answer), []string{"A 192.0.2.7"}) {
		t.Errorf("without a recursor: %v", got)
	}
	if got := ask("x.group.zkagent."); got.Rcode != dns.RcodeServerFailure {
		t.Errorf("foreign name without a recursor: %v", got)
	}
}

// Sources outside the loopback get small answers beyond the rate.
// What is not a query, as a notification of a change of zone, gets no records.
func TestServer_OtherOpcodes(t *testing.T) {
	s := start(t, Config{}, testState)
	for _, opcode := range []int{dns.OpcodeIQuery, dns.OpcodeStatus, dns.OpcodeNotify, dns.OpcodeUpdate, 6} {
		for _, network := range []string{"udp", "tcp"} {
			m := new(dns.Msg).SetQuestion("api.group.zkagent.", dns.TypeA)
			m.Opcode = opcode
			r, _, err := (&dns.Client{Net: network}).Exchange(m, s.Addr().String())
			if err != nil || r.Rcode != dns.RcodeNotImplemented || len(r.Answer) > 0 {
				t.Errorf("opcode %d over %s: %v, %v", opcode, network, r, err)
			}
		}
	}
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	l, now := &limiter{buckets: map[netip.Prefix]*bucket{}}, time.Unix(1000, 0)
	count := func(source string, at time.Time) int {
		n := 0
		for range 2 * burst {
			if l.allow(mustAddr(source), at) {
				n++
			}
		}
		return n
	}
	if n := count("192.0.2.1", now); n != burst {
		t.Errorf("a fresh network: %d", n)
	}
	if n := count("192.0.2.200", now.Add(time.Second)); n != perSecond {
		t.Errorf("the same network a second later: %d", n)
	}
	if n := count("198.51.100.1", now); n != burst {
		t.Errorf("another network: %d", n)
	}
	if n := count("127.0.0.1", now); n != 2*burst {
		t.Errorf("loopback: %d", n)
	}
	for i := range 2 * maxNetworks {
		l.allow(mustAddr(fmt.Sprintf("10.%d.%d.1", i>>8, i&255)), now)
	}
	if n := len(l.buckets); n > maxNetworks {
		t.Errorf("%d networks are remembered", n)
	}
	limited := new(dns.Msg).SetQuestion("api.group.zkagent.", dns.TypeA)
	s, _ := New(Config{Domain: "zkagent."}, testState, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if m, _ := s.reply(t.Context(), limited, maxRecordsUDP, func() bool { return true }); !m.Truncated || m.Len() > limited.Len() {
		t.Errorf("limited: %v", m)
	}
}

// Idle connections lock nobody out: one too many takes the place of the one that has
// waited the longest.
func TestServer_Connections(t *testing.T) {
	t.Parallel()
	state := testState()
	s := start(t, Config{}, func() State { return state })
	asked := func(c *dns.Conn) error {
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if err := c.WriteMsg(new(dns.Msg).SetQuestion("api.group.zkagent.", dns.TypeA)); err != nil {
			return err
		}
		_, err := c.ReadMsg()
		return err
	}
	dial := func() *dns.Conn {
		c, err := dns.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first, second := dial(), dial()
	for _, c := range []*dns.Conn{first, second} {
		if err := asked(c); err != nil {
			t.Fatal(err)
		}
	}
	for range maxTCP - 2 {
		if err := asked(dial()); err != nil {
			t.Fatal(err)
		}
	}
	if err := asked(first); err != nil {
		t.Fatal(err)
	}
	if err := asked(dial()); err != nil {
		t.Errorf("a new client gets no answer: %v", err)
	}
	if err := asked(first); err != nil {
		t.Errorf("a client that asks now and then lost its place: %v", err)
	}
	if err := asked(second); err == nil {
		t.Error("the client that was idle the longest kept its place")
	}
}

// Ask accepts a server that answers for the domain, and says what another does.
func TestAsk(t *testing.T) {
	s := start(t, Config{}, testState)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, network := range []string{"udp", "tcp"} {
		if err := Ask(ctx, network, s.Addr().String(), "zkagent"); err != nil {
			t.Error(err)
		}
		if err := Ask(ctx, network, s.Addr().String(), "example.org."); err == nil || !strings.Contains(err.Error(), "REFUSED") {
			t.Errorf("%s: got %v", network, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now.
	if err := Ask(ctx, "tcp", l.Addr().String(), "zkagent"); err == nil {
		t.Error("no server answers, and there is no error")
	}
}
