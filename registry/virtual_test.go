package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Tests in virtual time, against the server in memory.

const groupPath = "/services/web"

func bubble(t *testing.T, f func(t *testing.T, srv *memzk.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		f(t, srv)
	})
}

func memConfig(srv *memzk.Server) session.Config {
	return session.Config{Servers: []string{"a:2181"}, Dial: srv.Dial, Timeout: 12 * time.Second}
}

// runUnit runs a registrar, a group or groups in one session.
func runUnit(ctx context.Context, u any, s *session.Session, up func(view.Update)) error {
	switch u := u.(type) {
	case *Registrar:
		return u.Run(ctx, s)
	case *Group:
		return view.Untyped(u.Run)(ctx, s, up)
	}
	return view.Untyped(u.(*Groups).Run)(ctx, s, up)
}

// runner runs a unit in one session after the other, as the agent does.
type runner struct {
	*session.Manager
	stop func()

	mu      sync.Mutex // guards updates
	updates []view.Update
}

func run(t *testing.T, cfg session.Config, u any) *runner {
	t.Helper()
	m, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &runner{Manager: m}
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(ctx) })
	if reg, ok := u.(*Registrar); ok {
		wg.Go(func() { _ = reg.RunChecks(ctx) })
	}
	unitCtx, stopUnit := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for unitCtx.Err() == nil {
			s, err := m.Session(unitCtx)
			if err != nil {
				return
			}
			err = runUnit(unitCtx, u, s, r.up)
			if err != nil && !errors.Is(err, session.ErrExpired) && !errors.Is(err, session.ErrClosed) {
				t.Errorf("run: %v", err)
				return
			}
		}
	}()
	r.stop = sync.OnceFunc(func() {
		stopUnit()
		<-done
		cancel()
		wg.Wait()
	})
	return r
}

func (r *runner) up(u view.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, u)
}

// all returns every update so far.
func (r *runner) all() []view.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]view.Update(nil), r.updates...)
}

func (r *runner) group() *view.Group {
	all := r.all()
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1].(*view.Group)
}

// eventually waits for a condition in virtual time.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
	}
}

// always checks that a condition holds all the time.
func always(t *testing.T, during time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); {
		if !ok() {
			t.Fatalf("not always: %s", what)
		}
		time.Sleep(max(during/500, 50*time.Millisecond))
		synctest.Wait()
	}
}

// health is an exec check that can be switched.
type health struct{ bad, slow atomic.Bool }

func (h *health) run(ctx context.Context, _ []string, _ int) (string, int, error) {
	if h.slow.Load() {
		<-ctx.Done()
	}
	if h.bad.Load() {
		return "bad", 2, nil
	}
	return "good", 0, nil
}

func webService(h *health) ServiceConfig {
	return ServiceConfig{
		Name: "web", Groups: []string{groupPath}, Address: "10.0.0.5", Port: 8080, MemberID: "web-1", Run: h.run,
		Checks: []CheckConfig{{Kind: CheckExec, Command: []string{"check"}}},
	}
}

func curatorService(h *health) ServiceConfig {
	c := webService(h)
	c.Format = FormatCurator
	return c
}

// nodes returns the members' znodes by name.
func nodes(srv *memzk.Server) map[string]memzk.Node {
	found := map[string]memzk.Node{}
	for p, n := range srv.Tree() {
		if name, ok := strings.CutPrefix(p, groupPath+"/"); ok {
			found[name] = n
		}
	}
	return found
}

func one(srv *memzk.Server) (name string, n memzk.Node, ok bool) {
	all := nodes(srv)
	for name, n = range all {
	}
	return name, n, len(all) == 1
}

