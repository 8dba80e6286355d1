package registry

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path"
	"runtime"
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

func record(n int) []byte {
	return fmt.Appendf(nil, `{"host":"10.0.0.5","port":%d,"name":"m%d"}`, n, n)
}

func join(t *testing.T, srv *memzk.Server, numbers ...int) {
	t.Helper()
	for _, n := range numbers {
		if err := srv.Create(fmt.Sprintf("%s/m%d", groupPath, n), record(n)); err != nil {
			t.Fatal(err)
		}
	}
}

func leave(t *testing.T, srv *memzk.Server, numbers ...int) {
	t.Helper()
	for _, n := range numbers {
		if err := srv.Delete(fmt.Sprintf("%s/m%d", groupPath, n)); err != nil {
			t.Fatal(err)
		}
	}
}

// shows reports whether the newest group has members with these ports.
func (r *runner) shows(numbers ...int) func() bool {
	return func() bool {
		g := r.group()
		if g == nil || len(g.Members) != len(numbers) {
			return false
		}
		for _, m := range g.Members {
			if !slices.Contains(numbers, m.Port) {
				return false
			}
		}
		return true
	}
}

func webGroup() GroupConfig { return GroupConfig{Name: "web", Path: groupPath} }

func TestGroup_JoinLeaveChange(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		eventually(t, time.Second, "missing", func() bool { g := m.group(); return g != nil && g.Missing && len(g.Members) == 0 })
		join(t, srv, upTo(10)...)
		eventually(t, time.Second, "ten", m.shows(upTo(10)...))
		cost := func(f func()) map[string]uint64 {
			time.Sleep(time.Second)
			srv.ResetRequests()
			f()
			time.Sleep(time.Second)
			got := srv.Requests()
			delete(got, "ping")
			return got
		}
		if got := cost(func() { join(t, srv, 11) }); len(got) != 2 || got["getData"] != 1 || got["getChildren2"] != 1 || !m.shows(upTo(11)...)() {
			t.Errorf("a join: %v", got)
		}
		if got := cost(func() { leave(t, srv, 11) }); len(got) != 1 || got["getChildren2"] != 1 || !m.shows(upTo(10)...)() {
			t.Errorf("a leave: %v", got)
		}
		change := func() {
			if err := srv.Set(groupPath+"/m3", []byte(`{"host":"10.0.0.5","port":3,"name":"m3","weight":7}`)); err != nil {
				t.Fatal(err)
			}
		}
		if got := cost(change); len(got) != 1 || got["getData"] != 1 || m.group().Members[2].Weight != 7 {
			t.Errorf("a change: %v", got)
		}
		n := len(m.all())
		if got := cost(change); got["getData"] != 1 || len(m.all()) != n { // the same data again
			t.Errorf("no change: %v, %d updates", got, len(m.all())-n)
		}
	})
}

// A member that is deleted and created again at once is read again, though the list is
// the same.
func TestGroup_RecreatedAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // The reader does not run between the two writes.
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		join(t, srv, upTo(10)...)
		eventually(t, time.Second, "ten", m.shows(upTo(10)...))
		for weight := 2; weight < 5; weight++ {
			srv.ResetRequests()
			leave(t, srv, 3)
			if err := srv.Create(groupPath+"/m3", fmt.Appendf(nil, `{"host":"10.0.0.5","port":3,"name":"m3","weight":%d}`, weight)); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Second, "the new data", func() bool { return m.shows(upTo(10)...)() && m.group().Members[2].Weight == weight })
			if got := srv.Requests(); got["getData"] != 1 || got["getChildren2"] > 1 {
				t.Errorf("requests %v", got)
			}
		}
	})
}

