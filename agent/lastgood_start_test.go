package agent

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// The newest last known good view is damaged and ZooKeeper is away: the one before
// it is used.
func TestStart_DamagedLastKnownGood(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b, server := ownBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	kept := func(port string) {
		t.Helper()
		eventually(t, "the view of port "+port+" to be kept", func() bool {
			g, err := lastgood.Load(c.StateDir)
			if err != nil || g == nil {
				return false
			}
			tree, ok := g.Tree("web")
			if !ok {
				return false
			}
			key, _ := tree.Get("port")
			return string(key.Value) == port
		})
	}
	a := b.start(c)
	a.ready()
	kept("80")
	b.set("/config/web/port", "81")
	kept("81")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	file := lastgood.Files(c.StateDir)[0]
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.LastIndex(data, []byte(`"trees"`))+1] ^= 0x20 // of the latest change
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.path("web.conf")); err != nil {
		t.Fatal(err)
	}
	a = b.start(c)
	a.ready()
	fileIs(t, b.path("web.conf"), "80")
	server.Start(t)
	fileIs(t, b.path("web.conf"), "81")
}

// The service manager hears of progress only while the loop makes some.
func TestWatchdog_FollowsTheLoop(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	var beats atomic.Int64
	a := b.start(b.config(), func(a *Agent) {
		a.loop.beats = 10 * time.Millisecond
		a.loop.beat = func() { beats.Add(1) }
	})
	a.ready()
	eventually(t, "beats", func() bool { return beats.Load() > 2 })
	stuck, release := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.loop.do(t.Context(), func() { close(stuck); <-release })
	}()
	<-stuck
	n := beats.Load()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 20 {
		<-tick.C
	}
	if got := beats.Load(); got != n {
		t.Errorf("%d beats while the loop is stuck", got-n)
	}
	close(release)
	<-done
	eventually(t, "beats again", func() bool { return beats.Load() > n })
}