func TestRegistrar_OnlyAfterChecksHaveRisen(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		h.bad.Store(true)
		r := NewRegistrar(webService(&h))
		m := run(t, memConfig(srv), r)
		defer m.stop()
		always(t, time.Minute, "not registered", func() bool { return len(nodes(srv)) == 0 })
		if s := r.Status(); s.State != StateCritical || s.Registered || len(s.Checks) != 1 || !strings.Contains(s.Checks[0].Output, "bad") {
			t.Errorf("got %+v", s)
		}
		h.bad.Store(false)
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		name, n, _ := one(srv)
		if want := `{"host":"10.0.0.5","port":8080,"name":"web-1"}`; string(n.Data) != want || name != "web-1_0000000000" {
			t.Errorf("%s: got %s, want %s", name, n.Data, want)
		}
		if s := r.Status(); s.State != StateRegistered || !s.Registered || !slices.Equal(s.Nodes, []string{groupPath + "/" + name}) {
			t.Errorf("got %+v", s)
		}
		h.bad.Store(true)
		eventually(t, time.Minute, "removed", func() bool { return len(nodes(srv)) == 0 })
		h.bad.Store(false)
		eventually(t, time.Minute, "back", func() bool { return len(nodes(srv)) == 1 })
		h.slow.Store(true) // a check that does not answer fails
		eventually(t, time.Minute, "removed", func() bool { return len(nodes(srv)) == 0 })
	})
}

func TestRegistrar_StatusInsteadOfRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.OnCritical, c.Format = OnCriticalStatus, FormatServerSet
		m := run(t, memConfig(srv), NewRegistrar(c))
		defer m.stop()
		status := func(want string) func() bool {
			return func() bool {
				_, n, ok := one(srv)
				return ok && strings.Contains(string(n.Data), `"status":"`+want+`"`)
			}
		}
		eventually(t, time.Minute, "alive", status("ALIVE"))
		first, _, _ := one(srv)
		h.bad.Store(true)
		eventually(t, time.Minute, "dead", status("DEAD"))
		h.bad.Store(false)
		eventually(t, time.Minute, "alive", status("ALIVE"))
		if last, _, _ := one(srv); first != last {
			t.Errorf("the znode changed from %s to %s", first, last)
		}
	})
}

func TestRegistrar_RecreatesWhenSessionExpires(t *testing.T) {
	testhelp.InTurn(t, 2)
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		for range 5 {
			var h health
			r := NewRegistrar(webService(&h))
			m := run(t, memConfig(srv), r)
			eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
			for range 5 {
				time.Sleep(5 * time.Minute) // virtual
				name, n, _ := one(srv)
				srv.ExpireSession(n.Stat.EphemeralOwner)
				eventually(t, time.Minute, "registered anew", func() bool {
					again, _, ok := one(srv)
					return ok && again != name && r.Status().Registered
				})
				if s := r.Status(); s.State != StateRegistered || time.Since(s.Since) > time.Minute {
					t.Errorf("%s since %s ago", s.State, time.Since(s.Since))
				}
			}
			m.stop()
			eventually(t, time.Minute, "gone with the session", func() bool { return len(nodes(srv)) == 0 })
		}
	})
}

// The status of a member whose session has ended says so at once, even while Run
// is busy.
func TestRegistrar_StatusEndsWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		var held atomic.Bool
		let := make(chan struct{})
		c := webService(&h)
		c.Changed = func() {
			if held.Load() {
				<-let
			}
		}
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		defer m.stop()
		defer close(let)
		eventually(t, time.Minute, "registered", func() bool { return r.Status().Registered })
		s, err := m.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held.Store(true)
		srv.ExpireSession(s.ID())
		<-s.Context().Done()
		if r.Status().Registered {
			t.Error("registered in a session that has ended")
		}
	})
}

func TestRegistrar_SplayInLaterSessions(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.Splay = time.Hour
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "registered at once in the first session", func() bool { return len(nodes(srv)) == 1 })
		_, n, _ := one(srv)
		srv.ExpireSession(n.Stat.EphemeralOwner)
		d := splayOf(c.Groups[0]+"/"+c.MemberID+"/"+c.Name, c.Splay)
		always(t, d-time.Minute, "not before its splay", func() bool { return len(nodes(srv)) == 0 })
		if s := r.Status(); s.State != StateWaiting {
			t.Errorf("got %+v", s)
		}
		eventually(t, 2*time.Minute, "registered after its splay", func() bool { return len(nodes(srv)) == 1 })
	})
}