func TestGroup_GuardHoldsMassLoss(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		g := NewGroup(webGroup())
		m := run(t, memConfig(srv), g)
		defer m.stop()
		join(t, srv, upTo(12)...)
		eventually(t, time.Second, "twelve", m.shows(upTo(12)...))
		time.Sleep(time.Minute)
		n := len(m.all())
		leave(t, srv, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		eventually(t, 2*time.Second, "holding", func() bool { return g.Status().Held == 9 })
		for _, u := range m.all()[n:] {
			if len(u.(*view.Group).Members) < 9 { // the reader may run between two departures
				t.Errorf("%d members were shown in between", len(u.(*view.Group).Members))
			}
		}
		if s := g.Status(); s.Base != 12 || s.Holding.IsZero() {
			t.Errorf("got %+v", s)
		}
		g.Accept()
		eventually(t, time.Second, "accepted", m.shows(1, 2, 3))
		join(t, srv, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		eventually(t, time.Second, "twelve", m.shows(upTo(12)...))
		time.Sleep(10 * time.Minute) // the flaps are forgotten
		for _, n := range []int{12, 11, 10} {
			leave(t, srv, n)
			eventually(t, 10*time.Second, "one less", m.shows(upTo(n-1)...))
			time.Sleep(time.Minute)
		}
		leave(t, srv, upTo(9)...)
		eventually(t, 2*time.Second, "held", func() bool { return g.Status().Held == 9 })
		eventually(t, 15*time.Minute, "believed when the hold is over", m.shows())
	})
}

func TestGroup_AllMembersGoneHoldsLastGood(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Hold = -1
		g := NewGroup(c)
		m := run(t, memConfig(srv), g)
		defer m.stop()
		join(t, srv, upTo(5)...)
		eventually(t, time.Second, "five", m.shows(upTo(5)...))
		srv.Wipe() // the ensemble was replaced by an empty one
		eventually(t, time.Minute, "held over the session", func() bool { return g.Status().Missing && g.Status().Held == 5 })
		always(t, time.Hour, "held", m.shows(upTo(5)...))
		join(t, srv, 1, 2, 3, 4)
		eventually(t, time.Second, "believed again", m.shows(1, 2, 3, 4))
	})
}

func TestGroup_FlapsOncePerSecond(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		g := NewGroup(webGroup())
		m := run(t, memConfig(srv), g)
		defer m.stop()
		join(t, srv, upTo(5)...)
		eventually(t, time.Second, "five", m.shows(upTo(5)...))
		n := len(m.all())
		for range 300 {
			leave(t, srv, 5)
			time.Sleep(time.Second)
			join(t, srv, 5)
			time.Sleep(time.Second)
		}
		if changes := len(m.all()) - n; changes > 4 {
			t.Errorf("%d changes in 10 minutes", changes)
		}
		if s := g.Status(); len(s.Flapping) != 1 || len(s.Members) != 5 || s.Members[0].Flapping || !s.Members[0].MayServe() || !s.Members[4].Flapping || s.Members[4].MayServe() {
			t.Errorf("got %+v", s)
		}
		leave(t, srv, 5)
		eventually(t, 5*time.Minute, "gone after all", m.shows(upTo(4)...))
	})
}

func TestGroup_GroupDeletedAndRecreated(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Off = true
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		for range 3 {
			join(t, srv, 1, 2)
			eventually(t, time.Second, "two", m.shows(1, 2))
			if err := srv.Delete("/services"); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Second, "missing", func() bool { g := m.group(); return g.Missing && len(g.Members) == 0 })
			time.Sleep(10 * time.Minute)
		}
	})
}

func TestGroup_MemberVanishesBetweenListAndGet(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		join(t, srv, 1)
		eventually(t, time.Second, "one", m.shows(1))
		srv.Delay(jute.OpGetChildren2, 200*time.Millisecond)
		join(t, srv, 2, 3)
		time.Sleep(100 * time.Millisecond)
		leave(t, srv, 2) // listed, and gone before it is read
		eventually(t, 5*time.Second, "the others", m.shows(1, 3))
		if len(m.group().Rejected) != 0 {
			t.Errorf("rejected: %v", m.group().Rejected)
		}
	})
}

