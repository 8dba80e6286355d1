package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// Events are lost. Slow looks find the changes: members that join, leave and change,
// groups of a set, and a deleted member of this host. The looks cost little, and later
// events count again.
func TestRecheck_ALostEventIsFound(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Off, c.NoDamping = true, true
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		join(t, srv, upTo(10)...)
		eventually(t, time.Minute, "ten", m.shows(upTo(10)...))
		time.Sleep(time.Minute)
		srv.LoseEvents()
		srv.ResetRequests()
		time.Sleep(time.Hour)
		for op, n := range srv.Requests() {
			if op != "ping" && (op != "exists" || n > (1+recheckFew)*120) {
				t.Errorf("%d requests %s in an idle hour", n, op)
			}
		}
		join(t, srv, 11)
		leave(t, srv, 1)
		eventually(t, time.Minute, "one joined, one left", m.shows(upTo(11)[1:]...))
		if err := srv.Set(groupPath+"/m5", fmt.Appendf(nil, `{"host":"10.0.0.5","port":5,"name":"m5","weight":7}`)); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Minute, "a changed member", func() bool {
			for _, one := range m.group().Members {
				if one.Weight == 7 {
					return true
				}
			}
			return false
		})
		leave(t, srv, upTo(11)[1:]...)
		if err := srv.Delete(groupPath); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "the group was deleted", m.shows())
		join(t, srv, 12)
		eventually(t, time.Minute, "the group is back", m.shows(12))
	})
}

func TestRecheck_Groups(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		join(t, srv, 1)
		m := run(t, memConfig(srv), NewGroups(GroupConfig{Name: "all", Path: "/services"}))
		defer m.stop()
		groups := func(n int) func() bool {
			return func() bool {
				all := m.all()
				return len(all) > 0 && len(all[len(all)-1].(*view.Groups).Groups) == n
			}
		}
		eventually(t, time.Minute, "one group", groups(1))
		srv.LoseEvents()
		if err := srv.Create("/services/api/a", record(7)); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, "two groups", groups(2))
	})
}

func TestRecheck_Registrar(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, config := range []func(*health) ServiceConfig{webService, curatorService} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			var h health
			m := run(t, memConfig(srv), NewRegistrar(config(&h)))
			defer m.stop()
			eventually(t, time.Minute, "registered", func() bool { return len(nodes(srv)) == 1 })
			srv.LoseEvents()
			srv.ResetRequests()
			time.Sleep(time.Hour)
			for op, n := range srv.Requests() {
				if op != "ping" && n > 125 {
					t.Errorf("%d requests %s in an idle hour", n, op)
				}
			}
			for name := range nodes(srv) {
				if err := srv.Delete(groupPath + "/" + name); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, 2*time.Minute, "registered again", func() bool { return len(nodes(srv)) == 1 })
		})
	}
}
