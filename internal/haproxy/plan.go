package haproxy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/zkagent/zkagent/view"
)

// maxWeight is the largest weight that HAProxy takes.
const maxWeight = 256

// State of a slot.
type State string

// The states of a slot, as the runtime API names them.
const (
	Ready State = "ready"
	Drain State = "drain"
	Maint State = "maint"
)

// Slot is one server of the backend, or what one member wants of its slot.
type Slot struct {
	Name   string // of the server, or the id of the member
	Addr   netip.AddrPort
	Weight int
	State  State
}

// wanted is what a member wants. addr is its resolved host.
func wanted(m view.Member, addr netip.Addr) Slot {
	s := Slot{
		Name: m.ID, Addr: netip.AddrPortFrom(addr.Unmap(), uint16(m.Port)), //nolint:gosec // a port
		Weight: min(max(m.Weight, 0), maxWeight), State: Maint,
	}
	switch m.Status {
	case view.StatusUp:
		s.State = Ready
	case view.StatusDraining:
		s.State = Drain
	}
	return s
}

// Plan gives each member a slot. It returns the slots as they should be, in
// their order, and the members for which there is no room.
func Plan(slots, members []Slot) ([]Slot, []Slot) {
	next := slices.Clone(slots)
	taken := make([]bool, len(slots))
	give := func(i int, s Slot) {
		s.Name = next[i].Name
		taken[i], next[i] = true, s
	}
	// A member that takes no requests, because it is down or flaps, holds no slot that another
	// one could use. One that takes requests comes before one that drains at its address.
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b Slot) int { return rank(a.State) - rank(b.State) })
	var rest, left []Slot
	for _, s := range members {
		i := slices.IndexFunc(next, func(e Slot) bool { return e.Addr == s.Addr })
		if i < 0 || taken[i] || s.State == Maint {
			rest = append(rest, s)
			continue
		}
		give(i, s)
	}
	for _, s := range rest {
		i := slices.IndexFunc(next, func(e Slot) bool { return e.Addr == s.Addr })
		if i < 0 || taken[i] {
			i = free(next, taken, rest)
		}
		if i < 0 {
			left = append(left, s)
			continue
		}
		give(i, s)
	}
	for i := range next {
		if !taken[i] {
			next[i].State = Maint
		}
	}
	return next, left
}

func rank(s State) int { return slices.Index([]State{Ready, Drain, Maint}, s) }

// free finds an unused slot: best one in maintenance that has no member's address, then one
// in maintenance, because nothing runs on them.
func free(slots []Slot, taken []bool, members []Slot) int {
	best, worst := -1, 3
	for i, s := range slots {
		cost := 0
		switch {
		case taken[i]:
			continue
		case s.State != Maint:
			cost = 2
		case slices.ContainsFunc(members, func(m Slot) bool { return m.Addr == s.Addr }):
			cost = 1
		}
		if cost < worst {
			best, worst = i, cost
		}
	}
	return best
}

// commands are what makes a slot another. A slot that takes traffic stops
// before its address changes, and a slot that starts does so last, so that no
// request meets a wrong address or weight.
func commands(backend string, from, to Slot) []string {
	server := backend + "/" + to.Name
	var list []string
	add := func(format string, args ...any) {
		list = append(list, "set server "+server+" "+fmt.Sprintf(format, args...))
	}
	set := func(s State) {
		if from.State != s {
			add("state %s", s)
			from.State = s
		}
	}
	if from.Addr != to.Addr {
		set(Maint)
		add("addr %s port %d", to.Addr.Addr(), to.Addr.Port())
	}
	if to.State != Ready {
		set(to.State)
	}
	if to.State != Maint && from.Weight != to.Weight {
		add("weight %d", to.Weight)
	}
	set(to.State)
	return list
}