func TestGroup_BurstCoalesced(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		join(t, srv, 1)
		eventually(t, time.Second, "one", m.shows(1))
		n := len(m.all())
		srv.Delay(jute.OpGetData, 50*time.Millisecond)
		join(t, srv, upTo(500)[1:]...)
		eventually(t, time.Minute, "all", m.shows(upTo(500)...))
		if updates := len(m.all()) - n; updates > 50 {
			t.Errorf("%d updates for one burst", updates)
		}
	})
}

func TestGroup_SessionExpiryPassesOnlyDifferences(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		join(t, srv, 1, 2, 3)
		eventually(t, time.Second, "three", m.shows(1, 2, 3))
		n := len(m.all())
		for range 3 {
			for _, id := range srv.SessionIDs() {
				srv.ExpireSession(id)
			}
			time.Sleep(time.Minute)
		}
		if len(m.all()) != n {
			t.Errorf("%d updates without a change", len(m.all())-n)
		}
		join(t, srv, 4)
		eventually(t, time.Minute, "four", m.shows(1, 2, 3, 4))
	})
}

// Changes while the connection is down are seen when it is back.
func TestGroup_ReconnectConsistency(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Off, c.NoDamping = true, true
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		join(t, srv, upTo(10)...)
		eventually(t, time.Second, "ten", m.shows(upTo(10)...))
		for i := range 5 {
			srv.Partition()
			leave(t, srv, i+1)
			join(t, srv, i+11)
			if err := srv.Set(groupPath+"/m10", fmt.Appendf(nil, `{"host":"10.0.0.5","port":10,"name":"m10","weight":%d}`, i+2)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			srv.Heal()
			eventually(t, time.Minute, "changed", func() bool {
				g := m.group()
				return m.shows(upTo(i + 11)[i+1:]...)() && slices.ContainsFunc(g.Members, func(m view.Member) bool { return m.Weight == i+2 })
			})
		}
	})
}

// After any history the view is what is there.
func TestGroup_ConsistencyAfterSimulation(t *testing.T) {
	testhelp.InTurn(t, 2)
	const seed = 20261122 // fixed: a run that fails must fail again
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Guard.Off, c.NoDamping = true, true
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		rnd := rand.New(rand.NewPCG(seed, 1))
		there := map[int]bool{}
		for range 1000 {
			n := rnd.IntN(30) + 1
			switch k := rnd.IntN(20); {
			case k == 0:
				srv.DropConnections()
			case k == 1:
				for _, id := range srv.SessionIDs() {
					srv.ExpireSession(id)
				}
			case there[n]:
				leave(t, srv, n)
				delete(there, n)
			default:
				join(t, srv, n)
				there[n] = true
			}
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
		var want []int
		for n := range there {
			want = append(want, n)
		}
		eventually(t, time.Minute, "what is there", m.shows(want...))
	})
}

