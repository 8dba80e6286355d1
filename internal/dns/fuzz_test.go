package dns

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

// FuzzReply: whatever a query holds, the answer can be packed, and is no
// larger than the client takes.
func FuzzReply(f *testing.F) {
	state := testState()
	s, err := New(Config{Domain: "zkagent."}, func() State { return state }, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"api.group.zkagent.", "api-1.node.api.group.zkagent.", "_api._tcp.group.zkagent.", "leader.nightly.election.zkagent.", `\000.x.zkagent.`, "."} {
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeTXT, dns.TypeANY} {
			m := new(dns.Msg).SetQuestion(name, rrtype)
			packed, _ := m.Pack()
			f.Add(packed)
			m.SetEdns0(700, true)
			packed, _ = m.Pack()
			f.Add(packed)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		q := new(dns.Msg)
		if q.Unpack(raw) != nil {
			return
		}
		m, _ := s.reply(context.Background(), q, maxRecordsUDP, func() bool { return false })
		if m == nil {
			return
		}
		m.Truncate(udpSize(q))
		packed, err := m.Pack()
		if err != nil {
			t.Fatalf("the answer cannot be packed: %v\n%v", err, m)
		}
		if len(packed) > udpSize(q) {
			t.Fatalf("%d bytes for a client of %d", len(packed), udpSize(q))
		}
	})
}
