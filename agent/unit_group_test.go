package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

func TestGroups_HeldMembersAreACondition(t *testing.T) {
	var conds condition.Set
	group := func(name string, held bool) *view.Group {
		g := &view.Group{Name: name, Members: []view.Member{{ID: "a"}, {ID: "b", Held: held}}}
		if held {
			g.Holding = time.Unix(1, 0)
		}
		return g
	}
	subjects := func() string {
		var list []string
		for _, c := range conds.List() {
			list = append(list, c.Subject)
		}
		return strings.Join(list, " ")
	}
	announceGroups(&conds, group("api", false))
	if got := subjects(); got != "" {
		t.Errorf("nothing is held, and open are %q", got)
	}
	announceGroups(&conds, group("api", true))
	if got := conds.List(); len(got) != 1 || !strings.Contains(got[0].Text, "1 of 2 members") || !strings.Contains(got[0].Text, "accept api") {
		t.Errorf("got %+v", got)
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("db", true), group("web", false)}})
	if !conds.Has(condition.MembersHeld, "all/db") || conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	if conds.Has(condition.MembersHeld, "all/db") || !conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	announceGroups(&conds, group("api", true))
	a := &Agent{conds: &conds}
	a.retainConditions(&Config{Groups: []registry.GroupConfig{{Name: "api"}}})
	if got := subjects(); got != "api" {
		t.Errorf("open are %q, and the settings have api", got)
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	a.retainConditions(&Config{GroupSets: []registry.GroupConfig{{Name: "all"}, {Name: "api"}}})
	if got := subjects(); got != "all/web" {
		t.Errorf("open are %q, and the settings have the sets all and api", got)
	}
	a.retainConditions(&Config{})
	if got := subjects(); got != "" {
		t.Errorf("open are %q", got)
	}
}

// What the follower of a source has opened does not outlive it: the next one finds a source
// that is there again, and knows of nothing to close.
func TestSource_GoneAndBackWhileSettingsChange(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, func(w *world) {
		w.pass(time.Minute)
		h := w.hosts[0]
		_, err := fleet.Delete(w.t.Context(), w.desk, worldRoot, "world", "")
		w.must(err)
		w.pass(time.Minute)
		if !h.agent.conds.Has(condition.SourceGone, "config site") {
			w.t.Errorf("open are %+v", h.agent.conds.List())
		}
		w.srv.Stop()
		h.settings = 3 // of the config
		w.must(h.reload())
		w.srv.Start()
		_, err = fleet.Restore(w.t.Context(), w.desk, worldRoot, "world")
		w.must(err)
		w.pass(time.Minute)
		if list := h.agent.conds.List(); len(list) > 0 {
			w.t.Errorf("all is well, and open are %+v", list)
		}
	})
	a := &Agent{conds: &condition.Set{}}
	for _, subject := range []string{"groups all", "groups all/web", "groups all2", "config all"} {
		a.conds.Open(condition.SourceUnusable, subject, "why")
	}
	a.closeSource("groups all")
	if list := a.conds.List(); len(list) != 2 {
		t.Errorf("open are %+v", list)
	}
}

// Members that vanish while an agent restarts, or while its settings give the group another
// label, are lost together, as if one follower had been there all the time.
func TestGroup_MassLossWhileAFollowerBegins(t *testing.T) {
	lose := func(w *world) {
		w.srv.Partition("h1:2181")
		w.srv.Partition("h2:2181")
		w.expire()
	}
	for name, test := range map[string]struct {
		event func(w *world, h *worldHost)
		want  int
	}{
		"another label": {func(w *world, h *worldHost) {
			lose(w)
			h.settings = 8
			w.must(h.reload())
		}, 3},
		"the agent leaves": {func(w *world, h *worldHost) { h.stop(stopLeave); lose(w); w.pass(20 * time.Second); h.start() }, 3},
		"the agent restarts in an outage": {func(w *world, h *worldHost) {
			w.srv.Stop()
			h.stop(stopHandOver)
			h.start()
			w.pass(5 * time.Minute)
			w.srv.Start()
			lose(w)
		}, 3},
		"the agent was away for longer than the window": {func(w *world, h *worldHost) {
			h.stop(stopLeave)
			lose(w)
			w.pass(time.Minute)
			h.served = false // the list may be empty until it has joined
			h.start()
		}, 1},
	} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, func(w *world) {
				w.pass(10 * time.Minute)
				test.event(w, w.hosts[0])
				w.pass(time.Minute)
				if _, members := w.hosts[0].file(); len(members) != test.want {
					w.t.Errorf("its file has %q, want %d members", members, test.want)
				}
				w.srv.ClearFaults()
			})
		})
	}
}

// A hold continues over a reload that changes the group, and in the next process.
func TestGroup_HoldGoesOn(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	join := func(n int) {
		path := fmt.Sprintf("/services/api/m_%010d", n)
		if err := w.Create(path, fmt.Appendf(nil, `{"host":"10.0.0.5","port":%d,"name":"m%d"}`, n, n)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 6 {
		join(1 + n)
	}
	c := b.memConfig(w)
	c.Groups = []registry.GroupConfig{{Name: "api", Path: "/services/api"}}
	c.GroupSets = []registry.GroupConfig{{Name: "all", Path: "/services"}}
	c.Bundles = []apply.Config{b.file("list", `{{ range members "api" }}{{ .Port }} {{ end }}`), b.file("all", `{{ range groups "all" }}{{ range .Members }}{{ .Port }} {{ end }}{{ end }}`)}
	next := c
	c.Load = func() (Config, error) { return next, nil }
	const all = "1 2 3 4 5 6 "
	held := func(a *started) {
		t.Helper()
		a.condition(condition.MembersHeld, "api", true)
		a.condition(condition.MembersHeld, "all/api", true)
		fileIs(t, b.path("list"), all)
		fileIs(t, b.path("all"), all)
	}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("list"), all)
	for n := range 5 {
		if err := w.Delete(fmt.Sprintf("/services/api/m_%010d", 1+n)); err != nil {
			t.Fatal(err)
		}
	}
	held(a)
	next.Groups = []registry.GroupConfig{{Name: "api", Path: "/services/api", OnEmpty: registry.OnEmptyFail}}
	next.GroupSets = []registry.GroupConfig{{Name: "all", Path: "/services", OnEmpty: registry.OnEmptyFail}}
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	join(7) // a render by the new settings
	eventually(t, "seven to be listed", func() bool { return read(t, b.path("list")) == all+"7 " && read(t, b.path("all")) == all+"7 " })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a = b.start(next)
	a.ready()
	join(8)
	eventually(t, "eight to be listed", func() bool { return read(t, b.path("list")) == all+"7 8 " && read(t, b.path("all")) == all+"7 8 " })
	for n := range 5 {
		join(1 + n)
	}
	a.condition(condition.MembersHeld, "api", false)
}