func TestRegistrar_RecreatesWhenDeleted(t *testing.T) {
	for _, config := range []func(*health) ServiceConfig{webService, curatorService} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			var h health
			m := run(t, memConfig(srv), NewRegistrar(config(&h)))
			defer m.stop()
			start, deleted := time.Now(), 0
			for time.Since(start) < 10*time.Minute {
				for name := range nodes(srv) {
					if srv.Delete(groupPath+"/"+name) == nil {
						deleted++
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
			if deleted < 10 || deleted > 40 {
				t.Errorf("made again %d times in 10 minutes: no back-off, or too much of it", deleted)
			}
			eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		})
	}
}

func TestRegistrar_DisconnectAloneChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		m := run(t, memConfig(srv), NewRegistrar(webService(&h)))
		defer m.stop()
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		name, n, _ := one(srv)
		for range 20 {
			srv.DropConnections()
			time.Sleep(5 * time.Second)
		}
		again, after, ok := one(srv)
		if !ok || again != name || after.Stat.Czxid != n.Stat.Czxid || after.Stat.Mzxid != n.Stat.Mzxid {
			t.Errorf("%s became %s, %+v", name, again, after.Stat)
		}
	})
}

func TestRegistrar_SetDataWhenDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.OnCritical = OnCriticalStatus
		m := run(t, memConfig(srv), NewRegistrar(c))
		defer m.stop()
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		srv.Partition()
		h.bad.Store(true)
		time.Sleep(8 * time.Second)
		srv.Heal()
		eventually(t, time.Minute, "not available", func() bool {
			_, n, ok := one(srv)
			return ok && strings.Contains(string(n.Data), `"available":false`)
		})
	})
}

func TestRegistrar_MissedCreateReply(t *testing.T) {
	for _, before := range []bool{true, false} {
		for name, config := range map[string]func(*health) ServiceConfig{"nerve": webService, "curator": curatorService} {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				if err := srv.Create("/services", nil); err != nil {
					t.Fatal(err)
				}
				if err := srv.Create(groupPath, nil); err != nil {
					t.Fatal(err)
				}
				var h health
				lost := srv.LoseReply(jute.OpCreate2, 1, before)
				m := run(t, memConfig(srv), NewRegistrar(config(&h)))
				defer m.stop()
				<-lost
				eventually(t, time.Minute, name+": registered", func() bool { return len(nodes(srv)) > 0 })
				always(t, time.Minute, name+": once", func() bool { return len(nodes(srv)) == 1 })
			})
		}
	}
}

func TestRegistrar_StaleOwnerOfSameHost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		former := staleMember(t, srv)
		defer former.Close()
		stale := former.ID()
		var h health
		r := NewRegistrar(curatorService(&h))
		r.earlier[stale] = true
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "replaced before the former session ended", func() bool {
			_, n, ok := one(srv)
			return ok && n.Stat.EphemeralOwner != stale
		})
		always(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
	})
}

// staleMember registers our member in another session and returns that.
func staleMember(t *testing.T, srv *memzk.Server) *session.Session {
	t.Helper()
	s, err := session.Dial(t.Context(), memConfig(srv))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateParents(t.Context(), groupPath+"/x"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), groupPath+"/web-1", []byte(`{"name":"web","id":"web-1","address":"10.0.0.9","port":1}`), session.Ephemeral); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRegistrar_ForeignOwnerWaits(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		other := staleMember(t, srv)
		foreign := other.ID()
		var h health
		r := NewRegistrar(curatorService(&h))
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "blocked", func() bool { return r.Status().State == StateBlocked })
		if _, n, _ := one(srv); n.Stat.EphemeralOwner != foreign || !strings.Contains(r.Status().Error, "another process") {
			t.Errorf("owner %#x, status %+v", n.Stat.EphemeralOwner, r.Status())
		}
		always(t, time.Minute, "left alone", func() bool { _, n, ok := one(srv); return ok && n.Stat.EphemeralOwner == foreign })
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "registered when it is gone", func() bool {
			_, n, ok := one(srv)
			return ok && n.Stat.EphemeralOwner != foreign && r.Status().Registered
		})
	})
}

