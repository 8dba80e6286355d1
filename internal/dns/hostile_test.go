package dns

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// hostileIDs are names that a writer of members, groups and leaders may choose.
var hostileIDs = []string{
	"a", "A", strings.Repeat("n", 128), strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("a.", 63) + "b", ".a", "a.", "a..b", ":", "_tcp", "_udp", "node", "port", "group",
	"groups", "election", "leader", "zkagent", "ns", "10.0.0.1", "::1", "a-0123456789", "a_b", "_a", "a-", "xn--a",
}

// TestReply_HostileViews: whatever members, groups and leaders are called and hold, each name
// of the tree has an answer that can be packed, that is no larger than the client takes, and
// that has records of the asked name and kind only.
func TestReply_HostileViews(t *testing.T) {
	testhelp.Seeds(t, 400*time.Millisecond, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 53))
		one := func(list ...string) string { return list[r.IntN(len(list))] }
		id := func() string { return one(hostileIDs...) }
		members := func() []view.Member {
			var list []view.Member
			for range 1 + r.IntN(60) {
				m := view.Member{
					ID: id(), Name: id(), Node: id(), Status: view.StatusUp, Port: r.IntN(65536), Weight: r.IntN(257), Ports: map[string]int{id(): 1 + r.IntN(65535)},
					Host:   one("10.0.0.1", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.1", "h", strings.Repeat(strings.Repeat("h", 63)+".", 3)+strings.Repeat("h", 61), "localhost", "a.zkagent"),
					Labels: map[string]string{},
				}
				for range r.IntN(64) {
					m.Labels[fmt.Sprint(id(), r.IntN(9))] = strings.Repeat(id(), 2)
				}
				list = append(list, m)
			}
			return list
		}
		set := &view.Groups{Name: "all"}
		for _, name := range hostileIDs {
			set.Groups = append(set.Groups, &view.Group{Name: name, Members: members()})
		}
		v := view.View{}.With(&view.Group{Name: "api", Members: members()}).With(set).With(&view.Leader{Name: "e", ID: id(), Term: r.Int64()})
		state := State{Key: 1, View: v, Declared: v.Sources()}
		s, err := New(Config{Domain: one("zkagent.", strings.Repeat("d", 40)+".")}, func() State { return state }, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"", "group.", "groups.", "election.", "e.election.", "leader.e.election."}
		for zone, z := range s.tree().zones {
			names = append(names, zone+".", "_"+zone+".")
			for _, below := range slices.Sorted(maps.Keys(z.names)) {
				names = append(names, below+"."+zone+".")
			}
		}
		for _, name := range names {
			if _, ok := dns.IsDomainName(name + s.domain); !ok || strings.Contains(name, "..") || strings.HasPrefix(name, ".") {
				continue // Nobody can ask for it.
			}
			q := new(dns.Msg).SetQuestion(name+s.domain, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeANY}[r.IntN(5)])
			size, most := dns.MaxMsgSize, maxRecordsTCP
			if r.IntN(2) == 0 {
				size, most = udpSize(q), maxRecordsUDP
			}
			m, _ := s.reply(context.Background(), q, most, func() bool { return false })
			m.Truncate(size)
			packed, err := m.Pack()
			if again := new(dns.Msg); err != nil || len(packed) > size || cmp.Or(again.Unpack(packed), error(nil)) != nil {
				t.Errorf("%q: %d bytes of %d, %v", name, len(packed), size, err)
			}
			for _, rr := range m.Answer {
				if h := rr.Header(); h.Rrtype != q.Question[0].Qtype && h.Rrtype != dns.TypeCNAME || h.Name != q.Question[0].Name && h.Rrtype != dns.TypeA && h.Rrtype != dns.TypeAAAA {
					t.Errorf("%v answers %v", rr, q.Question[0])
				}
			}
		}
	})
}
