// Package haproxy puts the members of a group into the server slots of a
// HAProxy backend, through HAProxy's runtime API. HAProxy is not reloaded.
//
// A backend keeps empty slots ("server-template slot 20 127.0.0.1:1
// disabled"). A member keeps the slot that has its address. A new member takes
// a slot in maintenance. The slot of a member that is gone goes into
// maintenance: requests that run end, new ones go elsewhere. So a leaving
// member does not move the others.
//
// Guarantees: only addresses, numbers and fixed words reach HAProxy. After the
// commands the state is read back and compared, so that a command that HAProxy
// took without effect is an error. Apply may be repeated at any time: it sends
// what differs.
//
// Not here: following the group, and health checks, which are HAProxy's own.
package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Bounds of talking to HAProxy.
const (
	askTimeout = 5 * time.Second
	maxAnswer  = 8 << 20
	maxSlots   = 10_000
)

// Bits of srv_admin_state (HAProxy management guide, "show servers state").
const (
	adminMaint = 0x01 | 0x02 | 0x20
	adminDrain = 0x08 | 0x10
)

// Backend is one backend of a running HAProxy.
type Backend struct {
	Socket string // path of the stats socket; its level must be admin
	Name   string
}

// Result is what Apply did.
type Result struct {
	Commands int
	Ready    int
	Left     []string // ids of members without a slot, or whose host has no address
}

var backendName = regexp.MustCompile(`^[A-Za-z0-9_.:-]+$`)

// CheckName reports why a name cannot be that of a backend.
func CheckName(name string) error {
	if !backendName.MatchString(name) {
		return fmt.Errorf("%q cannot be the name of a backend: use letters, digits and _.:-", name)
	}
	return nil
}

// Apply makes the slots of the backend those of the members. It sends what
// differs, then reads the state back; a difference that remains is an error.
func (b *Backend) Apply(ctx context.Context, members []view.Member) (Result, error) {
	var r Result
	if err := CheckName(b.Name); err != nil {
		return r, err
	}
	wants, left := servers(ctx, members)
	slots, err := b.Slots(ctx)
	if err != nil {
		return r, err
	}
	want, over := Plan(slots, wants)
	for i := range want {
		for _, c := range commands(b.Name, slots[i], want[i]) {
			if err := b.order(ctx, c); err != nil {
				return r, err
			}
			r.Commands++
		}
		if want[i].State == Ready {
			r.Ready++
		}
	}
	r.Left = left
	for _, s := range over {
		r.Left = append(r.Left, s.Name)
	}
	if r.Commands == 0 {
		return r, nil
	}
	now, err := b.Slots(ctx)
	if err != nil {
		return r, err
	}
	if i := slices.IndexFunc(want, func(s Slot) bool { return !slices.ContainsFunc(now, func(n Slot) bool { return same(s, n) }) }); i >= 0 {
		return r, fmt.Errorf("haproxy: %s/%s is not as it was set (%+v): does something else set it, too?", b.Name, want[i].Name, want[i])
	}
	return r, nil
}

// same compares a slot that was wanted with what is. The weight of a slot in
// maintenance does not matter.
func same(want, is Slot) bool {
	if want.State == Maint {
		return is.Name == want.Name && is.State == Maint
	}
	return is == want
}

func servers(ctx context.Context, members []view.Member) ([]Slot, []string) {
	var list []Slot
	var left []string
	for _, m := range members {
		addr, err := netip.ParseAddr(m.Host)
		if err != nil {
			addr, err = resolve(ctx, m.Host)
		}
		if err != nil || m.Port == 0 {
			left = append(left, m.ID)
			continue
		}
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
		list = append(list, s)
	}
	return list, left
}

func resolve(ctx context.Context, host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	// The least, so that the order of the answer moves no member.
	return slices.MinFunc(addrs, netip.Addr.Compare).Unmap(), nil
}

// Slots reads the slots of the backend.
func (b *Backend) Slots(ctx context.Context) ([]Slot, error) {
	answer, err := b.ask(ctx, "show servers state "+b.Name)
	if err != nil {
		return nil, err
	}
	return parseSlots(answer)
}

