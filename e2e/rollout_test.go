package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const site = "/config/site"

// sites is a few agents that follow one tree, each with its own file, check
// and reload. All append to one log, whose order is that of the appends.
type sites struct {
	t      *testing.T // whose end is that of the agents
	zk     string
	log    string // "begin ID WORD" and "end ID WORD" of each reload
	agents map[string]*agentProcess
}

// siteReload is the reload of one host. What is published is one word that
// says what happens: "break" fails on the hosts with an odd number, "slow" waits
// on web-4 for a file.
const siteReload = `word=$(cat DIR/out)
echo "begin ID $word" >> LOG
sleep 0.2
case "$word:ID" in
break:web-[135]) echo "end ID $word" >> LOG; echo "the service is broken on ID"; exit 1 ;;
slow:web-4) until [ -e DIR/go ]; do sleep 0.1; done ;;
esac
echo "end ID $word" >> LOG
`

// siteCheck refuses one word on one host.
const siteCheck = `case "$(cat "$1"):ID" in refuse:web-3) echo "ID: unknown directive refuse"; exit 1 ;; esac
`

func (s *sites) settings() string {
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = "6s"
}
config "site" { path = %q }
template "out" {
  destination = "DIR/out"
  contents    = "{{ key \"site/word\" }}"
  check { command = ["sh", "DIR/check.sh", staged] }
  reload {
    command      = ["sh", "DIR/reload.sh"]
    min_interval = "10ms"
    timeout      = "80s"
  }
}
`, s.zk, site)
}

// join starts one more agent, and does not wait.
func (s *sites) join(t *testing.T, id string) {
	t.Helper()
	a := newAgent(s.t, id, s.settings())
	for name, script := range map[string]string{"reload.sh": siteReload, "check.sh": siteCheck} {
		a.write(t, name, strings.NewReplacer("ID", id, "LOG", s.log).Replace(script))
	}
	a.start(t)
	s.agents[id] = a
}

// startSites starts n agents that use the word "one".
func startSites(t *testing.T, zk string, n int) *sites {
	t.Helper()
	s := &sites{t: t, zk: zk, log: filepath.Join(t.TempDir(), "reloads.log"), agents: map[string]*agentProcess{}}
	publish(t, zk, site, map[string]string{"word": "one"})
	for i := range n {
		s.join(t, fmt.Sprintf("web-%d", i))
	}
	s.allUse(t, "one")
	s.subscribed(t, n)
	return s
}

// uses is the word that a host's file has.
func (s *sites) uses(id string) string {
	data, _ := os.ReadFile(s.agents[id].path("out"))
	return string(data)
}

func (s *sites) allUse(t *testing.T, word string) {
	t.Helper()
	for id := range s.agents {
		eventually(t, id+" to use "+word, func() bool { return s.uses(id) == word })
	}
}

func (s *sites) subscribed(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d subscribers", n), func() bool {
		out, _ := command(t, nil, "zk", "ls", site+"/subscribers", "--zk", s.zk)
		return strings.Count(out, "web-") == n
	})
}

// publish publishes a word with the given flags.
func (s *sites) publish(t *testing.T, word string, flags ...string) (string, int) {
	t.Helper()
	dir := t.TempDir()
	writeKey(t, dir, "word", word)
	return command(t, nil, append([]string{"config", "publish", dir, site, "--zk", s.zk, "-m", "to " + word}, flags...)...)
}

// rollOut publishes a word by a rollout without waiting between its phases.
func (s *sites) rollOut(t *testing.T, word string, flags ...string) (string, int) {
	t.Helper()
	return s.publish(t, word, append([]string{"--rollout", "--bake", "0s", "--vote-timeout", "80s", "--grace", "80s"}, flags...)...)
}

// events are the fields of the log's lines about a word.
func (s *sites) events(t *testing.T, word string) [][]string {
	t.Helper()
	data, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	var events [][]string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == word {
			events = append(events, f)
		}
	}
	return events
}

// atMost checks how many hosts reloaded for the word at one time.
func (s *sites) atMost(t *testing.T, word string, k int) {
	t.Helper()
	active := map[string]bool{}
	for _, e := range s.events(t, word) {
		if e[0] == "end" {
			delete(active, e[1])
			continue
		}
		if active[e[1]] = true; len(active) > k {
			t.Errorf("%d hosts at once at %v, want at most %d", len(active), e, k)
		}
	}
}

func TestRollout_Fleet(t *testing.T) {
	s := startSites(t, zookeeper(t).Addr(), 6)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *sites)
	}{
		{"one host refuses and nobody changes", oneRefuses},
		{"a good version changes two at a time", goodVersion},
		{"a failure in the middle halts, a rollback brings all back", failureInTheMiddle},
		{"an agent killed while it activates goes on", killedAtActivation},
		{"an emergency goes past an open rollout", emergency},
		{"of two publishers one wins", twoPublishers},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, s) }) {
			return // what follows builds on it
		}
	}
}

func oneRefuses(t *testing.T, s *sites) {
	out, code := s.rollOut(t, "refuse", "--parallel", "6")
	if code != 1 || !strings.Contains(out, "web-3: unknown directive refuse") {
		t.Errorf("exit %d, want 1 and the host's own words:\n%s", code, out)
	}
	if events := s.events(t, "refuse"); len(events) > 0 {
		t.Errorf("hosts have changed: %v", events)
	}
	s.allUse(t, "one")
}

func goodVersion(t *testing.T, s *sites) {
	if out, code := s.rollOut(t, "two", "--parallel", "2", "--canary", "1"); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	s.allUse(t, "two")
	s.atMost(t, "two", 2)
}

func failureInTheMiddle(t *testing.T, s *sites) {
	out, code := s.rollOut(t, "break", "--parallel", "1", "--canary", "web-0")
	if code != 1 || !strings.Contains(out, "the service is broken on web-") {
		t.Errorf("exit %d, want 1 and the host's own words:\n%s", code, out)
	}
	s.atMost(t, "break", 1)
	var touched []string
	for _, e := range s.events(t, "break") {
		touched = append(touched, e[1])
	}
	if touched[0] != "web-0" {
		t.Errorf("%s was first, want the canary web-0", touched[0])
	}
	rest := ""
	for id := range s.agents {
		want := "break"
		if slices.Contains([]string{"web-1", "web-3", "web-5"}, id) || !slices.Contains(touched, id) {
			want = "two"
		}
		eventually(t, id+" to use "+want, func() bool { return s.uses(id) == want })
		if !slices.Contains(touched, id) {
			rest = id
		}
	}
	if rest == "" {
		t.Fatal("no host was left untouched")
	}
	// A host that restarts during the halt, and one that is new.
	s.agents[rest].kill()
	if err := os.Remove(s.agents[rest].path("out")); err != nil {
		t.Fatal(err)
	}
	s.agents[rest].start(t)
	s.join(t, "web-6")
	for _, id := range []string{rest, "web-6"} {
		eventually(t, id+" to use two", func() bool { return s.uses(id) == "two" })
	}
	s.subscribed(t, 7)
	if out, code := command(t, nil, "rollout", "rollback", site, "--zk", s.zk, "--vote-timeout", "80s"); code != 0 {
		t.Fatalf("rollback: exit %d:\n%s", code, out)
	}
	s.allUse(t, "two")
}

func killedAtActivation(t *testing.T, s *sites) {
	out, code := s.rollOut(t, "slow", "--parallel", "7", "--canary", "web-4", "--detach")
	if code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	eventually(t, "web-4 to reload", func() bool { return len(s.events(t, "slow")) > 0 })
	s.agents["web-4"].kill()
	s.agents["web-4"].write(t, "go", "")
	s.agents["web-4"].start(t)
	if out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk); code != 0 {
		t.Fatalf("watch: exit %d:\n%s", code, out)
	}
	s.allUse(t, "slow")
	if first := s.events(t, "slow")[0]; first[1] != "web-4" {
		t.Errorf("%s was first, want the canary web-4", first[1])
	}
}

func emergency(t *testing.T, s *sites) {
	if out, code := s.rollOut(t, "three", "--canary", "1", "--bake", "1h", "--detach"); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	eventually(t, "the canary to be done", func() bool {
		events := s.events(t, "three")
		return len(events) > 0 && events[len(events)-1][0] == "end"
	})
	if out, code := s.publish(t, "four"); code != 75 || !strings.Contains(out, "--emergency") {
		t.Errorf("a publish past an open rollout: exit %d, want 75 and a hint:\n%s", code, out)
	}
	if out, code := s.publish(t, "four", "--emergency"); code != 2 || !strings.Contains(out, "--yes") {
		t.Errorf("an emergency that nobody confirms: exit %d, want 2 and a hint:\n%s", code, out)
	}
	if out, code := s.publish(t, "four", "--emergency", "--yes"); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	s.allUse(t, "four")
	eventually(t, "the rollout to be closed", func() bool {
		_, code := command(t, nil, "zk", "get", site+"/rollouts/current", "--zk", s.zk)
		return code != 0
	})
}

func twoPublishers(t *testing.T, s *sites) {
	var wg sync.WaitGroup
	codes := make([]int, 2)
	for i := range codes {
		dir := t.TempDir()
		writeKey(t, dir, "word", fmt.Sprintf("five-%d", i))
		wg.Go(func() {
			_, codes[i] = command(t, nil, "config", "publish", dir, site, "--zk", s.zk, "--rollout", "--bake", "0s", "--parallel", "100%", "--vote-timeout", "80s")
		})
	}
	wg.Wait()
	// The second may come when the first is through already: then both win.
	if codes[0] != 0 && codes[1] != 0 {
		t.Fatalf("exits %v, want a winner", codes)
	}
	for _, code := range codes {
		if code != 0 && code != 75 {
			t.Errorf("exits %v, want 0 or 75", codes)
		}
	}
	eventually(t, "all hosts to use the same", func() bool {
		word := s.uses("web-0")
		for id := range s.agents {
			if s.uses(id) != word || !strings.HasPrefix(word, "five-") {
				return false
			}
		}
		return true
	})
}
