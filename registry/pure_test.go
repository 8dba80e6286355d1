package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

func TestCounter_RiseAndFall(t *testing.T) {
	tests := []struct {
		results string // + and -
		want    string // verdict after each: u, p or c
	}{
		{"+++", "upp"},
		{"---", "uuc"},
		{"+-+-+-", "uuuuuu"},
		{"++--+--", "upppppp"},
		{"++---+-++", "uppp" + "c" + "ccc" + "p"},
		{"--+++", "uuupp"},
	}
	for _, tt := range tests {
		c := counter{rise: 2, fall: 3}
		got := ""
		for _, r := range tt.results {
			c.add(r == '+')
			got += c.verdict.String()[:1]
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.results, got, tt.want)
		}
	}
}

// setOf makes a set of members named by numbers; those with negative ones drain.
func setOf(numbers ...int) members {
	set := members{}
	for _, n := range numbers {
		status := view.StatusUp
		if n < 0 {
			n, status = -n, view.StatusDraining
		}
		m := &view.Member{Znode: fmt.Sprint("n", n), Name: fmt.Sprint("n", n), Host: "10.0.0.5", Port: n, Status: status, Weight: 1}
		set = append(set, m)
	}
	set, _ = dedupe(set)
	return set
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i + 1
	}
	return list
}

