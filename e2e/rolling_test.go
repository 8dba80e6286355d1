package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRollingReload_OneHostAtATime: a change that needs no vote reaches both
// hosts at once, and only their reloads take turns.
func TestRollingReload_OneHostAtATime(t *testing.T) {
	zk := zookeeper(t).Addr()
	log := filepath.Join(t.TempDir(), "reloads.log")
	publish(t, zk, site, map[string]string{"word": "zero"})
	agents := map[string]*agentProcess{}
	for _, id := range []string{"left", "right"} {
		agents[id] = newAgent(t, id, fmt.Sprintf(`
zookeeper { servers = [%q] }
config "site" { path = %q }
template "rolling" {
  destination = "DIR/out"
  contents    = "{{ key \"site/word\" }}"
  reload {
    command      = ["sh", "DIR/reload.sh"]
    min_interval = "10ms"
    timeout      = "80s"
    rolling {
      permits    = "1"
      pause      = "0s"
      post_check = ["sh", "-c", "echo check >> DIR/checked"]
    }
  }
}
`, zk, site))
		agents[id].write(t, "reload.sh", fmt.Sprintf("w=$(cat DIR/out)\necho begin %s $w >> %s\nsleep 0.5\necho end %s $w >> %s\n", id, log, id, log))
		agents[id].start(t)
	}
	reloaded := func(word string) {
		fileHolds(t, log, "both reloads of "+word, func(s string) bool {
			return strings.Contains(s, "end left "+word+"\n") && strings.Contains(s, "end right "+word+"\n")
		})
	}
	reloaded("zero")
	for _, word := range []string{"one", "two"} {
		publish(t, zk, site, map[string]string{"word": word})
		reloaded(word)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	active := ""
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		switch {
		case f[0] == "begin" && active != "":
			t.Errorf("%s reloads while %s does:\n%s", f[1], active, data)
		case f[0] == "begin":
			active = f[1]
		default:
			active = ""
		}
	}
	for id, a := range agents {
		fileHolds(t, a.path("checked"), "a post-check on "+id, func(s string) bool { return s != "" })
	}
}