// What one child is does not matter to the others.
func TestGroup_PoisonHarmsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		g := NewGroup(c)
		m := run(t, memConfig(srv), g)
		defer m.stop()
		join(t, srv, 1, 2)
		poison := map[string]string{
			"empty": "", "binary": "\xff\xfe\x00", "megabyte": strings.Repeat("x", 1<<20-200), "list": "[1,2]",
			"injection": `{"host":"127.0.0.1:1; } server { listen 1;","port":80,"name":"a"}`,
			"local":     `{"host":"127.0.0.1","port":80,"name":"l"}`, "meta": `{"host":"169.254.169.254","port":80,"name":"m"}`,
			"named": `{"host":"evil.example.org","port":80,"name":"n"}`, "odd name;": string(record(3)), "öäü": string(record(3)), "a b": string(record(3)),
		}
		for name, data := range poison {
			if err := srv.Create(groupPath+"/"+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := srv.CreateWith(groupPath+"/unreadable", record(4), jute.FlagPersistent, []jute.ACL{{Perms: 2, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		if err := srv.Create(groupPath+"/again", record(1)); err != nil {
			t.Fatal(err)
		}
		join(t, srv, 5)
		eventually(t, 10*time.Second, "the good ones", m.shows(1, 2, 5))
		eventually(t, 10*time.Second, "all of the bad ones", func() bool { return len(m.group().Rejected) == len(poison)+2 })
		for _, r := range m.group().Rejected {
			if r.Reason == "" || (r.Znode == "m1") != strings.Contains(r.Reason, "newer") {
				t.Errorf("rejected %q: %q", r.Znode, r.Reason)
			}
		}
		// The unreadable one is tried again by itself, the others when they change.
		if err := srv.SetACL(groupPath+"/unreadable", []jute.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		if err := srv.Set(groupPath+"/empty", record(6)); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, "healed", m.shows(1, 2, 4, 5, 6))
	})
}

// Below /hbase is much that is no member, and some of it is closed: none of it is reported.
func TestGroup_Only(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		var err error
		if c.Format, err = (&Fields{Only: "^master$", Address: "#1.1", Port: "#1.2"}).Format(); err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string]string{"master": hbaseMaster, "hbaseid": "\xff\x00\x00\x00\x00PBUF", "rs": ""} {
			if err := srv.Create(groupPath+"/"+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := srv.CreateWith(groupPath+"/acl", nil, jute.FlagPersistent, []jute.ACL{{Perms: 2, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		eventually(t, time.Second, "the master", func() bool { return m.group() != nil && len(m.group().Members) == 1 })
		if g := m.group(); g.Members[0].Address() != "m1.example.org:16000" || len(g.Rejected) > 0 {
			t.Errorf("got %+v, rejected %+v", g.Members, g.Rejected)
		}
	})
}

func TestGroup_ListRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		if err := srv.CreateWith("/services", nil, jute.FlagPersistent, nil); err != nil {
			t.Fatal(err)
		}
		if err := srv.CreateWith(groupPath, nil, jute.FlagPersistent, []jute.ACL{{Perms: 4, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		g := NewGroup(webGroup())
		m := run(t, memConfig(srv), g)
		defer m.stop()
		eventually(t, time.Second, "the error is shown", func() bool { return strings.Contains(g.Status().Error, session.ErrNoAuth.Error()) })
		if err := srv.SetACL(groupPath, []jute.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		join(t, srv, 1)
		eventually(t, time.Minute, "read", m.shows(1))
		if g.Status().Error != "" {
			t.Errorf("got %q", g.Status().Error)
		}
	})
}

func TestGroup_Limit(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		c := webGroup()
		c.MaxMembers = 3
		m := run(t, memConfig(srv), NewGroup(c))
		defer m.stop()
		join(t, srv, upTo(5)...)
		eventually(t, time.Second, "three, and the rest shown", func() bool { return m.shows(1, 2, 3)() && len(m.group().Rejected) == 2 })
	})
}

func TestGroup_InvalidConfig(t *testing.T) {
	for _, c := range []GroupConfig{{Path: "x"}, {Path: "/x", Format: "y"}, {Path: "/x", OnEmpty: "y"}, {Path: "/x", Guard: GuardConfig{MaxLoss: 2}}} {
		if err := NewGroup(c).Run(t.Context(), nil, nil); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func TestGroups_ComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		g := NewGroups(GroupConfig{Name: "all", Path: "/services"})
		m := run(t, memConfig(srv), g)
		defer m.stop()
		set := func(groups int, of ...int) func() bool {
			return func() bool {
				all := m.all()
				if len(all) == 0 {
					return false
				}
				s := all[len(all)-1].(*view.Groups)
				if len(s.Groups) != groups {
					return false
				}
				for i, n := range of {
					if len(s.Groups[i].Members) != n {
						return false
					}
				}
				return true
			}
		}
		eventually(t, time.Minute, "none", set(0))
		join(t, srv, 1, 2)
		eventually(t, time.Minute, "one group", set(1, 2))
		if err := srv.Create("/services/api/a", record(7)); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "two groups", set(2, 1, 2))
		n := len(m.all())
		for _, id := range srv.SessionIDs() {
			srv.ExpireSession(id)
		}
		time.Sleep(time.Minute)
		if len(m.all()) != n {
			t.Errorf("%d updates without a change", len(m.all())-n)
		}
		if err := srv.Delete("/services/api"); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "one group", set(1, 2))
		eventually(t, time.Minute, "forgotten", func() bool { return len(g.Status().Groups) == 1 })
		join(t, srv, 3)
		eventually(t, time.Minute, "one group of three", set(1, 3))
		leave(t, srv, 1, 2, 3)
		time.Sleep(time.Minute)
		if !set(1, 3)() || g.Status().Groups[0].Held != 3 {
			t.Errorf("a mass loss was believed: %+v", g.Status())
		}
		if !g.Accept("web") || g.Accept("nothing") {
			t.Error("accept did not find its group")
		}
		eventually(t, time.Minute, "empty", set(1, 0))
		if err := srv.Create("/services/api/a", record(7)); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "back", set(2, 1, 0))
	})
}