func TestRegistrar_PersistentNodeInTheWay(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		for _, p := range []string{"/services", groupPath, groupPath + "/web-1"} {
			if err := srv.Create(p, nil); err != nil {
				t.Fatal(err)
			}
		}
		var h health
		r := NewRegistrar(curatorService(&h))
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "blocked", func() bool { return r.Status().State == StateBlocked })
		always(t, time.Minute, "left alone", func() bool { _, n, ok := one(srv); return ok && n.Stat.EphemeralOwner == 0 })
		if err := srv.Delete(groupPath + "/web-1"); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "registered", func() bool { _, n, ok := one(srv); return ok && n.Stat.EphemeralOwner != 0 })
	})
}

func TestRegistrar_NoCreatePermission(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		if err := srv.Create("/services", nil); err != nil {
			t.Fatal(err)
		}
		readOnly := []jute.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}}
		if err := srv.CreateWith(groupPath, nil, jute.FlagPersistent, readOnly); err != nil {
			t.Fatal(err)
		}
		var h health
		r := NewRegistrar(webService(&h))
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "the error is shown", func() bool { return strings.Contains(r.Status().Error, session.ErrNoAuth.Error()) })
		before := srv.Requests()["create2"]
		time.Sleep(10 * time.Minute)
		if n := srv.Requests()["create2"] - before; n > 25 {
			t.Errorf("tried %d times in 10 minutes", n)
		}
		open := []jute.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
		if err := srv.SetACL(groupPath, open); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, "registered", func() bool { return r.Status().Registered && r.Status().Error == "" })
	})
}

func TestRegistrar_RestartResumesSession(t *testing.T) {
	for name, config := range map[string]func(*health) ServiceConfig{"nerve": webService, "curator": curatorService} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				cfg := memConfig(srv)
				cfg.StateDir = dir
				var h health
				m := run(t, cfg, NewRegistrar(config(&h)))
				eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
				first, n, _ := one(srv)
				m.HandOver()
				m.stop()
				h.bad.Store(true) // kept until the checks have fallen
				r := NewRegistrar(config(&h))
				m = run(t, cfg, r)
				eventually(t, time.Minute, "kept", func() bool { return r.Status().State == StateKept })
				if again, after, ok := one(srv); !ok || first != again || after.Stat.Mzxid != n.Stat.Mzxid {
					t.Errorf("%s became %s: %+v", first, again, after.Stat)
				}
				eventually(t, time.Minute, "removed", func() bool { return len(nodes(srv)) == 0 })
				h.bad.Store(false)
				eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
				first, n, _ = one(srv)
				m.HandOver()
				m.stop()
				m = run(t, cfg, NewRegistrar(config(&h)))
				defer m.stop()
				always(t, 5*time.Minute, "never touched", func() bool {
					again, after, ok := one(srv)
					return ok && again == first && after.Stat.Mzxid == n.Stat.Mzxid
				})
			})
		})
	}
}

