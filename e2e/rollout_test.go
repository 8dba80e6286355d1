package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

const site = "/config/site"

// sites is a fleet that follows one tree: each agent is a process with its own
// file, check, service, reload and post-check.
type sites struct {
	t      *testing.T // whose end is that of the agents
	zk     string
	reaper *reaper // between the agents and ZooKeeper; may be nil
	log    *eventLog
	gate   *gate // where the slow host waits
	agents map[string]*agentProcess
}

// siteReload makes the service reload. A service that answers "die" takes
// the agent with it.
const siteReload = `exec 3<>/dev/tcp/127.0.0.1/@PORT || exit 1
echo reload >&3
read -r answer <&3
case "$answer" in
ok) exit 0 ;;
die) kill -9 $PPID ;;
esac
echo "$answer"
exit 1
`

// sitePostCheck asks the service whether it serves what is in the file.
const sitePostCheck = `exec 3<>/dev/tcp/127.0.0.1/@PORT || exit 1
echo check >&3
read -r answer <&3
[ "$answer" = ok ] || { echo "$answer"; exit 1; }
`

// siteCheck refuses one word on one host.
const siteCheck = `case "$(cat "$1"):@ID" in refuse:web-03) echo "@ID: unknown directive refuse"; exit 1 ;; esac
`

func (s *sites) settings(zk, port string) string {
	return fmt.Sprintf(`
log { format = "json" }
zookeeper {
  servers         = %s
  session_timeout = "15s"
}
config "site" { path = %q }
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = %s
  check "tcp" { address = "127.0.0.1:%s" }
}
template "out" {
  destination = "DIR/out"
  contents    = "{{ key \"site/word\" }}"
  check { command = ["sh", "DIR/check.sh", staged] }
  reload {
    command      = ["bash", "DIR/reload.sh"]
    min_interval = "10ms"
    timeout      = "9m"
    rolling {
      permits    = "100"
      pause      = "0s"
      post_check = ["bash", "DIR/postcheck.sh"]
    }
  }
}
`, quoted(strings.Split(zk, ",")), site, port, port)
}

// join starts one more agent, and does not wait.
func (s *sites) join(t *testing.T, id string) {
	t.Helper()
	zk := s.zk
	var a *agentProcess
	if s.reaper != nil {
		zk = s.reaper.line(s.t, id, func() { a.kill() })
	}
	a = newAgent(s.t, id, "")
	service := startService(s.t, id, a.path("out"), s.log, s.gate)
	port := service.addr[strings.LastIndexByte(service.addr, ':')+1:]
	head, err := os.ReadFile(a.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "agent.hcl", string(head)+s.settings(zk, port))
	for name, script := range map[string]string{"reload.sh": siteReload, "postcheck.sh": sitePostCheck, "check.sh": siteCheck} {
		a.write(t, name, strings.NewReplacer("@ID", id, "@PORT", port).Replace(script))
	}
	a.start(t)
	s.agents[id] = a
}

func hostID(n int) string { return fmt.Sprintf("web-%02d", n) }

// startSites starts n agents that use the word "one".
func startSites(t *testing.T, zk string, n int) *sites {
	t.Helper()
	return startSitesVia(t, zk, n, nil)
}

func startSitesVia(t *testing.T, zk string, n int, r *reaper) *sites {
	t.Helper()
	s := &sites{t: t, zk: zk, reaper: r, log: &eventLog{}, gate: newGate(), agents: map[string]*agentProcess{}}
	publish(t, zk, site, map[string]string{"word": "one"})
	for i := range n {
		s.join(t, hostID(i))
	}
	s.allUse(t, "one")
	s.subscribed(t, n)
	return s
}

// uses is the word that a host's file has.
func (s *sites) uses(id string) string {
	data, err := os.ReadFile(s.agents[id].path("out"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Error(err)
	}
	return string(data)
}

func (s *sites) allUse(t *testing.T, word string) {
	t.Helper()
	for id := range s.agents {
		eventually(t, id+" to use "+word, func() bool { return s.uses(id) == word })
	}
}

// subscribed waits until n agents say that they use what ready names.
func (s *sites) subscribed(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d subscribers", n), func() bool {
		out, _ := command(t, nil, "fleet", site, "--zk", s.zk)
		return subscribers(out) == n && !strings.Contains(out, "behind")
	})
}

var subscriberLine = regexp.MustCompile(`(?m)^\S+\s+web-\d+\s`)

// subscribers counts the rows of zkagent fleet CONFIG. The detail of a row may
// name hosts, too.
func subscribers(table string) int { return len(subscriberLine.FindAllString(table, -1)) }

