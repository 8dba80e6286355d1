package haproxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func server(i, weight int, s State) Slot {
	return Slot{Name: fmt.Sprint("m", i), Addr: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", i+1)), Weight: weight, State: s}
}

func empty(n int) []Slot {
	var slots []Slot
	for i := range n {
		slots = append(slots, Slot{Name: fmt.Sprint("slot", i+1), Addr: netip.MustParseAddrPort("127.0.0.1:1"), Weight: 1, State: Maint})
	}
	return slots
}

// Random joins, leaves and changes: every member that fits has one slot, keeps
// it while it stays, and every other slot is in maintenance. No member that takes requests is
// left out for one that does not. The commands, run
// one after the other, lead there, and no slot is ready with an address that is
// not its member's.
func TestPlan_Seeds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		slots := empty(1 + r.IntN(8))
		present := map[int]Slot{}
		for step := range 40 {
			for range 1 + r.IntN(3) {
				i := r.IntN(12)
				if _, ok := present[i]; ok && r.IntN(2) == 0 {
					delete(present, i)
				} else {
					present[i] = server(i, r.IntN(4), []State{Ready, Ready, Drain, Maint}[r.IntN(4)])
				}
			}
			var servers []Slot
			for _, s := range present {
				servers = append(servers, s)
			}
			slices.SortFunc(servers, func(a, b Slot) int { return a.Addr.Compare(b.Addr) })
			next, left := Plan(slots, servers)
			checkPlan(t, seed, step, slots, next, servers, left)
			for i := range next {
				slots[i] = run(t, slots[i], commands("b", slots[i], next[i]), servers)
				if !same(next[i], slots[i]) {
					t.Fatalf("seed %d step %d: commands lead to %+v, not %+v", seed, step, slots[i], next[i])
				}
			}
		}
	}
}

func checkPlan(t *testing.T, seed uint64, step int, slots, next, servers, left []Slot) {
	t.Helper()
	in := map[netip.AddrPort]int{}
	for i, s := range next {
		w := slices.IndexFunc(servers, func(e Slot) bool { return e.Addr == s.Addr })
		if s.State == Maint && w < 0 {
			continue
		}
		if w < 0 || servers[w].State != s.State || servers[w].Weight != s.Weight {
			t.Fatalf("seed %d step %d: slot %+v is nobody's", seed, step, s)
		}
		if _, twice := in[s.Addr]; twice && s.State != Maint {
			t.Fatalf("seed %d step %d: two slots for %s", seed, step, s.Addr)
		}
		in[s.Addr] = i
	}
	for _, s := range servers {
		i, ok := in[s.Addr]
		if !ok && !slices.Contains(left, s) {
			t.Fatalf("seed %d step %d: %+v has no slot", seed, step, s)
		}
		if was := slices.IndexFunc(slots, func(e Slot) bool { return e.Addr == s.Addr && e.State != Maint }); was >= 0 && was != i && s.State != Maint {
			t.Fatalf("seed %d step %d: %s moved from %d to %d", seed, step, s.Addr, was, i)
		}
	}
	for _, s := range left {
		if i := slices.IndexFunc(servers, func(e Slot) bool { return e.State == Maint }); s.State == Ready && i >= 0 && !slices.Contains(left, servers[i]) {
			t.Fatalf("seed %d step %d: %+v is left out, and %+v has a slot", seed, step, s, servers[i])
		}
	}
	if len(left) > 0 && len(servers) <= len(slots) {
		t.Fatalf("seed %d step %d: left out %v with room", seed, step, left)
	}
}

// run does what HAProxy does with the commands.
func run(t *testing.T, s Slot, list []string, servers []Slot) Slot {
	t.Helper()
	for _, c := range list {
		f := strings.Fields(strings.TrimPrefix(c, "set server b/"+s.Name+" "))
		switch f[0] {
		case "addr":
			s.Addr = netip.MustParseAddrPort(f[1] + ":" + f[3])
		case "weight":
			if _, err := fmt.Sscan(f[1], &s.Weight); err != nil {
				t.Fatal(err)
			}
		case "state":
			s.State = State(f[1])
		default:
			t.Fatalf("command %q", c)
		}
		if s.State == Ready && !slices.ContainsFunc(servers, func(e Slot) bool { return e.Addr == s.Addr }) {
			t.Fatalf("after %q slot %+v takes traffic for nobody", c, s)
		}
	}
	return s
}

func TestParseSlots(t *testing.T) {
	t.Parallel()
	const head = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port\n"
	got, err := parseSlots(head + "3 web 1 slot1 127.0.0.1 0 5 1 1\n3 web 2 slot2 10.0.0.1 2 0 7 8080\n3 web 3 slot3 ::1 2 8 7 80\n3 web 4 slot4 - 2 32 7 0\n\n")
	want := []Slot{
		{"slot1", netip.MustParseAddrPort("127.0.0.1:1"), 1, Maint},
		{"slot2", netip.MustParseAddrPort("10.0.0.1:8080"), 7, Ready},
		{"slot3", netip.MustParseAddrPort("[::1]:80"), 7, Drain},
		{"slot4", netip.AddrPort{}, 7, Maint},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "Can't find backend.\n", "1\n# srv_name\nx\n", head, "2\n# x\n", head + "3 web 1 slot1 127.0.0.1 0 x 1 1\n"} {
		if got, err := parseSlots(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
