package agent

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
)

// An agent that follows a flat tree, a versioned one and a group asks nothing for
// an hour but pings, one in a third of the session timeout.
func TestAgent_IdleHour(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		for _, path := range []string{"/plain/a", "/flat/a", "/flat/ready", "/group/m"} {
			if err := srv.Create(path, []byte(`{"host":"h","port":1}`)); err != nil {
				t.Fatal(err)
			}
		}
		zk := session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial}
		a, err := New(Config{
			ID: "idle", Host: "idle", OnStop: "leave", ZooKeeper: zk, StateDir: filepath.Join(dir, "state"),
			Configs: []config.Config{
				{Name: "plain", Path: "/plain", Layout: config.LayoutPlain},
				{Name: "flat", Path: "/flat"},
			},
			Groups: []registry.GroupConfig{{Name: "g", Path: "/group", Format: "nerve"}},
			Bundles: []apply.Config{{Name: "f", Templates: []apply.FileConfig{{
				Name: "f", Contents: `{{ key "flat/a" }}{{ key "plain/a" }}{{ range members "g" }}{{ .Address }}{{ end }}`,
				Destination: func(*template.Each) (string, error) { return filepath.Join(dir, "out"), nil },
			}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		<-a.Ready()
		time.Sleep(time.Minute) // virtual: what an agent asks once
		synctest.Wait()
		srv.ResetRequests()
		snap := a.loop.snapshot.Load()
		event, _ := a.events.Newest()
		time.Sleep(time.Hour)
		synctest.Wait()
		// Status, metrics and the page cost nothing without readers.
		if seq, _ := a.events.Newest(); seq != event || a.loop.snapshot.Load() != snap {
			t.Error("states were published, events recorded or the fleet read without readers and changes")
		}
		// Pings; and each 30 to 60 s one look at what a lost event may have changed: the
		// roots, ready, the group, its member, and the agent's records in the fleet.
		most := map[string]uint64{"ping": uint64(3*time.Hour/zk.Timeout) + 1, "exists": 9 * 120}
		for op, n := range srv.Requests() {
			if n > most[op] {
				t.Errorf("%d requests %s in an idle hour", n, op)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