// publish publishes a word with the given flags.
func (s *sites) publish(t *testing.T, word string, flags ...string) (string, int) {
	t.Helper()
	return command(t, nil, s.publishArgs(t, word, flags...)...)
}

func (s *sites) publishArgs(t *testing.T, word string, flags ...string) []string {
	t.Helper()
	dir := t.TempDir()
	writeKey(t, dir, "word", word)
	return append([]string{"config", "publish", dir, site, "--zk", s.zk, "-m", "to " + word}, flags...)
}

// slowly are the limits of a rollout on a machine that is slow and busy.
func slowly(flags ...string) []string {
	return append([]string{"--rollout", "--bake", "0s", "--vote-timeout", "80s", "--grace", "10m"}, flags...)
}

// rollOut publishes a word by a rollout without waiting between its phases, and
// returns what was printed, the exit code, and the rollout's name.
func (s *sites) rollOut(t *testing.T, word string, flags ...string) (string, int, string) {
	t.Helper()
	out, code := s.publish(t, word, slowly(flags...)...)
	name := regexp.MustCompile(`r-\d{10}`).FindString(out)
	if name == "" {
		t.Fatalf("exit %d, no rollout:\n%s", code, out)
	}
	return out, code, name
}

// rollBack brings the word back that was in use before, by one command.
func (s *sites) rollBack(t *testing.T, word string) {
	t.Helper()
	began := time.Now()
	if out, code := command(t, nil, "rollout", "undo", site, "--zk", s.zk, "--vote-timeout", "80s"); code != 0 {
		t.Fatalf("rollback: exit %d:\n%s", code, out)
	}
	t.Logf("the rollback of %d hosts took %s", len(s.agents), time.Since(began).Round(time.Millisecond))
	s.allUse(t, word)
}

// idle waits until no host is in the middle of the rollout, which is the newest.
func (s *sites) idle(t *testing.T, rollout string) {
	t.Helper()
	eventually(t, "no host to be in the middle of "+rollout, func() bool {
		out, code := command(t, nil, "rollout", "status", site, "--zk", s.zk)
		return code == 0 && strings.Contains(out, rollout) && !strings.Contains(out, " started")
	})
}

// present waits until n agents subscribe, whatever they use.
func (s *sites) present(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d subscribers", n), func() bool {
		out, _ := command(t, nil, "fleet", site, "--zk", s.zk)
		return subscribers(out) == n
	})
}

// hosts are the ids of all agents, sorted.
func (s *sites) hosts() []string { return slices.Sorted(maps.Keys(s.agents)) }

func TestRollout_Fleet(t *testing.T) { //nolint:tparallel // Its subtests build on each other.
	testhelp.OnlyAll(t, "twenty agents")
	t.Parallel()
	s := startSites(t, zookeeper(t), 20)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *sites)
	}{
		{"one host refuses and no host changes", oneRefuses},
		{"a good version changes four at a time, without its publisher", goodVersion},
		{"a failure in the middle halts, a rollback brings all back", failureInTheMiddle},
		{"a version that kills its agents stops at two", killer},
		{"an agent killed while it activates goes on, a late joiner waits for its turn", killedAtActivation},
		{"an emergency goes past an open rollout", emergency},
		{"of two publishers one wins", twoPublishers},
	} {
		began := time.Now()
		if !t.Run(step.name, func(t *testing.T) { step.run(t, s) }) {
			return // what follows builds on it
		}
		t.Logf("%s: %s", step.name, time.Since(began).Round(time.Millisecond))
	}
}

func oneRefuses(t *testing.T, s *sites) {
	out, code, _ := s.rollOut(t, "refuse", "--parallel", "100%")
	if code != 1 || !strings.Contains(out, "web-03: unknown directive refuse") {
		t.Errorf("exit %d, want 1 and the host's own words:\n%s", code, out)
	}
	if events := s.log.of("refuse"); len(events) > 0 {
		t.Errorf("hosts have changed: %v", events)
	}
	s.allUse(t, "one")
}

// goodVersion kills the publisher in the middle: the agents go on.
func goodVersion(t *testing.T, s *sites) {
	publisher := exec.Command(binary, s.publishArgs(t, "two", slowly("--parallel", "4", "--canary", "1")...)...)
	if err := publisher.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first host to change", func() bool { return len(s.log.of("two")) > 0 })
	_ = publisher.Process.Kill()
	_ = publisher.Wait()
	out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk)
	if code != 0 {
		t.Fatalf("watch: exit %d:\n%s", code, out)
	}
	s.allUse(t, "two")
	const second = "r-0000000001"
	s.atMost(t, second, "two", 4)
	if len(s.turns(second)) == 0 {
		t.Error("no agent has logged a turn with its zxid")
	}
}

