package registry

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// ownedOnce reports whether exactly one member is there, which the session of m
// owns and the registrar knows.
func ownedOnce(srv *memzk.Server, m *runner, r *Registrar) bool {
	name, n, ok := one(srv)
	st := r.Status()
	return ok && n.Stat.EphemeralOwner == m.Manager.Status().SessionID && st.Registered && slices.Equal(st.Nodes, []string{groupPath + "/" + name})
}

// A member whose session was lost is back as soon as there is a session again:
// the registrar does not wait for a check or a retry first.
func TestListenersReconnectedIsFast(t *testing.T) {
	testhelp.InTurn(t, 2)
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		c := curatorService(&h)
		c.Checks[0].Interval = time.Hour
		r := NewRegistrar(c)
		m := run(t, memConfig(srv), r)
		defer m.stop()
		eventually(t, 2*time.Hour, "registered", func() bool { return ownedOnce(srv, m, r) })
		for range 10 {
			_, before, _ := one(srv)
			srv.ExpireSession(before.Stat.EphemeralOwner)
			eventually(t, 5*time.Second, "registered in the next session", func() bool {
				_, n, ok := one(srv)
				return ok && n.Stat.Czxid > before.Stat.Czxid && ownedOnce(srv, m, r)
			})
		}
	})
}

// A member that becomes healthy while there is no connection, and whose session
// ends before there is one, is registered once, by the session that lives.
func TestCreateQueuedAcrossSession(t *testing.T) {
	for name, cut := range map[string]func(*memzk.Server){
		"refused":    func(srv *memzk.Server) { srv.RefuseDial(); srv.DropConnections() },
		"black hole": func(srv *memzk.Server) { srv.Partition() },
		"in flight": func(srv *memzk.Server) {
			srv.Delay(jute.OpCreate, 20*time.Second)
			srv.Delay(jute.OpCreate2, 20*time.Second)
			srv.Delay(jute.OpMulti, 20*time.Second)
		},
	} {
		for _, config := range []func(*health) ServiceConfig{webService, curatorService} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *memzk.Server) {
					var h health
					h.bad.Store(true)
					r := NewRegistrar(config(&h))
					m := run(t, memConfig(srv), r)
					defer m.stop()
					time.Sleep(30 * time.Second)
					first := m.Manager.Status().SessionID
					cut(srv)
					h.bad.Store(false)
					time.Sleep(11 * time.Second) // the check has risen
					srv.ExpireSession(first)
					time.Sleep(30 * time.Second)
					srv.ClearFaults()
					eventually(t, time.Minute, "registered by the session that lives", func() bool {
						return m.Manager.Status().SessionID != first && ownedOnce(srv, m, r)
					})
					always(t, 30*time.Second, "once", func() bool { return ownedOnce(srv, m, r) })
				})
			})
		}
	}
}

// An agent that ends while its create is under way leaves nothing behind,
// whenever the reply comes and whether it comes.
func TestCloseDuringCreate(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for at := time.Duration(0); at <= 2*time.Second; at += 500 * time.Millisecond {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				if err := srv.Create(groupPath, nil); err != nil {
					t.Fatal(err)
				}
				for _, op := range []int32{jute.OpCreate, jute.OpCreate2, jute.OpMulti} {
					srv.Delay(op, time.Second)
					if lost {
						srv.LoseReply(op, 1, false)
					}
				}
				var h health
				m := run(t, memConfig(srv), NewRegistrar(webService(&h)))
				eventually(t, time.Minute, "the create", func() bool { return len(nodes(srv)) == 1 })
				time.Sleep(at)
				synctest.Wait()
				m.stop()
				time.Sleep(2 * memConfig(srv).Timeout) // a goodbye that was not heard
				if left := nodes(srv); len(left) > 0 {
					t.Errorf("lost=%v, ended after %s: left behind %v", lost, at, left)
				}
			})
		}
	}
}