// Without a verdict of its checks a resumed member is kept for interval x fall.
func TestRegistrar_ResumedIsKeptOnlySoLong(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.StateDir = dir
		var h health
		m := run(t, cfg, NewRegistrar(webService(&h)))
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		m.HandOver()
		m.stop()
		c := webService(&h)
		c.Checks = []CheckConfig{{Kind: CheckTTL, TTL: time.Minute, Rise: 3, Fall: 2}}
		r := NewRegistrar(c)
		m = run(t, cfg, r)
		defer m.stop()
		for range 3 { // neither rises nor falls
			time.Sleep(35 * time.Second)
			for _, state := range []Report{ReportPass, ReportFail} {
				if err := r.Report(t.Context(), "ttl", state, ""); err != nil {
					t.Fatal(err)
				}
			}
			if len(nodes(srv)) != 1 {
				t.Fatal("removed before the time")
			}
		}
		eventually(t, time.Minute, "removed", func() bool { return len(nodes(srv)) == 0 })
	})
}

func TestRegistrar_Drain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.Drain = 5 * time.Second
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		start, done := time.Now(), make(chan error)
		go func() { done <- r.Drain(t.Context()) }()
		eventually(t, time.Second, "draining", func() bool {
			_, n, ok := one(srv)
			return ok && strings.Contains(string(n.Data), `"unavailable_reason":"draining"`)
		})
		if err := <-done; err != nil || time.Since(start) < c.Drain || len(nodes(srv)) != 0 {
			t.Errorf("after %s: %v, %d members", time.Since(start), err, len(nodes(srv)))
		}
		always(t, time.Minute, "gone for good", func() bool { return len(nodes(srv)) == 0 })
		if s := r.Status(); s.State != StateLeft {
			t.Errorf("got %+v", s)
		}
	})
}

// Without checks nothing but the leaving itself wakes the loop up.
func TestRegistrar_DrainWithoutChecks(t *testing.T) {
	for _, config := range []func(*health) ServiceConfig{webService, curatorService} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			c := config(&health{})
			c.Checks = nil
			r := NewRegistrar(c)
			m := run(t, memConfig(srv), r)
			defer m.stop()
			eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := r.Drain(ctx); err != nil || len(nodes(srv)) != 0 {
				t.Errorf("%v, %d members", err, len(nodes(srv)))
			}
		})
	}
}

// The time to go may come while the member is being read or written.
func TestRegistrar_DrainOverSlowRequests(t *testing.T) {
	for _, op := range []int32{jute.OpGetData, jute.OpSetData} {
		for _, delay := range []time.Duration{60 * time.Millisecond, 99 * time.Millisecond, 150 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprintf("%d by %s", op, delay), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *memzk.Server) {
					c := webService(&health{})
					c.Checks = nil
					r := NewRegistrar(c)
					m := run(t, memConfig(srv), r)
					defer m.stop()
					eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
					synctest.Wait()
					srv.Delay(op, delay)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := r.Drain(ctx); err != nil || len(nodes(srv)) != 0 {
						t.Errorf("%v, %d members", err, len(nodes(srv)))
					}
				})
			})
		}
	}
}

func TestRegistrar_DrainWithoutSession(t *testing.T) {
	r := NewRegistrar(webService(&health{}))
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRegistrar_Maintenance(t *testing.T) {
	testhelp.InTurn(t, 2)
	file := t.TempDir() + "/maint.json"
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.StateFile = file
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		if err := r.Maintenance(true, "new disk", time.Now().Add(2*time.Hour)); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "removed", func() bool { return len(nodes(srv)) == 0 })
		m.stop()

		r = NewRegistrar(c) // survives a restart
		m = run(t, memConfig(srv), r)
		defer m.stop()
		always(t, time.Hour, "in maintenance", func() bool { return len(nodes(srv)) == 0 })
		if s := r.Status(); s.State != StateMaintenance || s.Maintenance == nil || s.Maintenance.Reason != "new disk" {
			t.Errorf("got %+v", s)
		}
		eventually(t, 2*time.Hour, "ends by itself", func() bool { return len(nodes(srv)) == 1 })
		if err := r.Maintenance(true, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "removed", func() bool { return len(nodes(srv)) == 0 })
		if err := r.Maintenance(false, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "registered", func() bool { return len(nodes(srv)) == 1 })
	})
}

