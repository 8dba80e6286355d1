package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// TestService_CriticalIsTold: the condition has the check and the last words of its
// command, and the record of the fleet the exit status alone.
func TestService_CriticalIsTold(t *testing.T) {
	testhelp.InTurn(t, 2)
	b := newBed(t)
	sick := b.path("sick")
	if err := os.WriteFile(sick, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := b.config()
	c.Configs = nil
	c.Services = []registry.ServiceConfig{{
		Name: "web", Groups: []string{"/services/web"}, Address: "127.0.0.1", Port: 80,
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
	c.Services = []registry.ServiceConfig{{Name: "web", Groups: []string{"/services/web"}, Address: "127.0.0.1", Port: 80}}
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
	a, from, reload := startMoving(t, b, w)
	group, format := "/old", ""
	for _, to := range []struct{ group, format string }{{"/new", ""}, {"/new", registry.FormatCurator}, {"/old", ""}} {
		from.Groups, from.Format = []string{to.group}, to.format
		reload(from)
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

// startMoving starts an agent with a service in /old whose check, had it forgotten what it
// knows, would not rise any more. It returns the service, and a function that loads
// another one.
func startMoving(t *testing.T, b *bed, w *memzk.Server) (*started, registry.ServiceConfig, func(registry.ServiceConfig)) {
	t.Helper()
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
	eventually(t, "the member", func() bool { s := a.Status().Services; return len(s) == 1 && s[0].Registered })
	if err := os.Remove(well); err != nil {
		t.Fatal(err)
	}
	return a, from, func(s registry.ServiceConfig) {
		t.Helper()
		next.Services = []registry.ServiceConfig{s}
		if err := a.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestService_TwoGroups: a service is in two groups at once. A group that joins or leaves
// the list does not touch the member of the other one, whose znode stays the same one.
func TestService_TwoGroups(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	a, s, reload := startMoving(t, b, w)
	czxid := map[string]int64{}
	see := func(groups ...string) {
		t.Helper()
		eventually(t, "members in "+strings.Join(groups, " and "), func() bool {
			a.sup.moves.Wait()
			st := a.services()[0]
			return members(w, "/old")+members(w, "/new") == len(groups) && st.Registered && st.State == registry.StateRegistered && len(st.Nodes) == len(groups)
		})
		now := map[string]int64{}
		for _, group := range groups {
			names, err := w.Children(group)
			if err != nil || len(names) != 1 {
				t.Fatal(names, err)
			}
			n, err := w.Get(group + "/" + names[0])
			if err != nil {
				t.Fatal(err)
			}
			now[group] = n.Stat.Czxid
			if was := czxid[group]; was != 0 && was != n.Stat.Czxid {
				t.Errorf("the member of %s was created again", group)
			}
			if !strings.Contains(string(n.Data), fmt.Sprintf(`"port":%d`, s.Port)) {
				t.Errorf("%s has %s, want port %d", group, n.Data, s.Port)
			}
		}
		czxid = now
	}
	see("/old")
	for _, groups := range [][]string{{"/old", "/new"}, {"/new", "/old"}, {"/new"}, {"/old", "/new"}, {"/old"}} {
		s.Groups = groups
		reload(s)
		see(groups...)
		s.Port++ // with the same groups: the same znodes with other data
		reload(s)
		see(groups...)
	}
}