// A group over max_bytes is not used: the last good members stay, and it comes back
// when it is small enough, also where it was too large from the start.
func TestGroup_MaxBytes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // The reader does not run between the writes.
	for _, small := range []bool{true, false} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			large := slices.Concat(bytes.TrimSuffix(record(9), []byte("}")), []byte(`,"x":"`+strings.Repeat("x", 10_000)+`"}`))
			join(t, srv, 1, 2)
			grow := func() {
				for i := range 20 {
					if err := srv.Create(fmt.Sprintf("%s/large%02d", groupPath, i), large); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !small {
				grow()
			}
			var problems []error
			c := webGroup()
			c.MaxBytes, c.Problem = 100_000, func(_ string, err error) { problems = append(problems, err) }
			g := NewGroup(c)
			m := run(t, memConfig(srv), g)
			defer m.stop()
			if small {
				eventually(t, 10*time.Second, "two", m.shows(1, 2))
				grow()
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if small && !m.shows(1, 2)() || !small && m.group() != nil {
				t.Errorf("small first %v: passed on %+v", small, m.group())
			}
			if len(problems) != 1 || !errors.Is(problems[0], ErrTooLarge) || !strings.Contains(g.Status().Error, "MiB of data, max_bytes allows") {
				t.Errorf("small first %v: problems %v, status %q", small, problems, g.Status().Error)
			}
			for i := range 20 {
				if err := srv.Delete(fmt.Sprintf("%s/large%02d", groupPath, i)); err != nil {
					t.Fatal(err)
				}
			}
			join(t, srv, 3)
			eventually(t, 2*time.Minute, "three", m.shows(1, 2, 3))
			if len(problems) != 2 || problems[1] != nil {
				t.Errorf("problems %v", problems)
			}
		})
	}
}

// A group that can no longer be listed is reported, and its members stay in use; so is
// one that can never be listed. The report ends with the first list that is read.
func TestGroup_Unlistable(t *testing.T) {
	for _, first := range []bool{true, false} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			join(t, srv, 1, 2)
			acl := func(perms int32) {
				if err := srv.SetACL(groupPath, []jute.ACL{{Perms: perms, Scheme: "world", ID: "anyone"}}); err != nil {
					t.Fatal(err)
				}
			}
			if first {
				acl(session.PermWrite)
			}
			var problems []error
			c := webGroup()
			c.Problem = func(_ string, err error) { problems = append(problems, err) }
			g := NewGroup(c)
			m := run(t, memConfig(srv), g)
			defer m.stop()
			if !first {
				eventually(t, 10*time.Second, "two", m.shows(1, 2))
				acl(session.PermWrite)
				join(t, srv, 3)
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if first && m.group() != nil || !first && !m.shows(1, 2)() {
				t.Errorf("first %v: passed on %+v", first, m.group())
			}
			if len(problems) != 1 || !errors.Is(problems[0], session.ErrNoAuth) || !strings.Contains(g.Status().Error, groupPath) {
				t.Errorf("first %v: problems %v, status %q", first, problems, g.Status().Error)
			}
			acl(session.PermAll)
			if first {
				eventually(t, time.Minute, "two", m.shows(1, 2))
			} else {
				eventually(t, time.Minute, "three", m.shows(1, 2, 3))
			}
			if len(problems) != 2 || problems[1] != nil || g.Status().Error != "" {
				t.Errorf("first %v: problems %v, status %q", first, problems, g.Status().Error)
			}
		})
	}
}