func ports(set members) (all, held []int) {
	for _, m := range set {
		all = append(all, m.Port)
		if m.Held {
			held = append(held, m.Port)
		}
	}
	return all, held
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// One script per case: seconds, members that are there, members and held ones
// that are used.
func TestGuard(t *testing.T) {
	type at struct {
		second    float64
		there     []int
		used      int
		held      int
		afterward func(*guard)
	}
	tests := []struct {
		name   string
		cfg    GuardConfig
		script []at
	}{
		{"9 of 12 at once", GuardConfig{}, []at{{0, upTo(12), 12, 0, nil}, {1, upTo(3), 12, 9, nil}, {599, upTo(3), 12, 9, nil}, {602, upTo(3), 3, 0, nil}}},
		{"9 of 12 one after the other", GuardConfig{}, []at{
			{0, upTo(12), 12, 0, nil},
			{1, upTo(11), 11, 0, nil},
			{2, upTo(10), 10, 0, nil},
			{3, upTo(9), 9, 0, nil},
			{4, upTo(8), 12, 4, nil},
			{5, upTo(3), 12, 9, nil},
		}},
		{"3 of 12, one per minute", GuardConfig{}, []at{{0, upTo(12), 12, 0, nil}, {60, upTo(11), 11, 0, nil}, {120, upTo(10), 10, 0, nil}, {180, upTo(9), 9, 0, nil}}},
		{"few members", GuardConfig{}, []at{{0, upTo(2), 2, 0, nil}, {1, nil, 0, 0, nil}}},
		{"all of 3", GuardConfig{}, []at{{0, upTo(3), 3, 0, nil}, {1, nil, 3, 3, nil}}},
		{"a small share", GuardConfig{}, []at{{0, upTo(20), 20, 0, nil}, {1, upTo(15), 15, 0, nil}}},
		{"exactly the share", GuardConfig{}, []at{{0, upTo(10), 10, 0, nil}, {1, upTo(7), 10, 3, nil}}},
		{"recovered", GuardConfig{}, []at{{0, upTo(12), 12, 0, nil}, {1, upTo(3), 12, 9, nil}, {5, upTo(10), 10, 0, nil}, {6, upTo(9), 9, 0, nil}}},
		{"others come", GuardConfig{}, []at{{0, upTo(4), 4, 0, nil}, {1, []int{21, 22}, 6, 4, nil}}},
		{"accepted", GuardConfig{}, []at{
			{0, upTo(12), 12, 0, nil},
			{1, upTo(3), 12, 9, func(g *guard) { g.accept(epoch.Add(2*time.Second), setOf(upTo(3)...)) }},
			{2, upTo(3), 3, 0, nil},
		}},
		{"held for ever", GuardConfig{Hold: -1}, []at{{0, upTo(12), 12, 0, nil}, {1, nil, 12, 12, nil}, {1e6, nil, 12, 12, nil}}},
		{"five new ones stand in for five old ones that leave minutes later", GuardConfig{}, []at{
			{0, upTo(5), 5, 0, nil},
			{10, upTo(10), 10, 0, nil},
			{190, upTo(10), 10, 0, nil},
			{191, []int{6, 7, 8, 9, 10}, 5, 0, nil},
		}},
		{"half of a group that has long been ten", GuardConfig{}, []at{
			{0, upTo(5), 5, 0, nil},
			{10, upTo(10), 10, 0, nil},
			{700, upTo(10), 10, 0, nil},
			{701, []int{6, 7, 8, 9, 10}, 10, 5, nil},
		}},
		{"members that come back are no new ones", GuardConfig{}, []at{
			{0, upTo(10), 10, 0, nil}, {1, nil, 10, 10, nil}, {3, upTo(5), 10, 5, nil},
		}},
		{"all draining, then gone", GuardConfig{}, []at{
			{0, upTo(6), 6, 0, nil}, {1, []int{-1, -2, -3, -4, 5, 6}, 6, 0, nil}, {2, []int{5, 6}, 2, 0, nil}, {3, []int{5, 6}, 2, 0, nil},
		}},
		{"some draining and gone, then most of the rest lost", GuardConfig{}, []at{
			{0, upTo(10), 10, 0, nil},
			{1, []int{-1, -2, 3, 4, 5, 6, 7, 8, 9, 10}, 10, 0, nil},
			{2, []int{3, 4, 5, 6, 7, 8, 9, 10}, 8, 0, nil},
			{3, []int{9, 10}, 8, 6, nil},
		}},
		{"off", GuardConfig{Off: true}, []at{{0, upTo(12), 12, 0, nil}, {1, nil, 0, 0, nil}}},
		{"own numbers", GuardConfig{MaxLoss: 0.9, MinMembers: 11, Window: time.Second}, []at{{0, upTo(12), 12, 0, nil}, {1, upTo(2), 2, 0, nil}, {10, upTo(12), 12, 0, nil}, {11, upTo(1), 12, 11, nil}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := guard{cfg: tt.cfg.withDefaults()}
			for _, s := range tt.script {
				now := epoch.Add(time.Duration(s.second * float64(time.Second)))
				got, next := g.step(now, setOf(s.there...))
				all, held := ports(got)
				if len(all) != s.used || len(held) != s.held {
					t.Errorf("at %v s: used %v, held %v; want %d and %d", s.second, all, held, s.used, s.held)
				}
				if s.held > 0 && g.cfg.Hold > 0 && !next.After(now) {
					t.Errorf("at %v s: to be called again at %v", s.second, next)
				}
				if s.afterward != nil {
					s.afterward(&g)
				}
			}
		})
	}
}

// However fast members come and go, the guard remembers a bounded number of
// sets, and its base is that of a guard that remembers all, within a sighting.
func TestGuard_BoundedMemory(t *testing.T) {
	g := guard{cfg: GuardConfig{MaxLoss: 1, MinMembers: 1 << 30}.withDefaults()}
	rnd := rand.New(rand.NewPCG(1, 2))
	type seen struct {
		at   time.Time
		size int
	}
	var all []seen
	now, size := epoch, 50
	for range 600 {
		now = now.Add(time.Duration(rnd.IntN(200)) * time.Millisecond)
		size = max(1, size+rnd.IntN(7)-3)
		all = append(all, seen{now, size})
		g.step(now, setOf(upTo(size)...))
		if len(g.history) > sightings+2 {
			t.Fatalf("%d sets are remembered", len(g.history))
		}
		low, high := 0, 0
		slack := g.cfg.Window / sightings
		for i, s := range all {
			end := now
			if i+1 < len(all) {
				end = all[i+1].at
			}
			if !end.Before(now.Add(-g.cfg.Window + slack)) {
				low = max(low, s.size)
			}
			if !end.Before(now.Add(-g.cfg.Window)) {
				high = max(high, s.size)
			}
		}
		if got := len(g.largest()); got < low || got > high {
			t.Fatalf("base %d, want %d to %d", got, low, high)
		}
	}
}

func TestDamper_FlapsOncePerSecond(t *testing.T) {
	for _, down := range []int{1, 2} { // seconds of each absence
		var d damper
		changes, shown := 0, -1
		for second := range 600 {
			set := setOf(1, 2)
			if second%(1+down) >= 1 {
				set = setOf(1)
			}
			got, _ := d.step(epoch.Add(time.Duration(second)*time.Second), set)
			serving := 0
			for _, m := range got {
				if m.MayServe() {
					serving++
				}
			}
			if shown >= 0 && serving != shown {
				changes++
			}
			shown = serving
		}
		if changes > 3 || shown != 1 {
			t.Errorf("down for %d s: %d changes in 10 minutes, %d members may serve at the end", down, changes, shown)
		}
	}
}

// A member that stops to flap is shown as it is after a while, whichever way.
func TestDamper_Quiet(t *testing.T) {
	for _, end := range [][]int{{1}, {1, 2}} {
		var d damper
		now := epoch
		for i := range 20 {
			set := setOf(1, 2)
			if i%2 == 1 {
				set = setOf(1)
			}
			now = now.Add(time.Second)
			d.step(now, set)
		}
		if len(d.flapping()) != 1 {
			t.Fatalf("flapping: %v", d.flapping())
		}
		actual := setOf(end...)
		got, next := d.step(now.Add(time.Second), actual)
		if len(got) != 2 || next.IsZero() || next.Sub(now) > 3*time.Minute {
			t.Fatalf("%d members, next step in %v", len(got), next.Sub(now))
		}
		if got, next = d.step(next, actual); len(got) != len(end) || !next.IsZero() || len(d.flapping()) != 0 {
			t.Errorf("after the quiet: %d members, want %d; next %v", len(got), len(end), next)
		}
	}
}

// A restart, a warm-up and a first list are no flapping.
func TestDamper_Harmless(t *testing.T) {
	var d damper
	now := epoch
	step := func(set members, want int) {
		t.Helper()
		now = now.Add(5 * time.Second)
		if got, _ := d.step(now, set); len(got) != want || len(d.flapping()) != 0 {
			t.Fatalf("%d members, flapping %v; want %d", len(got), d.flapping(), want)
		}
	}
	step(setOf(upTo(100)...), 100)
	step(setOf(upTo(99)...), 99)
	step(setOf(upTo(100)...), 100)
	var warm damper
	for w := range warmUpSteps {
		set := setOf(1)
		set[0].Weight = w + 1
		got, _ := warm.step(epoch.Add(time.Duration(w)*6*time.Second), set)
		for _, m := range got {
			if m.Weight != w+1 {
				t.Errorf("step %d of a warm-up: weight %d", w, m.Weight)
			}
		}
	}
}

// Rolling restarts and maintenance are no flapping: the guard still holds all
// members that vanish after them.
func TestDamper_OrderedChangesLeaveTheGuardItsMembers(t *testing.T) {
	var d damper
	g := guard{cfg: GuardConfig{}.withDefaults()}
	now := epoch
	step := func(set members) members {
		now = now.Add(time.Second)
		shown, _ := d.step(now, set)
		shown, _ = g.step(now, shown)
		return shown
	}
	as := func(status string, only ...int) members {
		set := setOf(upTo(10)...)
		for _, i := range only {
			set[i].Status = status
		}
		return set
	}
	step(as(""))
	for i := range 10 {
		for range 2 {
			step(as(view.StatusDraining, i))
			step(slices.Delete(as(""), i, i+1))
			step(as(""))
			step(as(view.StatusMaintenance, i))
		}
	}
	step(as(""))
	shown := step(nil)
	for _, m := range shown {
		if !m.Held || !m.MayServe() {
			t.Errorf("%s: held %t, status %s", m.Name, m.Held, m.Status)
		}
	}
	if len(shown) != 10 {
		t.Errorf("%d members, want 10", len(shown))
	}
	// A member that vanishes without a word counts as one that flaps.
	d, now = damper{}, epoch
	for i := range 6 {
		step(setOf(upTo(2 - i%2)...))
	}
	if len(d.flapping()) != 1 {
		t.Errorf("flapping: %v", d.flapping())
	}
}

func TestDedupe_NewestWins(t *testing.T) {
	member := func(node string, czxid int64) *view.Member {
		return &view.Member{Znode: node, Name: node, Host: "10.0.0.5", Port: 80, Czxid: czxid}
	}
	got, rejected := dedupe(members{member("member_0000000001", 5), member("member_0000000003", 9), member("member_0000000002", 7)})
	if len(got) != 1 || got[0].Czxid != 9 || len(rejected) != 2 {
		t.Errorf("got %v, rejected %v", got, rejected)
	}
	if set, _ := dedupe(members{member("a", 5), member("b", 9)}); len(set) != 2 {
		t.Errorf("members with other names were taken for one: %v", set)
	}
}

func TestWarmWeight(t *testing.T) {
	var weights []int
	now := epoch
	for {
		w, next := warmWeight(20, epoch, now, time.Minute)
		weights = append(weights, w)
		if next.IsZero() {
			break
		}
		if !next.After(now) {
			t.Fatalf("next %v is not after %v", next, now)
		}
		now = next
	}
	if want := []int{1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20}; !slices.Equal(weights, want) {
		t.Errorf("got %v, want %v", weights, want)
	}
}

// 500 services of one host come back evenly: no tenth of the splay has more than
// a fifth of them.
func TestSplay_Even(t *testing.T) {
	const services, slots = 500, 10
	var count [slots]int
	for i := range services {
		d := splayOf(fmt.Sprintf("/services/s%03d/host-s%03d", i, i), time.Minute)
		if d < 0 || d >= time.Minute {
			t.Fatalf("splay %v", d)
		}
		count[int(d*slots/time.Minute)]++
	}
	if most := slices.Max(count[:]); most > services/5 {
		t.Errorf("%d of %d in one of %d slots: %v", most, services, slots, count)
	}
	again := splayOf("a", time.Minute)
	if splayOf("a", 0) != 0 || splayOf("a", time.Minute) != again {
		t.Error("the splay of a member is not fixed")
	}
}