func TestRegistrar_WarmUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.Weight, c.WarmUp = new(100), time.Minute
		m := run(t, memConfig(srv), NewRegistrar(c))
		defer m.stop()
		weight := func() int {
			_, n, ok := one(srv)
			if !ok {
				return -1
			}
			member, err := Decode(FormatNerve, "web-1_0000000000", n.Data)
			if err != nil {
				t.Fatal(err)
			}
			return member.Weight
		}
		eventually(t, time.Minute, "registered", func() bool { return weight() == 1 })
		last, steps := 1, 0
		for last < 100 {
			time.Sleep(time.Second)
			if w := weight(); w < last {
				t.Fatalf("weight went from %d to %d", last, w)
			} else if w > last {
				last = w
				steps++
			}
		}
		if steps != warmUpSteps {
			t.Errorf("%d steps", steps)
		}
		_, n, _ := one(srv)
		srv.ExpireSession(n.Stat.EphemeralOwner)
		eventually(t, time.Minute, "back with all its weight", func() bool { return weight() == 100 })
	})
}

func TestRegistrar_Inherit(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := webService(&h)
		c.Format = FormatServerSet
		start := starter(t, srv)
		old := NewRegistrar(c)
		stop := start(old)
		eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
		name, _, _ := one(srv)
		stop()
		c.Port, c.Labels = 9090, map[string]string{"v": "2"}
		next := NewRegistrar(c)
		next.inherit(old)
		start(next)
		eventually(t, time.Second, "changed in place", func() bool {
			again, n, ok := one(srv)
			return ok && again == name && strings.Contains(string(n.Data), "9090")
		})
	})
}

// A service changes one of its two groups and its port. The registrar of the previous
// settings, which still runs, does not touch the znode that it gave up: not in a new
// session, and not when it leaves, which does not wait for that znode.
func TestRegistrar_GivesUpWhatIsInherited(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		const before, after = "/services/before", "/services/after"
		var h health
		c := webService(&h)
		c.Format, c.Groups = FormatServerSet, []string{groupPath, before}
		start := starter(t, srv)
		old := NewRegistrar(c)
		start(old)
		eventually(t, time.Minute, "registered", func() bool { return old.Status().Registered })
		c.Port, c.Groups = 9090, []string{groupPath, after}
		next := NewRegistrar(c)
		next.inherit(old)
		start(next)
		inherited := func() bool {
			_, n, ok := one(srv)
			return ok && strings.Contains(string(n.Data), "9090")
		}
		joined := func() bool {
			return inherited() && next.Status().Registered && old.Status().Registered && len(old.Status().Nodes) == 1
		}
		eventually(t, time.Minute, "the next one in its groups, the previous one in its own", joined)
		for _, id := range srv.SessionIDs() {
			srv.ExpireSession(id)
		}
		eventually(t, time.Minute, "both in a new session", joined)
		for range 60 {
			time.Sleep(time.Second) // virtual
			if !joined() {
				t.Fatalf("%v, %+v, %+v", nodes(srv), old.Status(), next.Status())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := old.Drain(ctx); err != nil || !inherited() || !next.Status().Registered {
			t.Errorf("%v, %v, %+v", err, nodes(srv), next.Status())
		}
		for p := range srv.Tree() {
			if strings.HasPrefix(p, before+"/") {
				t.Errorf("%s is still in the group that the service left", p)
			}
		}
	})
}

