package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// The host was booted anew, its rendered files were in memory, and ZooKeeper is
// away: the agent renders from what it kept. When ZooKeeper is back, the session
// of the former boot is closed with what it owned, and a new one begins.
func TestReboot_WithoutZooKeeper(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	server := ownZooKeeper(t)
	zk := server.Addr()
	publish(t, zk, "/config/app", map[string]string{"name": "first"})
	a := startAgent(t, "a", candidate([]string{zk}, longSession)+`
config "app" { path = "/config/app" }
template "app" {
  contents    = "{{ key \"app/name\" }}\n"
  destination = "DIR/app.txt"
}
`)
	former := a.settled(t).ZooKeeper.SessionID
	a.leads(t)
	file := a.path("app.txt")
	fileContains(t, file, "first")
	eventually(t, "the view to be kept", func() bool {
		kept, err := lastgood.Load(a.path("state"))
		return err == nil && kept != nil && len(kept.Sources()) == 1
	})
	a.powerOff(t, file)
	server.Stop(t)

	a.start(t)
	fileContains(t, file, "first")
	server.Start(t)
	s := a.settled(t)
	if s.ZooKeeper.Resumed || s.ZooKeeper.SessionID == former {
		t.Errorf("session %x of the former boot was taken over", s.ZooKeeper.SessionID)
	}
	a.leads(t)
	for _, path := range []string{"/services/api", "/elections/nightly"} {
		eventually(t, "one znode below "+path, func() bool { return len(zkChildren(t, zk, path)) == 1 })
	}
	publish(t, zk, "/config/app", map[string]string{"name": "second"})
	fileContains(t, file, "second")
}

// powerOff kills the agent and makes its next start one on a host that has been
// booted meanwhile and had file in memory.
func (a *agentProcess) powerOff(t *testing.T, file string) {
	t.Helper()
	a.kill()
	data, err := os.ReadFile(a.path("state/session"))
	if err != nil {
		t.Fatal(err)
	}
	booted := strings.Replace(string(data), `"boot_id": "`, `"boot_id": "x`, 1)
	if booted == string(data) {
		t.Fatal("no boot_id in the session file")
	}
	rewrite(t, a.path("state/session"), booted)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}
