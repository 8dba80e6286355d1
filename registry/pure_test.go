package registry

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
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

// epoch is when the tests of the rule begin, and later is after them.
var epoch, later = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)

// One script per case: seconds, members that are there, members and held ones
// that are used.
func TestGuard(t *testing.T) {
	type at struct {
		second    float64
		there     []int
		used      int
		held      int
		afterward func(*rule)
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
			{1, upTo(3), 12, 9, func(g *rule) { g.accept() }},
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
		{"others come after a clean stop of all, and vanish", GuardConfig{}, []at{
			{0, upTo(10), 10, 0, nil},
			{1, []int{-1, -2, -3, -4, -5, -6, -7, -8, -9, -10}, 10, 0, nil},
			{2, nil, 0, 0, nil},
			{5, []int{21, 22, 23, 24, 25, 26, 27, 28, 29}, 9, 0, nil},
			{15, []int{21, 22}, 9, 7, nil},
		}},
		{"one comes back after others have left for good, and all vanish", GuardConfig{}, []at{
			{0, upTo(10), 10, 0, nil},
			{1, upTo(9), 9, 0, nil},
			{40, upTo(9), 9, 0, nil},
			{41, []int{-1, -2, 3, 4, 5, 6, 7, 8, 9}, 9, 0, nil},
			{42, []int{3, 4, 5, 6, 7, 8, 9}, 7, 0, nil},
			{43, []int{3, 4, 5, 6, 7, 8, 9, 10}, 8, 0, nil},
			{50, nil, 8, 8, nil},
		}},
		{"others come during the hold, and all vanish", GuardConfig{}, []at{
			{0, upTo(12), 12, 0, nil},
			{1, upTo(3), 12, 9, nil},
			{60, []int{1, 2, 3, 21, 22, 23}, 15, 9, nil},
			{90, nil, 15, 15, nil},
			{602, nil, 6, 6, nil},
			{689, nil, 6, 6, nil},
			{690, nil, 0, 0, nil},
		}},
		{"off", GuardConfig{Off: true}, []at{{0, upTo(12), 12, 0, nil}, {1, nil, 0, 0, nil}}},
		{"own numbers", GuardConfig{MaxLoss: 0.9, MinMembers: 11, Window: time.Second}, []at{{0, upTo(12), 12, 0, nil}, {1, upTo(2), 2, 0, nil}, {10, upTo(12), 12, 0, nil}, {11, upTo(1), 12, 11, nil}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := rule{cfg: tt.cfg.withDefaults(), noDamping: true}
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
	g := rule{cfg: GuardConfig{MaxLoss: 1, MinMembers: 1 << 30}.withDefaults(), noDamping: true}
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
		for _, rec := range g.records {
			rec.joined = time.Time{} // it replaces none, whose loss would not count
		}
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

// usual is the rule with the usual settings.
func usual() *rule { return &rule{cfg: GuardConfig{}.withDefaults()} }

// serving are the ports of the members that may serve.
func serving(set members) []int {
	var list []int
	for _, m := range set {
		if m.MayServe() {
			list = append(list, m.Port)
		}
	}
	return list
}

func flapping(r *rule) int { return len(r.damped) }

func TestDamping_FlapsOncePerSecond(t *testing.T) {
	for _, down := range []int{1, 2} { // seconds of each absence
		r := usual()
		changes, shown := 0, -1
		for second := range 600 {
			set := setOf(upTo(10)...)
			if second%(1+down) >= 1 {
				set = setOf(upTo(9)...)
			}
			got, _ := r.step(epoch.Add(time.Duration(second)*time.Second), set)
			if n := len(serving(got)); n != shown {
				changes, shown = changes+1, n
			}
		}
		if changes > 4 || shown != 9 {
			t.Errorf("down for %d s: %d changes in 10 minutes, %d members may serve at the end", down, changes, shown)
		}
	}
}

// A member that stops to flap is shown as it is after a while, whichever way.
func TestDamping_Quiet(t *testing.T) {
	for _, end := range []int{9, 10} {
		r := usual()
		now := epoch
		for i := range 20 {
			now = now.Add(time.Second)
			r.step(now, setOf(upTo(10-i%2)...))
		}
		if flapping(r) != 1 {
			t.Fatalf("%d flapping", flapping(r))
		}
		actual := setOf(upTo(end)...)
		got, next := r.step(now.Add(time.Second), actual)
		if len(got) != 10 || next.IsZero() || next.Sub(now) > 3*time.Minute {
			t.Fatalf("%d members, next step in %v", len(got), next.Sub(now))
		}
		if got, next = r.step(next, actual); len(got) != end || !next.IsZero() || flapping(r) != 0 {
			t.Errorf("after the quiet: %d members, want %d; next %v", len(got), end, next)
		}
	}
}

// One absence is no flapping, and the penalty of an earlier one has decayed when the next
// is charged.
func TestDamping_RareAbsences(t *testing.T) {
	r := usual()
	now := epoch
	r.step(now, setOf(upTo(10)...))
	for range 20 {
		now = now.Add(3 * time.Minute)
		r.step(now, setOf(upTo(9)...))
		now = now.Add(5 * time.Second)
		if got, _ := r.step(now, setOf(upTo(10)...)); len(serving(got)) != 10 {
			t.Fatalf("%d serve, %d flapping", len(serving(got)), flapping(r))
		}
	}
}

// Two expiries of all sessions within a minute take no server out: 0 of 10 served, for
// each departure was charged although the guard held it.
func TestRule_TwoMassExpiries(t *testing.T) {
	for _, back := range [][]int{upTo(10), upTo(8), nil} { // those that are back first; nil: one by one
		r := usual()
		now := epoch
		least, held := 10, 0
		step := func(after time.Duration, ports ...int) {
			now = now.Add(after)
			got, _ := r.step(now, setOf(ports...))
			least = min(least, len(serving(got)))
			_, h := ports2(got)
			held = max(held, h)
		}
		step(0, upTo(10)...)
		step(time.Minute, upTo(10)...)
		for range 2 {
			for n := 9; n >= 0; n-- {
				step(100*time.Millisecond, upTo(n)...) // a server expires one session after the other
			}
			if back == nil {
				for n := 1; n < 10; n++ {
					step(time.Second, upTo(n)...)
				}
			} else {
				step(15*time.Second, back...)
			}
			step(time.Second, upTo(10)...)
			step(14*time.Second, upTo(10)...)
		}
		if least < 8 || held == 0 || flapping(r) != 0 {
			t.Errorf("back %v: at least %d of 10 served, %d were held, %d flap in the end", back, least, held, flapping(r))
		}
	}
}

// All sessions expire, and each member is back before the next one is seen to go, or so
// fast that only its new znode shows it. That is no flapping, also not after a crash.
func TestRule_QuickMassExpiries(t *testing.T) {
	for _, seen := range []int{10, 4, 2} { // those whose absence is seen
		r := usual()
		now := epoch
		set := setOf(upTo(10)...)
		step := func(after time.Duration, set members) members {
			now = now.Add(after)
			got, _ := r.step(now, set)
			return got
		}
		without := func(i int) members { return slices.Delete(slices.Clone(set), i, i+1) }
		step(0, set)
		step(time.Minute, without(0)) // a crash
		step(10*time.Second, set)
		for range 2 {
			step(40*time.Second, set)
			blinked := setOf(upTo(10)...)
			for i, m := range blinked {
				if m.Czxid = now.Unix(); i < seen {
					step(100*time.Millisecond, without(i))
				}
				set = slices.Clone(set)
				set[i] = m
			}
			step(100*time.Millisecond, set)
		}
		if got := step(time.Second, set); len(serving(got)) != 10 {
			t.Errorf("%d seen: %d of 10 serve: %v", seen, len(serving(got)), r.out())
		}
	}
}

func ports2(set members) (int, int) { all, held := ports(set); return len(all), len(held) }

// A crash and a restart with a warm-up is one absence: its ten weights are no flapping.
func TestRule_RestartWithWarmUp(t *testing.T) {
	r := usual()
	now, out := epoch, 0
	r.step(now, setOf(upTo(10)...))
	for second := range 180 {
		now = now.Add(time.Second)
		set := setOf(upTo(10)...)
		switch {
		case second < 5:
			set = setOf(upTo(9)...)
		case second < 36:
			set[9].Weight, _ = warmWeight(100, epoch.Add(6*time.Second), now, 30*time.Second)
		}
		if got, _ := r.step(now, set); len(serving(got)) < 10 {
			out++
		}
	}
	if out != 5 {
		t.Errorf("out for %d of 180 s, want the 5 of the restart", out)
	}
}

// Each new member pays for one departure, once, and not for its own.
func TestRule_NewMembersPayOnce(t *testing.T) {
	blue, green := upTo(10), []int{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	both := slices.Concat(blue, green)
	for name, tt := range map[string]struct {
		script [][]int // one minute apart
		held   int
	}{
		"half of the green vanish after the switch":         {[][]int{blue, both, green, green[:5]}, 5},
		"the blue go one by one":                            {[][]int{blue, both, both[2:], both[4:], both[6:], both[8:], green, green[:5]}, 5},
		"the blue say that they go":                         {[][]int{blue, both, slices.Concat([]int{-1, -2, -3, -4, -5, -6, -7, -8, -9, -10}, green), green, green[:5]}, 5},
		"five new ones for ten":                             {[][]int{blue, both[:15], both[10:15]}, 10},
		"five new ones for ten, in halves":                  {[][]int{blue, both[:15], both[5:15], both[10:15]}, 5},
		"a group that has just begun":                       {[][]int{nil, blue, blue[:5]}, 5},
		"the new ones go again":                             {[][]int{blue, both, blue}, 10},
		"one that comes back pays for none":                 {[][]int{blue, blue[:9], blue, blue[:6]}, 4},
		"the second switch":                                 {[][]int{blue, both, green, slices.Concat(green, []int{21, 22, 23, 24, 25, 26, 27, 28, 29, 30}), {21, 22, 23, 24, 25, 26, 27, 28, 29, 30}}, 0},
		"new ones come after the loss":                      {[][]int{blue, blue[:5], slices.Concat(blue[:5], green[:5])}, 0},
		"a new one that went has paid for nothing, and not": {[][]int{blue, both[:11], blue, blue[:6]}, 4},
	} {
		r := usual()
		var got members
		for i, set := range tt.script {
			got, _ = r.step(epoch.Add(time.Duration(i)*time.Minute), setOf(set...))
		}
		if _, held := ports2(got); held != tt.held {
			t.Errorf("%s: %d held, want %d", name, held, tt.held)
		}
	}
}

// What does not serve replaces none: a new member that is registered and not up, one that
// comes up and is down again, and one that did not serve when the follower restarted. One
// that comes after a loss makes up for that one, and then pays for no other.
func TestRule_OnlyMembersThatServeReplace(t *testing.T) {
	blue := upTo(10)
	for name, tt := range map[string]struct {
		script [][]int // one second apart
		again  int     // before this step the follower restarts
		serve  int
	}{
		"new ones that are not up":             {[][]int{blue, slices.Concat(blue, []int{-11, -12, -13, -14, -15}), slices.Concat(blue[5:], []int{-11, -12, -13, -14, -15})}, 0, 10},
		"new ones that were up":                {[][]int{blue, upTo(15), slices.Concat(blue, []int{-11, -12, -13, -14, -15}), slices.Concat(blue[5:], []int{-11, -12, -13, -14, -15})}, 0, 10},
		"new ones that are up until they pay":  {[][]int{blue, upTo(15), upTo(15)[5:], slices.Concat(blue[5:], []int{-11, -12, -13, -14, -15})}, 0, 10},
		"others that drain when it restarts":   {[][]int{slices.Concat(blue, []int{-11, -12, -13, -14, -15}), slices.Concat(blue[5:], []int{-11, -12, -13, -14, -15}), slices.Concat(blue[5:], []int{-11, -12, -13, -14, -15})}, 2, 10},
		"others that drained come up again":    {[][]int{slices.Concat(blue, []int{-11, -12}), slices.Concat(blue[5:], []int{-11, -12}), slices.Concat(blue[5:], []int{11, 12})}, 2, 12},
		"one that comes after a loss":          {[][]int{blue, blue[1:], upTo(11)[1:], upTo(11)[2:], upTo(11)[3:], upTo(11)[4:]}, 0, 10},
		"new ones that come up pay, as before": {[][]int{blue, slices.Concat(blue, []int{-11, -12, -13, -14, -15}), upTo(15), upTo(15)[5:]}, 0, 10},
	} {
		r := usual()
		var got members
		for i, set := range tt.script {
			if i == tt.again && i > 0 {
				before := &view.Group{Members: got.values(nil, nil), Holding: r.since, Out: r.out()}
				r = usual()
				r.resume(later, before)
			}
			got, _ = r.step(epoch.Add(time.Duration(i)*time.Second), setOf(set...))
		}
		if serve := serving(got); len(serve) != tt.serve {
			t.Errorf("%s: %v serve, want %d", name, serve, tt.serve)
		}
	}
}

// All members vanish a second before a hold of some of them ends, at a follower that has
// been there all the time, that was away, and that restarted. They have a hold of their own.
func TestRule_MassLossAtTheEndOfAHold(t *testing.T) {
	for _, how := range []string{"there", "away", "restarted"} {
		r := usual()
		r.step(epoch, setOf(upTo(12)...))
		r.step(epoch.Add(time.Second), setOf(upTo(8)...))
		got, _ := r.step(epoch.Add(9*time.Minute), setOf(upTo(8)...))
		if how != "away" {
			got, _ = r.step(epoch.Add(10*time.Minute), nil)
		}
		if how == "restarted" {
			before := &view.Group{Members: got.values(nil, nil), Holding: r.since, Out: r.out()}
			r = usual()
			r.resume(later, before)
		}
		for _, after := range []time.Duration{10*time.Minute + 2*time.Second, 19 * time.Minute} {
			got, next := r.step(epoch.Add(after), nil)
			if _, held := ports2(got); held != 8 || !next.After(epoch.Add(after)) {
				t.Errorf("%s: after %s: %d held, want 8; next %v", how, after, held, next)
			}
		}
		if got, _ := r.step(epoch.Add(21*time.Minute), nil); len(got) != 0 {
			t.Errorf("%s: %d are held in the end", how, len(got))
		}
	}
}

// All sessions expire again and again within one window, and most members come back each
// time: the losses that are let go after each add up.
func TestRule_LossesOfOneWindowAddUp(t *testing.T) {
	r := usual()
	now := epoch
	r.step(now, setOf(upTo(20)...))
	least := 20
	for _, back := range []int{15, 11, 8, 6, 5, 4} {
		now = now.Add(2 * time.Second)
		r.step(now, nil)
		now = now.Add(2 * time.Second)
		got, _ := r.step(now, setOf(upTo(back)...))
		least = min(least, len(serving(got)))
	}
	if least < 15 {
		t.Errorf("%d of 20 serve", least)
	}
}

// Damping and losses together stay below what the guard lets go, and the last members
// are never damped.
func TestDamping_TakesNoMoreThanTheGuardLetsGo(t *testing.T) {
	for _, tt := range []struct{ members, flap, out int }{{20, 8, 5}, {10, 9, 2}, {4, 3, 1}, {3, 2, 0}, {2, 1, 0}} {
		r := usual()
		now := epoch
		all := upTo(tt.members)
		for i := range 6 * tt.flap { // one after the other, so that the guard holds none
			now = now.Add(time.Second)
			r.step(now, setOf(slices.Delete(slices.Clone(all), i%tt.flap, i%tt.flap+1)...))
			now = now.Add(time.Second)
			r.step(now, setOf(all...))
		}
		got, _ := r.step(now.Add(r.cfg.Window), setOf(all...))
		if out := tt.members - len(serving(got)); out > tt.out {
			t.Errorf("%d of %d members flap: %d are out, at most %d are wanted", tt.flap, tt.members, out, tt.out)
		}
	}
}

// Rolling restarts and maintenance are no flapping: the guard still holds all
// members that vanish after them.
func TestRule_OrderedChangesLeaveTheGuardItsMembers(t *testing.T) {
	r := usual()
	now := epoch
	step := func(set members) members {
		now = now.Add(time.Second)
		shown, _ := r.step(now, set)
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
}

// A standing says why a member is out, and until when.
func TestStanding(t *testing.T) {
	r := usual()
	now := epoch
	step := func(after time.Duration, ports ...int) view.Standing {
		now = now.Add(after)
		r.step(now, setOf(ports...))
		if out := r.out(); len(out) > 0 {
			return out[0]
		}
		return view.Standing{}
	}
	if s := step(0, upTo(10)...); s != (view.Standing{}) {
		t.Errorf("all up: %+v", s)
	}
	if s := step(time.Minute, upTo(9)...); s.State != view.StandingGone || s.Serves || s.Since != now || !strings.Contains(s.String(), "not registered") {
		t.Errorf("gone: %+v %s", s, s)
	}
	step(time.Second, upTo(10)...)
	step(time.Second, upTo(9)...)
	s := step(time.Second, upTo(10)...)
	if s.State != view.StandingFlapping || s.Serves || s.Penalty < 3900 || !s.Until.After(now) || !strings.Contains(s.String(), " of 2,500, back at ") {
		t.Errorf("flapping: %+v %s", s, s)
	}
	if s := step(5*time.Minute, -1, 2, 3, 4, 5, 6, 7, 8, 9, 10); s.State != view.StatusDraining || !strings.Contains(s.String(), "draining") {
		t.Errorf("draining: %+v %s", s, s)
	}
	if s := step(time.Minute, upTo(2)...); s.State != view.StandingHeld || !s.Serves || s.Until != now.Add(DefaultHold) {
		t.Errorf("held: %+v %s", s, s)
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

// Members that vanish while another follower begins are lost together, as if it had been there.
func TestRule_ResumeWithoutAHold(t *testing.T) {
	for _, tt := range []struct {
		there      []int
		used, held int
	}{{nil, 10, 10}, {upTo(4), 10, 6}, {upTo(9), 9, 0}, {upTo(12), 12, 0}} {
		r := usual()
		r.resume(later, &view.Group{Members: setOf(upTo(10)...).values(nil, nil)})
		got, _ := r.step(epoch, setOf(tt.there...))
		if all, held := ports2(got); all != tt.used || held != tt.held {
			t.Errorf("%v: %d members, %d held; want %d and %d", tt.there, all, held, tt.used, tt.held)
		}
		if got, _ := r.step(epoch.Add(11*time.Minute), setOf(tt.there...)); len(got) != len(tt.there) {
			t.Errorf("%v: %d members after the hold, want %d", tt.there, len(got), len(tt.there))
		}
	}
}

// Settings that no longer want some members are obeyed at once: no guard holds those.
func TestGroup_BeforeIsWhatIsWanted(t *testing.T) {
	all := setOf(upTo(10)...).values(nil, nil)
	for i := range all {
		all[i].Host = fmt.Sprintf("10.0.%d.1", i/6)
	}
	g := NewGroup(GroupConfig{
		Path: "/s", Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Filter: func(m *view.Member) bool { return m.Port != 1 },
		Before: []*view.Group{{Path: "/other"}, {Path: "/s", Members: all}, {Path: "/s"}},
	})
	if got, _ := g.rule.step(later, nil); len(got) != 5 || !got[0].Held {
		t.Errorf("held are %+v, want the five that are wanted", got)
	}
}

// The hold of a process whose clock was an hour or years ahead ends like any other.
func TestRule_ResumeAfterAWrongClock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, 10000 * time.Hour} {
		r := usual()
		r.step(epoch.Add(ahead), setOf(upTo(10)...))
		r.step(epoch.Add(ahead+time.Second), setOf(upTo(4)...))
		used, _ := r.step(epoch.Add(ahead+time.Minute), setOf(upTo(3)...))
		before := &view.Group{Members: used.values(nil, nil), Holding: r.since, Out: r.out()}
		r = usual()
		r.resume(epoch, before)
		got, next := r.step(epoch, setOf(upTo(3)...))
		if all, held := ports2(got); all != 10 || held != 7 || !next.Equal(epoch.Add(DefaultHold)) {
			t.Errorf("%d members, %d held, until %v", all, held, next)
		}
		if got, _ = r.step(next, setOf(upTo(3)...)); len(got) != 3 {
			t.Errorf("after the hold there are %d members, want 3", len(got))
		}
	}
}

// A hold continues in another follower, until the time at which it would have ended.
func TestRule_Resume(t *testing.T) {
	r := usual()
	r.step(epoch, setOf(upTo(10)...))
	r.step(epoch.Add(time.Second), setOf(upTo(4)...))
	used, _ := r.step(epoch.Add(time.Minute), setOf(1, 2, 3, 4, 11))
	before := &view.Group{Members: used.values(nil, nil), Holding: r.since}
	for _, tt := range []struct {
		after      time.Duration
		there      []int
		used, held int
	}{
		{2 * time.Minute, []int{1, 2, 3, 4, 11}, 11, 6},
		{2 * time.Minute, []int{11, 12}, 12, 10},
		{2 * time.Minute, upTo(9), 9, 0},
		{11 * time.Minute, upTo(4), 4, 0},
	} {
		r := usual()
		r.resume(later, before)
		got, _ := r.step(epoch.Add(tt.after), setOf(tt.there...))
		if all, held := ports2(got); all != tt.used || held != tt.held {
			t.Errorf("%v after %s: %d members, %d held; want %d and %d", tt.there, tt.after, all, held, tt.used, tt.held)
		}
	}
}
