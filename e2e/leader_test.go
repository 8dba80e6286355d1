package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// leaderSettings is a candidate whose hook, elected or on a change, appends
// to a log that all agents share: when it began and ended, and its fence.
func leaderSettings(zk, log, id string) string {
	script := fmt.Sprintf(`echo begin %s $ZKAGENT_FENCE $(date +%%s%%N) $ZKAGENT_EVENT >> %s; sleep 0.2; echo end %s $ZKAGENT_FENCE $(date +%%s%%N) >> %s`, id, log, id, log)
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = "8s"
}
config "app" { path = "/config/app" }
election "nightly" { path = "/elections/nightly" }
hook "compact" {
  leader     = election.nightly
  on_elected = true
  on_change  = [config.app]
  command    = ["sh", "-c", %q]
  timeout    = "60s"
}
`, zk, strings.ReplaceAll(script, "${", "$${"))
}

func TestLeader_HookRunsOnOneHostAndMovesOn(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/app", map[string]string{"n": "0"})
	log := filepath.Join(t.TempDir(), "hooks.log")
	agents := map[string]*agentProcess{}
	proxies := map[string]*zktest.Proxy{}
	for _, id := range []string{"a", "b"} {
		proxy, via := proxied(t, zk)
		proxies[id] = proxy
		agents[id] = startAgent(t, id, leaderSettings(via, log, id))
	}
	leader := lastRunner(t, log, "elected", 1)
	// The first tree is a change, too. Were the leader killed before it has begun
	// the run for the next one, that would be the successor's.
	lastRunner(t, log, "change", 1)

	publish(t, zk, "/config/app", map[string]string{"n": "1"})
	if got := lastRunner(t, log, "change", 2); got != leader {
		t.Fatalf("the hook ran on %s, the leader is %s", got, leader)
	}

	other := map[string]string{"a": "b", "b": "a"}
	agents[leader].kill()
	next := lastRunner(t, log, "elected", 2)
	if next != other[leader] {
		t.Fatalf("%s was elected after %s was killed", next, leader)
	}
	agents[leader].start(t)
	agents[leader].statusHolds(t, "connected")

	proxies[next].Cut()
	if got := lastRunner(t, log, "elected", 3); got != leader {
		t.Fatalf("%s was elected after %s was cut off", got, next)
	}
	publish(t, zk, "/config/app", map[string]string{"n": "2"})
	if got := lastRunner(t, log, "change", 3); got != leader {
		t.Fatalf("the hook ran on %s, the leader is %s", got, leader)
	}
	proxies[next].Heal()
	noOverlap(t, log)
}

// lastRunner waits for the nth run of an event and returns where it ran.
func lastRunner(t *testing.T, log, event string, n int) string {
	t.Helper()
	var host string
	fileHolds(t, log, fmt.Sprintf("%d runs of %s", n, event), func(s string) bool {
		seen := 0
		for line := range strings.Lines(s) {
			if f := strings.Fields(line); len(f) == 5 && f[0] == "begin" && f[4] == event {
				seen++
				host = f[1]
			}
		}
		return seen >= n
	})
	return host
}

// noOverlap checks that no two hooks of different terms ran at once, and that
// fences only grow.
func noOverlap(t *testing.T, log string) {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var fence, ended int64
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		token, _ := strconv.ParseInt(f[2], 10, 64)
		at, _ := strconv.ParseInt(f[3], 10, 64)
		switch {
		case token < fence:
			t.Errorf("fence went back: %s", line)
		case f[0] == "begin" && token > fence && at < ended:
			t.Errorf("a run began before the former term's had ended: %s", line)
		}
		fence = max(fence, token)
		if f[0] == "end" {
			ended = max(ended, at)
		}
	}
}

func writeKey(t *testing.T, dir, name, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}
