package registry

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Two registrars with one id in one session do not fight: their writes become
// rare.
func TestRegistrar_TwoWithOneID(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s, err := session.Dial(t.Context(), memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, weight := range []int{1, 2} {
			wg.Go(func() {
				_ = NewRegistrar(ServiceConfig{
					Name: "web", Groups: []string{groupPath}, MemberID: "same", Address: "10.0.0.5", Port: 80, Weight: &weight, Format: FormatTemplate,
					Template: "{{.Host}}:{{.Port}} {{.Weight}}",
				}).Run(ctx, s)
			})
		}
		time.Sleep(10 * time.Minute)
		cancel()
		wg.Wait()
		if got := srv.Requests()["setData"]; got > 100 {
			t.Errorf("%d writes in ten minutes", got)
		}
	})
}

// stubborn is a check that ignores its context.
type stubborn struct{ end chan struct{} }

func (c stubborn) Run(context.Context) (string, error) {
	<-c.end
	return "", nil
}

// A check that ignores its context does not keep RunChecks from returning.
func TestRunChecks_ReturnsThoughACheckIgnoresItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memzk.Server) {
		var h health
		r := NewRegistrar(webService(&h))
		end := make(chan struct{})
		r.checkers[0].check = stubborn{end}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.RunChecks(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		time.Sleep(2 * runGrace)
		select {
		case <-done:
		default:
			t.Error("RunChecks has not returned")
		}
		close(end)
	})
}

// A command that ends with 0 is good, though a child of its own keeps the output
// open.
func TestExecCheck_ChildKeepsTheOutputOpen(t *testing.T) {
	if _, code, err := plainRun(t.Context(), []string{"sh", "-c", "sleep 30 & exit 0"}, 100); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if _, code, err := plainRun(t.Context(), []string{"sh", "-c", "exit 3"}, 100); code != 3 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// One group that may not be read hides no other of the set.
func TestGroups_OneThatMayNotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s, err := session.Dial(t.Context(), memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		join(t, srv, 1)
		secret := []session.ACL{{Perms: session.PermAll, Scheme: "digest", ID: "x:y"}}
		if _, _, err := s.Create(t.Context(), "/services/secret", nil, session.Persistent, secret...); err != nil {
			t.Fatal(err)
		}
		g := NewGroups(GroupConfig{Name: "all", Path: "/services"})
		got := make(chan *view.Groups, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx, s, func(v *view.Groups) { got <- v }) }()
		select {
		case v := <-got:
			if len(v.Groups) != 1 || len(v.Groups[0].Members) != 1 {
				t.Errorf("got %+v", v.Groups)
			}
		case <-time.NewTimer(time.Second).C:
			t.Error("nothing was sent")
		}
		cancel()
		<-done
		unreadable := ""
		for _, st := range g.Status().Groups {
			unreadable += st.Error
		}
		if unreadable == "" {
			t.Error("the status does not say that one cannot be read")
		}
	})
}

// A loopback address that nobody asked for is refused: other hosts cannot use it.
func TestRegistrar_LoopbackIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Servers = []string{"127.0.0.1:2181"}
		r := NewRegistrar(ServiceConfig{Name: "web", Groups: []string{groupPath}, MemberID: "a", Port: 80})
		m := run(t, cfg, r)
		defer m.stop()
		time.Sleep(time.Minute)
		if st := r.Status(); st.Registered || !strings.Contains(st.Error, "set the address") {
			t.Errorf("got %+v", st)
		}
		asked := NewRegistrar(ServiceConfig{Name: "web", Groups: []string{groupPath}, MemberID: "b", Port: 80, Address: "127.0.0.1"})
		n := run(t, cfg, asked)
		defer n.stop()
		eventually(t, time.Minute, "registered when it is asked for", func() bool { return asked.Status().Registered })
	})
}

// A clean stop is announced, so that the guards of followers do not take it for a
// loss, however many stop at once. A loss without a word is held.
func TestRegistrar_ACleanStopIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		g := NewGroup(GroupConfig{Name: "web", Path: groupPath})
		watcher := run(t, memConfig(srv), g)
		defer watcher.stop()
		var all []*Registrar
		for i := range 10 {
			r := NewRegistrar(ServiceConfig{Name: "web", Groups: []string{groupPath}, MemberID: string(rune('a' + i)), Address: "10.0.0.5", Port: 80 + i})
			m := run(t, memConfig(srv), r)
			defer m.stop()
			all = append(all, r)
		}
		eventually(t, time.Minute, "ten", func() bool { return len(g.Status().Members) == 10 })
		var wg sync.WaitGroup
		for _, r := range all[:8] {
			wg.Go(func() { _ = r.Drain(t.Context()) })
		}
		wg.Wait()
		time.Sleep(time.Second)
		if st := g.Status(); len(st.Members) != 2 || st.Held != 0 {
			t.Errorf("%d members, %d held; want the two that stay", len(st.Members), st.Held)
		}
	})
}
