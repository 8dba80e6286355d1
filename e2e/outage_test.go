package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// An agent goes through every kind of outage without a restart, and its files
// and its member are there again after each.
func TestOutages(t *testing.T) { //nolint:tparallel // Its subtests build on each other.
	testhelp.OnlyAll(t, "outages that outlast sessions")
	t.Parallel()
	server := ownZooKeeper(t)
	zk := server.Addr()
	keys := map[string]string{"name": "first"}
	publish(t, zk, "/config/app", keys)
	one, _ := backend(t, "one")
	a := startAgent(t, "host-1", serviceSettings(zk, portOf(one))+`
config "app" { path = "/config/app" }
group "api" { path = "/services/api" }
template "app" {
  contents    = "{{ key \"app/name\" }}{{ range members \"api\" }} {{ .Address }}{{ end }}\n"
  destination = "DIR/app.txt"
}
`)
	file := a.path("app.txt")
	member := "127.0.0.1:" + portOf(one)
	fileContains(t, file, "first "+member)

	back := func(value string) {
		t.Helper()
		eventually(t, "a publish to succeed", func() bool {
			dir := t.TempDir()
			writeKey(t, dir, "name", value)
			_, code := command(t, nil, "config", "publish", dir, "/config/app", "--zk", zk, "--yes", "--timeout", "10s")
			return code == 0
		})
		fileContains(t, file, value+" "+member)
		eventually(t, "the member", func() bool {
			out, _ := command(t, nil, "members", "/services/api", "--zk", zk)
			return strings.Contains(out, portOf(one))
		})
	}
	t.Run("restart", func(t *testing.T) {
		server.Stop(t)
		server.Start(t)
		back("second")
	})
	t.Run("longer than the session", func(t *testing.T) {
		server.Stop(t)
		// The agent itself tells that it knows; the outage then lasts until
		// the session cannot live any more on a server that forgets none.
		eventually(t, "the agent to notice", func() bool {
			out, _ := a.run(t, "status", "-o", "json")
			return strings.Contains(out, "suspended") || strings.Contains(out, "connecting")
		})
		outlast := time.NewTimer(6 * time.Second) // the session timeout is 4 s
		<-outlast.C
		server.Start(t)
		back("third")
	})
	t.Run("frozen", func(t *testing.T) {
		server.Freeze(t)
		eventually(t, "the agent to notice", func() bool {
			out, _ := a.run(t, "status", "-o", "json")
			return strings.Contains(out, "suspended") || strings.Contains(out, "connecting")
		})
		server.Resume(t)
		back("fourth")
	})
	t.Run("replaced by an empty one", func(t *testing.T) {
		server.Kill(t)
		server.Wipe(t)
		server.Start(t)
		back("fifth")
	})
	t.Run("the agent started without it", func(t *testing.T) {
		before := fileContains(t, file, "fifth")
		a.stop(t)
		server.Stop(t)
		a.start(t)
		a.statusHolds(t, "host-1")
		unchanged(t, file, before)
		server.Start(t)
		back("sixth")
	})
}
