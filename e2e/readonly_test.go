package e2e

import (
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// Without a majority agents read on from a server that is read-only, and say so; one
// that starts meanwhile renders. Nothing is led, and what they own has not blinked
// when the majority is back.
func TestReadOnly_AgentsReadOn(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble")
	t.Parallel()
	e := zktest.StartEnsemble(t, 3, zktest.Options{
		JVMFlags: []string{"-Dreadonlymode.enabled=true"},
		Settings: []string{"localSessionsEnabled=true", "localSessionsUpgradingEnabled=true"},
	})
	settings := `
zookeeper {
  servers         = ` + quoted(e.Addrs()) + `
  session_timeout = "10s"
  read_only       = true
}
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 8080
}
group "web" { path = "/services/web" }
election "nightly" { path = "/elections/nightly" }
template "out" {
  contents    = "{{ range members \"web\" }}{{ .Port }}{{ end }}\n"
  destination = "DIR/out"
}
`
	first := startAgent(t, "host-1", settings)
	fileContains(t, first.path("out"), "8080")
	first.await(t, "host-1 to lead", func(s *show.Status) bool { return s.Elections[0].Held })
	s := dialed(t, e.ConnectString(), nil)
	before, err := s.GetChildren(t.Context(), "/services/web")
	if err != nil || len(before) != 1 {
		t.Fatalf("members: %v, %v", before, err)
	}
	leader := e.Leader(t)
	// The server that stays has all that was written: the others follow it.
	for _, server := range e.Followers(t) {
		server.Kill(t)
	}
	readOnly := func(s *show.Status) bool {
		return s.ZooKeeper.State == "read-only" && s.ZooKeeper.Server == leader.Addr() && hasCondition(s, "zookeeper-read-only") && !s.Elections[0].Held
	}
	first.await(t, "host-1 to read on", readOnly)
	second := startAgent(t, "host-2", settings)
	fileContains(t, second.path("out"), "8080")
	second.await(t, "host-2 to say so", func(s *show.Status) bool { return hasCondition(s, "zookeeper-read-only") })
	if out, code := first.run(t, "zk", "ls", "/services/web", "--config", first.path("agent.hcl")); code != 0 || !strings.Contains(out, "web") {
		t.Errorf("zk ls: exit %d\n%s", code, out)
	}
	for _, server := range e.Servers {
		if server != leader {
			e.Restart(t, server)
		}
	}
	for name, a := range map[string]*agentProcess{"host-1": first, "host-2": second} {
		a.await(t, name+" to have a majority", func(s *show.Status) bool {
			return s.ZooKeeper.State == "connected" && !hasCondition(s, "zookeeper-read-only") && s.Elections[0].Held == (name == "host-1")
		})
	}
	eventually(t, "both members", func() bool {
		after, err := dialed(t, e.ConnectString(), nil).GetChildren(t.Context(), "/services/web")
		if err != nil || len(after) != 2 {
			return false
		}
		for _, m := range after {
			if m.Name == before[0].Name && m.Stat.Czxid != before[0].Stat.Czxid {
				t.Errorf("member %s was made anew", m.Name)
			}
		}
		return true
	})
}

func hasCondition(s *show.Status, code string) bool {
	for _, c := range s.Conditions {
		if c.Code == code {
			return true
		}
	}
	return false
}
