package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// upgraded are the settings of a host that renders two keys of one config, beside
// being a member and a candidate whose hook works all the time.
func upgraded(servers []string, dir, log, id string) string {
	return strings.Replace(working(servers, log, id), guardedSession, "20s", 1) + `
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 8080
}
config "site" { path = "/config/site" }
template "pair" {
  contents    = "{{ key \"site/a\" }} {{ key \"site/b\" }}\n"
  destination = "` + filepath.Join(dir, id) + `"
}
`
}

// TestUpgrade_UnderLoad upgrades an ensemble of three one by one, from the installed
// ZooKeeper to the one that the tests run, under agents that are members, render what
// is published all the time, and lead. No session is lost, no file is torn, no two
// hosts lead at a time.
func TestUpgrade_UnderLoad(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble that is upgraded")
	t.Parallel()
	e := zktest.StartEnsemble(t, 3, zktest.Options{Release: zktest.Installed})
	dir := t.TempDir()
	log := filepath.Join(dir, "hooks.log")
	tree := newAgent(t, "publisher", "zookeeper {\n  servers = "+quoted(e.Addrs())+"\n}\n")
	publish := func(n int) bool {
		tree.write(t, "tree/a", strconv.Itoa(n))
		tree.write(t, "tree/b", strconv.Itoa(n))
		out, code := tree.run(t, "config", "publish", tree.path("tree"), "/config/site", "--config", tree.path("agent.hcl"), "--yes")
		if code != 0 {
			t.Logf("publish %d: exit %d: %s", n, code, out)
		}
		return code == 0
	}
	eventually(t, "the first publish", func() bool { return publish(0) })
	agents := map[string]*agentProcess{}
	for _, id := range []string{"a", "b", "c"} {
		agents[id] = startAgent(t, id, upgraded(e.Addrs(), dir, log, id))
	}
	newest(t, log, 0)
	joins := func() {
		t.Helper()
		eventually(t, "three members", func() bool {
			members, err := dialed(t, e.ConnectString(), nil).GetChildren(t.Context(), "/services/web")
			return err == nil && len(members) == 3
		})
	}
	joins()
	before := sessions(t, agents)
	torn := watchPairs(t, dir)
	for n, server := range append(e.Followers(t), e.Leader(t)) {
		done := make(chan int)
		go func() { // publishes while the server is down and comes back
			published := 0
			for i := range 3 {
				if publish(1 + 10*n + i) {
					published++
				}
			}
			done <- published
		}()
		server.Stop(t)
		server.Upgrade(t, zktest.Release)
		e.Restart(t, server)
		e.AwaitServing(t)
		published := <-done
		eventually(t, "a publish", func() bool { return publish(9 + 10*n) })
		for id := range agents {
			fileContains(t, filepath.Join(dir, id), fmt.Sprintf("%d %d\n", 9+10*n, 9+10*n))
		}
		t.Logf("%s at %s: %d of 3 publishes meanwhile", server.Release(), server.Addr(), published)
	}
	joins()
	for id, s := range sessions(t, agents) {
		if s.SessionID != before[id].SessionID || s.Expirations != 0 {
			t.Errorf("agent %s: session %s became %s, %d expired", id, before[id].SessionID, s.SessionID, s.Expirations)
		}
		t.Logf("agent %s reconnected %d times in 3 steps", id, s.Reconnects)
		if s.Reconnects > 9 {
			t.Errorf("agent %s: %d reconnects", id, s.Reconnects)
		}
		if text := agents[id].log.String(); strings.Contains(text, "file kept") {
			t.Errorf("agent %s kept a file:\n%s", id, tail(text, 3000))
		}
	}
	apart(t, log)
	if n, text := torn(); text != "" || n == 0 {
		t.Errorf("after %d looks a file was torn: %q", n, text)
	}
}

// watchPairs looks at the files of all hosts again and again. The function that it
// returns ends that, and returns the number of looks and the first torn text.
func watchPairs(t *testing.T, dir string) func() (int, string) {
	t.Helper()
	type result struct {
		looks int
		torn  string
	}
	end, found := make(chan struct{}), make(chan result, 1)
	go func() {
		var r result
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, id := range []string{"a", "b", "c"} {
				text, _ := os.ReadFile(filepath.Join(dir, id))
				x, y, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
				if r.looks++; x != y && r.torn == "" {
					r.torn = string(text)
				}
			}
			select {
			case <-end:
				found <- r
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int, string) {
		close(end)
		r := <-found
		return r.looks, r.torn
	}
}

// sessions are those of agents that are connected.
func sessions(t *testing.T, agents map[string]*agentProcess) map[string]show.ZooKeeperStatus {
	t.Helper()
	found := map[string]show.ZooKeeperStatus{}
	for id, a := range agents {
		a.await(t, id+" to be connected", func(s *show.Status) bool {
			found[id] = s.ZooKeeper
			return s.ZooKeeper.State == "connected"
		})
	}
	return found
}
