package agent

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// memBed is a bed with a ZooKeeper in memory.
func memBed(t *testing.T) (*bed, *memzk.Server) {
	t.Helper()
	w := memzk.New(memzk.Options{TickTime: time.Second})
	t.Cleanup(w.Close)
	return &bed{t: t, dir: t.TempDir(), addr: "a:2181"}, w
}

// publisher dials the server in memory, and returns how to write and to publish
// the key "v" of a tree.
func (b *bed) publisher(w *memzk.Server, root string) (*session.Session, func(string) fleet.PublishConfig, func(string)) {
	b.t.Helper()
	s, err := session.Dial(b.t.Context(), session.Config{Servers: []string{b.addr}, Timeout: 20 * time.Second, Dial: w.Dial})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	keys := func(v string) fleet.PublishConfig {
		return fleet.PublishConfig{Path: root, Keys: map[string][]byte{"v": []byte(v)}}
	}
	return s, keys, func(v string) {
		b.t.Helper()
		if _, err := fleet.Publish(b.t.Context(), s, keys(v)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// memConfig is an agent without anything to do, and with a session that
// outlasts a restart on any machine.
func (b *bed) memConfig(w *memzk.Server) Config {
	c := b.config()
	c.Configs = nil
	c.ZooKeeper = session.Config{Servers: []string{b.addr}, Timeout: 20 * time.Second, Dial: w.Dial}
	return c
}

func service(name, group, format string, port int) registry.ServiceConfig {
	return registry.ServiceConfig{Name: name, Groups: []string{group}, Format: format, Address: "127.0.0.1", Port: port, MemberID: name}
}

// live runs the sessions of an agent that does nothing else. The returned
// function hands the session over.
func (a *Agent) live(t *testing.T) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- a.sessions.Run(ctx) }()
	return func() {
		a.sessions.HandOver()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// What a previous process left, and whether the settings still want it.
func TestReconcile_DeletesWhatNoUnitWants(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	c := b.memConfig(w)
	c.Services = []registry.ServiceConfig{
		service("api", "/services/api", "", 80), service("web", "/services/web", registry.FormatCurator, 81),
		service("set", "/services/set", registry.FormatServerSet, 82),
	}
	c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}, {Name: "k", Path: "/elections/k", Dialect: "kazoo"}}
	c.Configs = []config.Config{{Name: "web", Path: "/config/web"}}
	c.Bundles = []apply.Config{{Name: "nginx", Reload: &apply.ReloadConfig{Rolling: &apply.RollingConfig{Permits: "1"}}}}
	const guid = "_c_00000000-0000-4000-8000-000000000000-"
	left := []struct {
		path, data string
		wanted     bool
	}{
		{"/services/api/api_0000000003", "{}", true},
		{"/services/api/other_0000000004", "{}", false},
		{"/services/web/web", "{}", true},
		{"/services/web/old", "{}", false},
		{"/services/set/member_0000000001", `{"serviceEndpoint":{"host":"127.0.0.1","port":82},"status":"ALIVE"}`, true},
		{"/services/set/member_0000000002", `{"serviceEndpoint":{"host":"127.0.0.1","port":83},"status":"ALIVE"}`, false},
		{"/services/old/old_0000000000", "{}", false},
		{"/elections/e/" + guid + "latch-0000000000", "a1", true},
		{"/elections/e/" + guid + "lock-0000000001", "a1", false},
		{"/elections/k/0123456789abcdef0123456789abcdef__lock__0000000000", "a1", true},
		{"/elections/old/" + guid + "latch-0000000000", "a1", false},
		{fleet.AgentPath("a1"), "{}", true},
		{fleet.AgentPath("a2"), "{}", false},
		{fleet.SubscriptionPath("/config/web", "a1"), "{}", true},
		{fleet.SubscriptionPath("/config/old", "a1"), "{}", false},
		{"/config/web/rollouts/r-0000000001/permits/leases/" + guid + "lease-0000000000", "", false},
		{"/config/web/rollouts/coordinator/" + guid + "latch-0000000000", "a1", false},
		{"/config/old/rollouts/coordinator/" + guid + "latch-0000000000", "a1", false},
		{"/zkagent/rolling/nginx/leases/" + guid + "lease-0000000000", "a1", false},
		{"/zkagent/rolling/old/leases/" + guid + "lease-0000000000", "a1", false},
		{"/elections/e-ops/" + guid[:len(guid)-1], "", false},
	}
	previous, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	handOver := previous.live(t)
	s, err := previous.sessions.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range left {
		if err := s.CreateParents(t.Context(), x.path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Create(t.Context(), x.path, []byte(x.data), session.Ephemeral); err != nil {
			t.Fatal(err)
		}
	}
	const foreign = "/services/old/foreign"
	if err := w.Create(foreign, nil); err != nil {
		t.Fatal(err)
	}
	handOver()

	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	handOver = a.live(t)
	defer handOver()
	next, err := newLeftovers(a).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !next.Resumed() || next.ID() != s.ID() {
		t.Fatalf("got session %x, resumed %v; want %x", next.ID(), next.Resumed(), s.ID())
	}
	for _, x := range left {
		if got := w.Exists(x.path); got != x.wanted {
			t.Errorf("%s: is there: %v, want %v", x.path, got, x.wanted)
		}
	}
	if !w.Exists(foreign) {
		t.Error("a znode of somebody else was deleted")
	}
}

// members lists a group; one that is not there is empty.
func members(w *memzk.Server, group string) int {
	names, err := w.Children(group)
	if err != nil {
		return 0
	}
	return len(names)
}

// A service that is taken out of the settings leaves, whether the agent runs
// or is away; the other one stays as it is.
func TestReconcile_ServicesTakenOut(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	c := b.memConfig(w)
	c.OnStop = onStopHandOver
	keep, one, two := service("keep", "/keep", "", 80), service("one", "/one", "", 81), service("two", "/two", "", 82)
	c.Services = []registry.ServiceConfig{keep, one, two}
	next := c
	next.Services = []registry.ServiceConfig{keep, two}
	c.Load = func() (Config, error) { return next, nil }
	a := b.start(c)
	a.ready()
	for _, group := range []string{"/keep", "/one", "/two"} {
		eventually(t, "the member of "+group, func() bool { return members(w, group) == 1 })
	}
	kept, _ := w.Children("/keep")
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member that left to go", func() bool { return members(w, "/one") == 0 })
	if members(w, "/two") != 1 {
		t.Error("the other member went")
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if members(w, "/two") != 1 {
		t.Error("a hand-over deleted a member")
	}
	next.Services = []registry.ServiceConfig{keep}
	a = b.start(next)
	a.ready()
	eventually(t, "the unwanted member to go", func() bool { return members(w, "/two") == 0 })
	if got, _ := w.Children("/keep"); len(got) != 1 || got[0] != kept[0] {
		t.Errorf("got members %v, want %v", got, kept)
	}
}
