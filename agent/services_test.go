package agent

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// TestService_CriticalIsTold: the condition has the check and the last words of its
// command, and the record of the fleet the exit status alone.
func TestService_CriticalIsTold(t *testing.T) {
	b := newBed(t)
	sick := b.path("sick")
	if err := os.WriteFile(sick, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := b.config()
	c.Configs = nil
	c.Services = []registry.ServiceConfig{{
		Name: "web", Group: "/services/web", Address: "127.0.0.1", Port: 80,
		Checks: []registry.CheckConfig{{
			Name: "probe", Kind: registry.CheckExec, Command: []string{"/bin/sh", "-c", "if [ -e " + sick + " ]; then echo hunter2; exit 7; fi"},
			Interval: 100 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 1,
		}},
	}}
	a := b.start(c)
	a.ready()
	a.condition(condition.ServiceCritical, "web", true)
	list := a.conds.List()
	i := slices.IndexFunc(list, func(c condition.Condition) bool { return c.Code == "service-critical" })
	if text := list[i].Text; !strings.Contains(text, "probe") || !strings.Contains(text, "hunter2") || list[i].Exit != 7 {
		t.Errorf("got %+v", list[i])
	}
	if code, text := checked(a); code != 2 || !strings.Contains(text, "service-critical web") {
		t.Errorf("the monitoring check says %d %q", code, text)
	}
	find := func(ok func(h fleet.HostStatus) bool) {
		t.Helper()
		eventually(t, "the record", func() bool {
			hosts, err := fleet.Agents(t.Context(), b.s)
			return err == nil && len(hosts) == 1 && ok(hosts[0])
		})
	}
	find(func(h fleet.HostStatus) bool {
		s := h.Services["web"]
		return h.Health == fleet.Failing && s.State == registry.StateCritical && s.Check == "probe" && s.Exit == 7
	})
	data, _, err := b.s.Get(t.Context(), fleet.AgentPath("a1"))
	if err != nil || strings.Contains(string(data), "hunter2") {
		t.Errorf("the record has the output of the check: %s, %v", data, err)
	}
	if err := os.Remove(sick); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	a.condition(condition.ServiceCritical, "web", false)
	find(func(h fleet.HostStatus) bool {
		return h.Health == fleet.OK && h.Services["web"].State == registry.StateRegistered
	})
}

// TestService_RefusedIsTold: a service that ZooKeeper refuses is not ok.
func TestService_RefusedIsTold(t *testing.T) {
	b := newBed(t)
	b.create("/services/web", "")
	readers, err := session.ParseACL("world:anyone:ra")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.s.SetACL(t.Context(), "/services/web", []session.ACL{readers}, -1); err != nil {
		t.Fatal(err)
	}
	c := b.config()
	c.Configs = nil
	c.Services = []registry.ServiceConfig{{Name: "web", Group: "/services/web", Address: "127.0.0.1", Port: 80}}
	a := b.start(c)
	a.ready()
	a.condition(condition.ServiceNotRegistered, "web", true)
	if st := a.Status(); st.Health != fleet.Failing {
		t.Errorf("the status says %s", st.Health)
	}
}

func checked(a *started) (int, string) {
	s := a.Status()
	code, _, text := s.Check()
	return code, text
}

// TestService_Moves: a member of another group, format or id joins before it leaves, and a
// check whose block is unchanged keeps what it knows.
func TestService_Moves(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	well := b.path("well")
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := b.memConfig(w)
	from := service("web", "/old", "", 80)
	from.Checks = []registry.CheckConfig{{
		Name: "probe", Kind: registry.CheckExec, Command: []string{"/bin/sh", "-c", "test -e " + well},
		Interval: 100 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 10000,
	}}
	c.Services = []registry.ServiceConfig{from}
	next := c
	c.Load = func() (Config, error) { return next, nil }
	a := b.start(c)
	a.ready()
	eventually(t, "the member", func() bool { return members(w, "/old") == 1 })
	if err := os.Remove(well); err != nil { // A check that knows nothing would not rise any more.
		t.Fatal(err)
	}
	group, format := "/old", ""
	for _, to := range []struct{ group, format string }{{"/new", ""}, {"/new", registry.FormatCurator}, {"/old", ""}} {
		from.Group, from.Format = to.group, to.format
		next.Services = []registry.ServiceConfig{from}
		if err := a.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the move to "+to.group+" "+to.format, func() bool {
			a.sup.moves.Wait()
			return members(w, "/old")+members(w, "/new") == 1 && members(w, to.group) == 1
		})
		names, err := w.Children(to.group)
		if err != nil || len(names) != 1 {
			t.Fatal(names, err)
		}
		joined, err := w.Get(to.group + "/" + names[0])
		if err != nil {
			t.Fatal(err)
		}
		left, err := w.Get(group)
		if err != nil || left.Stat.Pzxid < joined.Stat.Czxid {
			t.Errorf("from %s %s to %s %s: left at %d, joined at %d, %v", group, format, to.group, to.format, left.Stat.Pzxid, joined.Stat.Czxid, err)
		}
		group, format = to.group, to.format
	}
}