// parseSlots reads "show servers state": a version, a comment with the
// columns, a line for each server.
func parseSlots(answer string) ([]Slot, error) {
	lines := strings.Split(strings.TrimSpace(answer), "\n")
	if len(lines) < 2 || strings.TrimSpace(lines[0]) != "1" {
		return nil, fmt.Errorf("haproxy: %s", oneLine(answer))
	}
	columns := strings.Fields(strings.TrimPrefix(lines[1], "#"))
	at := map[string]int{}
	for i, c := range columns {
		at[c] = i
	}
	for _, c := range []string{"srv_name", "srv_addr", "srv_port", "srv_admin_state", "srv_uweight"} {
		if _, ok := at[c]; !ok {
			return nil, fmt.Errorf("haproxy: \"show servers state\" has no column %s", c)
		}
	}
	var slots []Slot
	for _, line := range lines[2:] {
		f := strings.Fields(line)
		if len(f) < len(columns) || len(slots) >= maxSlots {
			continue
		}
		admin, err1 := strconv.Atoi(f[at["srv_admin_state"]])
		weight, err2 := strconv.Atoi(f[at["srv_uweight"]])
		port, err3 := strconv.ParseUint(f[at["srv_port"]], 10, 16)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("haproxy: \"show servers state\": %w", err)
		}
		addr, _ := netip.ParseAddr(f[at["srv_addr"]]) // "-" where it has none
		slots = append(slots, Slot{
			Name: f[at["srv_name"]], Addr: netip.AddrPortFrom(addr.Unmap(), uint16(port)), Weight: weight, State: stateOf(admin),
		})
	}
	if len(slots) == 0 {
		return nil, errors.New("haproxy: the backend has no servers: give it slots (server-template)")
	}
	return slots, nil
}

func stateOf(admin int) State {
	switch {
	case admin&adminMaint != 0:
		return Maint
	case admin&adminDrain != 0:
		return Drain
	}
	return Ready
}

// order gives an order. HAProxy says nothing, or what it has changed.
func (b *Backend) order(ctx context.Context, command string) error {
	answer, err := b.ask(ctx, command)
	if err != nil {
		return err
	}
	answer = oneLine(answer)
	fine := func(text string) bool { return strings.HasPrefix(answer, text) }
	if answer == "" || slices.ContainsFunc([]string{"IP changed", "port changed", "no need to change", "nothing changed"}, fine) {
		return nil
	}
	return fmt.Errorf("haproxy: %s: %s", command, answer)
}

func (b *Backend) ask(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", b.Socket)
	if err != nil {
		return "", fmt.Errorf("haproxy: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", fmt.Errorf("haproxy: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("haproxy: %w", err)
	}
	return string(answer), nil
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), 200)]
}

// How often HAProxy's state is compared without a change: a HAProxy that was
// restarted has empty slots. An error is tried again sooner.
const (
	compareEvery = 10 * time.Second
	retryAfter   = time.Second
)

// Follow applies each list of members that arrives, until ctx ends or lists is
// closed. Lists that arrive while HAProxy is asked are folded. done is called
// after each time that something was changed or went wrong.
func (b *Backend) Follow(ctx context.Context, lists <-chan []view.Member, done func(Result, error)) {
	var members []view.Member
	timer := time.NewTimer(compareEvery)
	timer.Stop() // until there are members
	defer timer.Stop()
	for left := 0; ; {
		select {
		case <-ctx.Done():
			return
		case list, ok := <-lists:
			if !ok {
				return
			}
			members = list
		case <-timer.C:
		}
		r, err := b.Apply(ctx, members)
		if ctx.Err() != nil {
			return
		}
		if err != nil || r.Commands > 0 || len(r.Left) != left {
			done(r, err)
		}
		left = len(r.Left)
		timer.Reset(compareEvery)
		if err != nil {
			timer.Reset(retryAfter)
		}
	}
}

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
