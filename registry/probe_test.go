package registry

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// hosts answers connections as the hosts of members do: by their ports.
type hosts struct {
	mu      sync.Mutex // guards what follows
	alive   map[string]bool
	refuse  bool
	cut     bool // nothing comes through
	dialled int
}

func (h *hosts) dial(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(address)
	h.mu.Lock()
	h.dialled++
	alive, refuse, cut := h.alive[port], h.refuse, h.cut
	h.mu.Unlock()
	switch {
	case cut || !alive && !refuse:
		<-ctx.Done()
		return nil, ctx.Err()
	case !alive:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	a, b := net.Pipe()
	_ = b.Close()
	return a, nil
}

func (h *hosts) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// probed follows a group of twelve of which nine vanish.
func probed(t *testing.T, h *hosts, f func(t *testing.T, srv *memzk.Server, g *Group, m *runner)) {
	t.Helper()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Probe, c.Guard.Hold = true, -1
		g := NewGroup(c)
		g.prober.dial = h.dial
		m := run(t, memConfig(srv), g)
		defer m.stop()
		join(t, srv, upTo(12)...)
		eventually(t, time.Second, "twelve", m.shows(upTo(12)...))
		leave(t, srv, upTo(12)[3:]...)
		eventually(t, 2*time.Second, "held", func() bool { return g.Status().Held == 9 })
		f(t, srv, g, m)
	})
}

func alive(ports string) map[string]bool {
	m := map[string]bool{}
	for port := range strings.FieldsSeq(ports) {
		m[port] = true
	}
	return m
}

// Members that are dead are believed to be gone; the others are held.
func TestProbe_DeadMembersAreBelieved(t *testing.T) {
	for _, refuse := range []bool{true, false} {
		h := &hosts{alive: alive("1 2 3 4 5 6 7"), refuse: refuse}
		probed(t, h, func(t *testing.T, _ *memzk.Server, g *Group, m *runner) {
			eventually(t, time.Minute, "the dead are gone", m.shows(upTo(7)...))
			if s := g.Status(); s.Held != 4 || s.Holding.IsZero() {
				t.Errorf("got %+v", s)
			}
			always(t, time.Hour, "the living are held", m.shows(upTo(7)...))
			h.set(func() { h.alive = alive("1 2 3") })
			eventually(t, time.Minute, "all that were lost are gone", m.shows(1, 2, 3))
			if !g.Status().Holding.IsZero() {
				t.Error("it holds no member")
			}
			time.Sleep(10 * probeEvery)
			h.set(func() { h.dialled = 0 })
			time.Sleep(10 * probeEvery)
			h.set(func() {
				if h.dialled > 0 {
					t.Errorf("%d probes without a member", h.dialled)
				}
			})
		})
	}
}

// What a probe found says nothing of a member that has registered again since. It is held
// with the others, and is tried anew.
func TestProbe_MembersThatCameBack(t *testing.T) {
	h := &hosts{alive: alive("1 2 3 8 9 10 11 12"), refuse: true}
	probed(t, h, func(t *testing.T, srv *memzk.Server, g *Group, m *runner) {
		eventually(t, time.Minute, "the dead are gone", m.shows(1, 2, 3, 8, 9, 10, 11, 12))
		h.set(func() { h.alive = alive("1 2 3 4 5 6 7 8 9 10 11 12") })
		join(t, srv, 4, 5, 6, 7)
		eventually(t, time.Second, "back", m.shows(upTo(12)...))
		time.Sleep(time.Minute)
		leave(t, srv, upTo(7)...)
		eventually(t, time.Second, "all are held", func() bool { return g.Status().Held == 12 })
		always(t, time.Minute, "all are held", m.shows(upTo(12)...))
		h.set(func() { h.alive = alive("1 2 3 4 5 8 9 10 11 12") })
		eventually(t, time.Minute, "the dead are gone", m.shows(1, 2, 3, 4, 5, 8, 9, 10, 11, 12))
	})
}

// When this host is cut off, silence says nothing.
func TestProbe_SilenceOfAllIsNoProof(t *testing.T) {
	h := &hosts{cut: true}
	probed(t, h, func(t *testing.T, srv *memzk.Server, g *Group, m *runner) {
		always(t, 10*time.Minute, "all are held", m.shows(upTo(12)...))
		join(t, srv, upTo(12)[3:]...)
		eventually(t, time.Minute, "back", func() bool { return g.Status().Held == 0 && m.shows(upTo(12)...)() })
	})
}

// It does not outlive its session, and begins anew in the next.
func TestProbe_EndsWithTheSession(t *testing.T) {
	h := &hosts{alive: alive("1 2 3 4 5"), refuse: true, cut: true}
	probed(t, h, func(t *testing.T, srv *memzk.Server, _ *Group, m *runner) {
		for range 3 {
			for _, id := range srv.SessionIDs() {
				srv.ExpireSession(id)
			}
			time.Sleep(time.Minute)
		}
		if !m.shows(upTo(12)...)() {
			t.Error("not held over sessions")
		}
		h.set(func() { h.cut = false })
		eventually(t, time.Minute, "the dead are gone", m.shows(upTo(5)...))
	})
}

func TestProbe_RealConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &prober{dial: new(net.Dialer).DialContext}
	up := setOf(l.Addr().(*net.TCPAddr).Port)
	up[0].Host = "127.0.0.1"
	if got := p.try(t.Context(), up[0]); got != probeAnswered {
		t.Errorf("a listener: %d", got)
	}
	l.Close()
	if got := p.try(t.Context(), up[0]); got != probeRefused {
		t.Errorf("a closed port: %d", got)
	}
	p.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
	if got := p.try(t.Context(), up[0]); got != probeSilent {
		t.Errorf("no route: %d", got)
	}
}
