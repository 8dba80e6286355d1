package agent

import (
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/registry"
)

// The settings stop naming a znode while ZooKeeper cannot be reached. The agent deletes
// the znode as soon as it reaches ZooKeeper. The session goes on, and the other znodes
// stay as they are.
func TestLeftovers_TakenOutWhileZooKeeperIsGone(t *testing.T) {
	t.Parallel()
	b := &bed{t: t, dir: t.TempDir(), addr: "a:2181"}
	w := memzk.New(memzk.Options{TickTime: 30 * time.Second}) // sessions outlive any test
	t.Cleanup(w.Close)
	c := b.memConfig(w)
	c.ZooKeeper.Timeout = 10 * time.Minute
	keep, one, two := service("keep", "/keep", "", 80), service("one", "/one", "", 81), service("two", "/two", registry.FormatCurator, 82)
	c.Services = []registry.ServiceConfig{keep, one, two}
	c.Elections = []election.Config{{Name: "keep", Path: "/elections/keep"}, {Name: "old", Path: "/elections/old"}}
	c.Configs = []config.Config{{Name: "web", Path: "/config/web"}}
	next := c
	next.Services, next.Elections, next.Configs = c.Services[:1], c.Elections[:1], nil
	c.Load = func() (Config, error) { return next, nil }
	a := b.start(c)
	gone := []string{"/one", "/two", "/elections/old"}
	for _, path := range append([]string{"/keep", "/elections/keep"}, gone...) {
		eventually(t, "the znode below "+path, func() bool { return members(w, path) == 1 })
	}
	kept := map[string]int64{}
	for _, path := range []string{"/keep", "/elections/keep"} {
		names, _ := w.Children(path)
		n, err := w.Get(path + "/" + names[0])
		if err != nil {
			t.Fatal(err)
		}
		kept[path+"/"+names[0]] = n.Stat.Czxid
	}
	session := a.Status().ZooKeeper.SessionID

	w.RefuseDial("a:2181")
	w.DropConnections("a:2181")
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range gone {
		if members(w, path) != 1 {
			t.Errorf("what is below %s went without a connection", path)
		}
	}
	w.Heal()
	for _, path := range gone {
		eventually(t, "what is below "+path+" to go", func() bool { return members(w, path) == 0 })
	}
	for path, czxid := range kept {
		if n, err := w.Get(path); err != nil || n.Stat.Czxid != czxid {
			t.Errorf("%s: got czxid %d (%v), want %d", path, n.Stat.Czxid, err, czxid)
		}
	}
	if got := a.Status().ZooKeeper.SessionID; got != session {
		t.Errorf("got session %x, want %x", got, session)
	}
}