// A member changes its port or its format, under the same name or under another one. The
// previous member stays as it is, and follows its own check, until the check of the next
// one has passed.
func TestRegistrar_MovesWhenTheNextOneWorks(t *testing.T) {
	for name, c := range map[string]struct{ from, to string }{
		"port, in a sequence":         {FormatNerve, FormatNerve},
		"port, under a name":          {FormatCurator, FormatCurator},
		"format, under the same name": {FormatCurator, FormatTemplate},
		"format, under another name":  {FormatNerve, FormatCurator},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				var before, after health
				cfg := webService(&before)
				cfg.Format = c.from
				start := starter(t, srv)
				old := NewRegistrar(cfg)
				start(old)
				eventually(t, time.Minute, "registered", func() bool { return old.Status().Registered })
				cfg.Port, cfg.Format, cfg.Run, cfg.Template = 9090, c.to, after.run, "{{ .Address }}"
				cfg.Checks = []CheckConfig{{Kind: CheckExec, Command: []string{"check", "9090"}}}
				after.bad.Store(true)
				next := NewRegistrar(cfg)
				next.inherit(old)
				start(next)
				shows := func(port string) func() bool {
					return func() bool {
						_, n, ok := one(srv)
						return ok && strings.Contains(string(n.Data), port)
					}
				}
				always(t, 40*time.Second, "the previous member stays", shows("8080"))
				before.bad.Store(true)
				eventually(t, 20*time.Second, "the previous check counts", func() bool { return len(nodes(srv)) == 0 })
				before.bad.Store(false)
				eventually(t, 20*time.Second, "the previous member is back", shows("8080"))
				after.bad.Store(false)
				absent := 0
				eventually(t, 20*time.Second, "the next one has joined", func() bool {
					if len(nodes(srv)) == 0 {
						absent++
					}
					return next.Status().Registered
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := old.Drain(ctx); err != nil || absent > 0 || !shows("9090")() {
					t.Errorf("%v, without a member %d times, %v", err, absent, nodes(srv))
				}
				always(t, time.Minute, "the next one stays", shows("9090"))
			})
		})
	}
}

// While a member waits to take over that of the previous settings, the settings change
// again, it is put into maintenance, or it leaves.
func TestRegistrar_OrdersWhileItMoves(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		healths := make([]health, 3)
		start := starter(t, srv)
		var regs []*Registrar
		for i := range healths {
			c := webService(&healths[i])
			c.Port += i
			c.Checks = []CheckConfig{{Kind: CheckExec, Command: []string{"check", fmt.Sprint(c.Port)}}}
			healths[i].bad.Store(i > 0)
			r := NewRegistrar(c)
			if i > 0 {
				r.inherit(regs[i-1])
			}
			start(r)
			regs = append(regs, r)
			time.Sleep(20 * time.Second) // virtual
		}
		drain := func(r *Registrar) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				t.Error(err)
			}
		}
		shows := func(port string) func() bool {
			return func() bool {
				_, n, ok := one(srv)
				return ok && strings.Contains(string(n.Data), port)
			}
		}
		drain(regs[1]) // as the agent does with one that is not registered
		always(t, 20*time.Second, "the first one stays", shows("8080"))
		if err := regs[2].Maintenance(true, "look", time.Time{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "out for maintenance", func() bool { return len(nodes(srv)) == 0 })
		_ = regs[2].Maintenance(false, "", time.Time{})
		always(t, 20*time.Second, "it waits for its check", func() bool { return len(nodes(srv)) == 0 })
		healths[2].bad.Store(false)
		eventually(t, time.Minute, "the third one has joined", shows("8082"))
		drain(regs[0])
		always(t, 20*time.Second, "it stays", shows("8082"))
		c := webService(&healths[1])
		c.Checks = []CheckConfig{{Kind: CheckExec, Command: []string{"check", "again"}}}
		last := NewRegistrar(c)
		last.inherit(regs[2])
		start(last)
		drain(last)
		eventually(t, time.Second, "the last one has left", func() bool { return len(nodes(srv)) == 0 })
	})
}

// starter returns a function that runs registrars in the sessions of one manager. What
// that one returns stops the registrar; so does the end of the test.
func starter(t *testing.T, srv *memzk.Server) func(*Registrar) func() {
	t.Helper()
	mgr, err := session.New(memConfig(srv))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() { _ = mgr.Run(ctx) })
	return func(r *Registrar) func() {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.RunChecks(ctx) })
		wg.Go(func() { _ = mgr.Each(ctx, r.Run) })
		all.Go(wg.Wait)
		return func() { cancel(); wg.Wait() }
	}
}

