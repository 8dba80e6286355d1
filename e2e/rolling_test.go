package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// TestRollingReload_OneHostAtATime: a change that needs no vote reaches both
// hosts at once, and only their reloads take turns.
func TestRollingReload_OneHostAtATime(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
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
		agents[id].write(t, "out", "") // A machine that has just started needs no permit for its first file.
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

// TestRollingReload_HaltsAtTheFirstHost: four hosts with an nginx each. The new
// version is valid and its reload succeeds, but nginx then answers with an
// error. One host sees it and goes back. The others keep their old file until
// somebody lifts the halt; a newer version does not.
func TestRollingReload_HaltsAtTheFirstHost(t *testing.T) {
	testhelp.OnlyAll(t, "four hosts with an nginx each")
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, site, map[string]string{"status": "200", "word": "zero"})
	hosts := map[string]*agentProcess{}
	servers := map[string]*nginxProcess{}
	for _, id := range []string{"one", "two", "three", "four"} {
		port := freePort(t)
		a := newAgent(t, id, fmt.Sprintf(`
zookeeper { servers = [%q] }
config "site" { path = %q }
template "web" {
  destination = "DIR/conf.d/site.conf"
  contents    = "server { listen 127.0.0.1:%s; location / { return {{ key \"site/status\" }} {{ key \"site/word\" }}; } }\n"
  check {
    command = ["nginx", "-t", "-p", "DIR/", "-e", "logs/error.log", "-c", "nginx.conf"]
    at      = "swapped"
  }
  reload {
    command      = ["sh", "DIR/reload.sh"]
    min_interval = "10ms"
    timeout      = "80s"
    rolling {
      permits    = "25%%"
      pause      = "1s"
      post_check = ["curl", "-fsS", "http://127.0.0.1:%s/"]
    }
  }
}
`, zk, site, port, port))
		a.write(t, "reload.sh", "cat DIR/conf.d/site.conf >> DIR/seen\nnginx -s reload -p DIR/ -e logs/error.log -c nginx.conf\n")
		a.write(t, "nginx.conf", "pid tmp/nginx.pid;\nworker_processes 1;\nerror_log logs/error.log;\nevents {}\nhttp { access_log off; include conf.d/*.conf; }\n")
		for _, d := range []string{"logs/keep", "tmp/keep"} {
			a.write(t, d, "")
		}
		a.write(t, "conf.d/site.conf", "server { listen 127.0.0.1:"+port+"; location / { return 200 none; } }\n")
		hosts[id], servers[id] = a, &nginxProcess{dir: a.dir, port: port}
		servers[id].start(t)
		a.start(t)
	}
	allServe := func(word string) {
		t.Helper()
		for id, n := range servers {
			eventually(t, id+" to serve "+word, func() bool { body, err := n.get(); return err == nil && body == word })
		}
	}
	allServe("zero")
	publish(t, zk, site, map[string]string{"status": "500", "word": "bad"})
	halted := ""
	eventually(t, "the halt in zkagent fleet", func() bool {
		halted, _ = command(t, nil, "fleet", "--zk", zk)
		return strings.Contains(halted, "zkagent reload --clear-halt web")
	})
	// A newer version lifts no halt.
	publish(t, zk, site, map[string]string{"status": "200", "word": "better"})
	for id := range hosts {
		eventually(t, "the condition on "+id, func() bool {
			text, _ := hosts[id].run(t, "status")
			return strings.Contains(text, "reload-halted") || strings.Contains(halted, ": "+id+": ")
		})
	}
	allServe("zero")
	saw := 0
	for id, a := range hosts {
		data, err := os.ReadFile(a.path("seen"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "bad") {
			saw++
		} else if strings.Contains(string(data), "better") {
			t.Errorf("%s reloaded during the halt", id)
		}
	}
	if saw != 1 {
		t.Errorf("%d hosts saw the bad version, want 1", saw)
	}
	if out, code := command(t, nil, "reload", "--clear-halt", "web", "--zk", zk); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	allServe("better")
	for id, a := range hosts {
		if data, err := os.ReadFile(a.path("seen")); err != nil || saw == 1 && strings.Count(string(data), "bad") > 1 {
			t.Errorf("%s: %v\n%s", id, err, data)
		}
	}
}