// A set reports a group that is too large by its name. It also reports that the group
// is small enough again, even if the group shrank or went while there was no session.
func TestGroups_MaxBytes(t *testing.T) {
	for _, how := range []string{"shrinks", "goes", "shrinks without a session"} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			join(t, srv, 1, 2)
			large := slices.Concat(bytes.TrimSuffix(record(9), []byte("}")), []byte(`,"x":"`+strings.Repeat("x", 10_000)+`"}`))
			if err := srv.Create(groupPath+"/large", large); err != nil {
				t.Fatal(err)
			}
			if err := srv.Create("/services/small", nil); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			open := map[string]bool{}
			g := NewGroups(GroupConfig{Name: "all", Path: "/services", MaxBytes: 5000, Problem: func(group string, err error) {
				mu.Lock()
				defer mu.Unlock()
				open[group] = errors.Is(err, ErrTooLarge)
			}})
			reported := func(want bool) func() bool {
				return func() bool {
					mu.Lock()
					defer mu.Unlock()
					return open[path.Base(groupPath)] == want && !open["small"]
				}
			}
			follow := func() func() {
				s, err := session.Dial(t.Context(), memConfig(srv))
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				wg.Go(func() { _ = g.Run(t.Context(), s, func(*view.Groups) {}) })
				return func() { _ = s.Close(); wg.Wait() }
			}
			stop := follow()
			eventually(t, time.Minute, "too large", reported(true))
			if how == "shrinks without a session" {
				stop()
			}
			names := []string{"large"}
			if how == "goes" {
				names = nil
				for p := range srv.Tree() {
					if path.Dir(p) == groupPath {
						names = append(names, path.Base(p))
					}
				}
				names = append(names, "")
			}
			for _, name := range names {
				if err := srv.Delete(path.Join(groupPath, name)); err != nil {
					t.Fatal(err)
				}
			}
			if how == "shrinks without a session" {
				if !reported(true)() {
					t.Error("reported without a session")
				}
				stop = follow()
			}
			defer func() { stop() }()
			eventually(t, 20*time.Minute, how, reported(false))
		})
	}
}

// A set with too many groups keeps its last good state, and says what the bound is.
func TestGroups_TooMany(t *testing.T) {
	testhelp.InTurn(t, 2)
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		join(t, srv, 1, 2)
		var problem atomic.Value
		problem.Store("")
		g := NewGroups(GroupConfig{Name: "all", Path: "/services", Problem: func(_ string, err error) {
			text := ""
			if err != nil {
				text = err.Error()
			}
			problem.Store(text)
		}})
		m := run(t, memConfig(srv), g)
		defer m.stop()
		groups := func(n, members int) func() bool {
			return func() bool {
				all := m.all()
				if len(all) == 0 {
					return false
				}
				set := all[len(all)-1].(*view.Groups)
				web, _ := set.Group("web")
				return len(set.Groups) == n && len(web.Members) == members
			}
		}
		eventually(t, time.Minute, "one group", groups(1, 2))
		other := func(i int) string { return fmt.Sprintf("/services/g%04d", i) }
		for i := range maxGroups {
			if err := srv.Create(other(i), nil); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, time.Minute, "the problem", func() bool { return problem.Load() != "" })
		sets := len(m.all())
		join(t, srv, 3)
		time.Sleep(time.Minute)
		if text := problem.Load().(string); len(m.all()) != sets || !strings.Contains(text, "5001") || !strings.Contains(text, "5000") || g.Status().Error != text {
			t.Errorf("%q, %d updates", text, len(m.all())-sets)
		}
		if err := srv.Delete(other(7)); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "all", groups(maxGroups, 3))
		if problem.Load() != "" {
			t.Error(problem.Load())
		}
	})
}