func TestRegistrar_InvalidConfig(t *testing.T) {
	c := ServiceConfig{Name: "x", Groups: []string{"no path"}, Port: 70000, Address: "a b", MemberID: "a/b", Format: "x", OnCritical: "x", Checks: []CheckConfig{{Kind: "x"}, {Kind: "x"}}}
	err := NewRegistrar(c).Run(t.Context(), nil)
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"group", "port 70000", "address", "member id", "format", "on_critical", `kind "x"`, "twice"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing about %s", err, want)
		}
	}
}

// peakRate registers 500 services of one process, ends their session, and
// returns the most requests that came within 100 ms until all were back.
func peakRate(t *testing.T, splay time.Duration) (peak uint64) {
	t.Helper()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		mgr, err := session.New(memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer func() { cancel(); wg.Wait() }()
		wg.Go(func() { _ = mgr.Run(ctx) })
		all := make([]*Registrar, testhelp.Rounds(150, 500))
		for i := range all {
			all[i] = NewRegistrar(ServiceConfig{
				Name: "web", Groups: []string{fmt.Sprintf("/services/s%03d", i)}, MemberID: "web-1", Address: "10.0.0.5", Port: 80, Splay: splay,
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					s, err := mgr.Session(ctx)
					if err != nil {
						return
					}
					_ = all[i].Run(ctx, s)
				}
			})
		}
		registered := func() bool {
			for _, r := range all {
				if !r.Status().Registered {
					return false
				}
			}
			return true
		}
		eventually(t, time.Minute, "registered", registered)
		for _, id := range srv.SessionIDs() {
			srv.ExpireSession(id)
		}
		total := func() (n uint64) {
			for _, count := range srv.Requests() {
				n += count
			}
			return n
		}
		before := total()
		for range 50 + 10*int(splay/time.Second) {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			now := total()
			peak, before = max(peak, now-before), now
		}
		eventually(t, time.Minute, "back", registered)
	})
	return peak
}

func TestRegistrar_ManyServicesSplayed(t *testing.T) {
	testhelp.InTurn(t, 2)
	unsplayed, splayed := peakRate(t, 0), peakRate(t, 10*time.Second)
	t.Logf("most requests in 100 ms: %d without a splay, %d with 10 s", unsplayed, splayed)
	if splayed*5 >= unsplayed {
		t.Errorf("the peak with a splay is %d, without %d", splayed, unsplayed)
	}
}

// A member that cannot join one of its groups is in the others. The status says where it is
// not, and why; leaving waits for all.
func TestRegistrar_OneOfTwoGroups(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		const other = "/services/other"
		var h health
		c := curatorService(&h)
		c.Groups = []string{groupPath, other}
		for _, p := range []string{"/services", other, other + "/web-1"} {
			if err := srv.Create(p, nil); err != nil {
				t.Fatal(err)
			}
		}
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, time.Minute, "blocked in one group", func() bool { return r.Status().State == StateBlocked && len(nodes(srv)) == 1 })
		if s := r.Status(); s.Registered || !slices.Equal(s.Nodes, []string{groupPath + "/web-1"}) || !strings.HasPrefix(s.Error, other+": ") {
			t.Errorf("got %+v", s)
		}
		select {
		case <-r.Joined():
			t.Error("joined, although one group is missing")
		default:
		}
		if err := srv.Delete(other + "/web-1"); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Hour, "registered in both", func() bool { s := r.Status(); return s.Registered && len(s.Nodes) == 2 && s.Error == "" })
		if err := r.Drain(t.Context()); err != nil || r.Status().State != StateLeft {
			t.Errorf("%v, %+v", err, r.Status())
		}
		if _, err := srv.Get(other + "/web-1"); err == nil || len(nodes(srv)) != 0 {
			t.Error("a member stays after Drain")
		}
	})
}