func failureInTheMiddle(t *testing.T, s *sites) {
	out, code, name := s.rollOut(t, "break", "--parallel", "2", "--canary", "web-00")
	if code != 1 || !strings.Contains(out, "the service is broken on web-") {
		t.Errorf("exit %d, want 1 and the host's own words:\n%s", code, out)
	}
	s.idle(t, name)
	s.atMost(t, name, "break", 2)
	touched := s.log.hosts("break")
	if touched[0] != "web-00" {
		t.Errorf("%s was first, want the canary web-00", touched[0])
	}
	var rest []string
	for _, id := range s.hosts() {
		want := "break"
		if !slices.Contains(touched, id) {
			rest = append(rest, id)
		}
		if oddHost(id) || !slices.Contains(touched, id) {
			want = "two"
		}
		eventually(t, id+" to use "+want, func() bool { return s.uses(id) == want })
	}
	if len(rest) == 0 {
		t.Fatal("no host was left untouched")
	}
	// A host that is booted anew during the halt, and one that is new.
	s.reboot(t, rest[0])
	s.join(t, "web-20")
	for _, id := range []string{rest[0], "web-20"} {
		eventually(t, id+" to use two", func() bool { return s.uses(id) == "two" })
	}
	s.present(t, 21)
	s.rollBack(t, "two")
}

// reboot ends an agent and starts it on a host that has been booted meanwhile.
func (s *sites) reboot(t *testing.T, id string) {
	t.Helper()
	a := s.agents[id]
	a.powerOff(t, a.path("out"))
	a.start(t)
}

// killer is a version that kills every agent that swaps to it, and the agents
// are started again, as a service manager does.
func killer(t *testing.T, s *sites) {
	stop := s.keepAlive(t)
	defer stop()
	out, code, name := s.rollOut(t, "kill", "--parallel", "2")
	if code != 1 || !strings.Contains(out, "in the middle of it") {
		t.Errorf("exit %d, want 1 and what happened:\n%s", code, out)
	}
	for _, id := range s.hosts() {
		eventually(t, id+" to use two", func() bool { return s.uses(id) == "two" })
	}
	if touched := s.log.hosts("kill"); len(touched) > 2 || len(touched) == 0 {
		t.Errorf("%v were killed, want at most two", touched)
	}
	s.idle(t, name)
	s.atMost(t, name, "kill", 2)
	s.present(t, len(s.agents))
	stop()
	s.rollBack(t, "two")
}

// keepAlive starts agents again that have ended, until the function that it
// returns is called.
func (s *sites) keepAlive(t *testing.T) func() {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for _, a := range s.agents {
				select {
				case <-a.exited:
					a.start(t)
				default:
				}
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-done
	})
}

// killedAtActivation has one more host join while the canary has its turn: it
// uses the version before, until its own turn comes.
func killedAtActivation(t *testing.T, s *sites) {
	out, code, _ := s.rollOut(t, "slow", "--parallel", "100%", "--canary", slowHost, "--detach")
	if code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	eventually(t, slowHost+" to reload", func() bool { return len(s.log.of("slow")) > 0 })
	s.join(t, "web-21")
	eventually(t, "the late joiner to use two", func() bool { return s.uses("web-21") == "two" })
	s.present(t, 22)
	s.agents[slowHost].kill()
	s.gate.open()
	s.agents[slowHost].start(t)
	if out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk); code != 0 {
		t.Fatalf("watch: exit %d:\n%s", code, out)
	}
	s.allUse(t, "slow")
	if first := s.log.of("slow")[0]; first.host != slowHost {
		t.Errorf("%s was first, want the canary %s", first.host, slowHost)
	}
}

func emergency(t *testing.T, s *sites) {
	if out, code, _ := s.rollOut(t, "three", "--canary", "1", "--bake", "1h", "--detach"); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	eventually(t, "the canary to be done", func() bool {
		events := s.log.of("three")
		return len(events) > 0 && events[len(events)-1].what == "end"
	})
	if out, code := s.publish(t, "four"); code != 75 || !strings.Contains(out, "--emergency") {
		t.Errorf("a publish past an open rollout: exit %d, want 75 and a hint:\n%s", code, out)
	}
	if out, code := s.publish(t, "four", "--emergency"); code != 2 || !strings.Contains(out, "--yes") {
		t.Errorf("an unconfirmed emergency: exit %d, want 2 and a hint:\n%s", code, out)
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
		args := s.publishArgs(t, fmt.Sprintf("five-%d", i), slowly("--parallel", "100%")...)
		wg.Go(func() { _, codes[i] = command(t, nil, args...) })
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
		word := s.uses("web-00")
		for id := range s.agents {
			if s.uses(id) != word || !strings.HasPrefix(word, "five-") {
				return false
			}
		}
		return true
	})
}
