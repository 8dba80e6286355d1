package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// agentSettings is a host whose check and reload wait, each for a file, so that a
// test sees every phase for as long as it likes.
const agentSettings = `
agent {
  id        = "%[4]s"
  state_dir = "%[1]s/state"
}
admin { socket = "%[2]s" }
http { listen = "%[5]s" }
zookeeper {
  servers         = ["%[3]s"]
  session_timeout = "40s"
}
config "web" { path = "/config/web" }
template "nginx" {
  destination = "%[1]s/nginx.conf"
  contents    = "{{ key \"web/word\" }}"
  check { 
    command = ["%[1]s/nginx", "may-check", staged]
    timeout = "5m"
  }
  reload {
    command      = ["%[1]s/nginx", "may-reload", destination]
    timeout      = "5m"
    min_interval = "10ms"
    retry        = 0
  }
}
`

// waitScript waits for the file that its first argument names, beside itself, and
// fails when the second one holds the word.
const waitScript = `#!/bin/sh
until [ -e "$(dirname "$0")/$1" ]; do sleep 0.05; done
case $1:$(cat "$2") in may-check:refused|may-reload:broken) echo "no $(cat "$2")"; exit 3;; esac
`

// host runs one agent, until the test ends.
type host struct {
	t    *testing.T
	dir  string
	http string // address of the page
	env  []string
	s    *session.Session
}

// newHosts returns hosts that use the first version of /config/web.
func newHosts(t *testing.T, ids ...string) []*host {
	t.Helper()
	addr, s := inMemory(t)
	keys := map[string][]byte{"word": []byte("one")}
	if _, err := fleet.Publish(t.Context(), s, fleet.PublishConfig{Path: "/config/web", Keys: keys}); err != nil {
		t.Fatal(err)
	}
	var hosts []*host
	for _, id := range ids {
		hosts = append(hosts, newHost(t, addr, s, id))
	}
	hosts[0].await("the first files", func() bool {
		subs, err := fleet.Subscribers(t.Context(), s, "/config/web")
		return err == nil && len(subs) == len(ids) && !slices.ContainsFunc(subs, func(u fleet.Subscription) bool { return u.Version != 1 || u.State != fleet.StateOK })
	})
	return hosts
}

func newHost(t *testing.T, addr string, s *session.Session, id string) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), http: freeAddress(t), env: []string{"ZKAGENT_ZK=" + addr, "NO_COLOR=1"}, s: s}
	sockets, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	h.write("nginx", waitScript)
	h.write("agent.hcl", fmt.Sprintf(agentSettings, h.dir, filepath.Join(sockets, "sock"), addr, id, h.http))
	h.allow("may-check", true)
	h.allow("may-reload", true)
	h.run()
	return h
}

// run starts the agent.
func (h *host) run() {
	h.t.Helper()
	log, err := os.Create(filepath.Join(h.dir, "log"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command("zkagent", "run", "--config", filepath.Join(h.dir, "agent.hcl"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		h.allow("may-check", true)
		h.allow("may-reload", true)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		_ = log.Close()
		if data, err := os.ReadFile(log.Name()); err == nil && h.t.Failed() {
			h.t.Logf("the agent:\n%s", data)
		}
	})
}

// write writes a program or file of the host.
func (h *host) write(name, data string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(data), 0o700); err != nil {
		h.t.Fatal(err)
	}
}

// allow lets checks or reloads go on, or not.
func (h *host) allow(name string, on bool) {
	if on {
		h.write(name, "")
		return
	}
	if err := os.Remove(filepath.Join(h.dir, name)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) await(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			h.t.Fatalf("waited in vain for %s", what)
		}
		<-tick.C
	}
}

// site is a directory with the word.
func (h *host) site(word string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "site-"+word)
	if err := os.Mkdir(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	h.write(filepath.Join("site-"+word, "word"), word)
	return dir
}

// on is zkagent on a terminal of 60 columns.
func (h *host) on(args ...string) *terminal {
	h.t.Helper()
	return onTerminal(h.t, 60, h.env, append(args, "--session-timeout", "40s")...)
}

const (
	emptyBar = "░░░░░░░░░░░░░░░░░░░░░░░░"
	halfBar  = "████████████░░░░░░░░░░░░"
	fullBar  = "████████████████████████"
)

// A bar for each phase, drawn in place; a command that is interrupted leaves the
// rollout to the agents, and another one shows the rest of it.
func TestRollout_Terminal(t *testing.T) {
	t.Parallel()
	h := newHosts(t, "node-1")[0]
	h.allow("may-check", false)
	h.allow("may-reload", false)
	x := h.on("config", "publish", h.site("two"), "/config/web", "--rollout", "--bake", "0s", "--vote-timeout", "10m", "--grace", "10m", "-m", "second")
	x.await(" vote     " + emptyBar + "  0/1")
	h.allow("may-check", true)
	x.await(" vote     " + fullBar + "  1/1\n")
	x.await(" roll     " + emptyBar + "  0/1  1 at a time")
	x.send("\x03")
	out := x.end(130)
	if !strings.Contains(out, "r-0000000000 continues without this command: \"zkagent rollout watch /config/web\" attaches again\n") {
		t.Errorf("got\n%q", out)
	}
	x = h.on("rollout", "watch", "/config/web")
	x.await(" roll     " + emptyBar + "  0/1  1 at a time")
	h.allow("may-reload", true)
	out = x.end(0)
	for _, want := range []string{"\r\x1b[K roll     " + fullBar + "  1/1  1 at a time\n", "/config/web: phase done\n", "/config/web: v2 is in use on 1 host\n"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("want once %q in\n%q", want, out)
		}
	}
	if strings.Contains(out, "vote node-1") || strings.Contains(out, "host node-1") {
		t.Errorf("what goes well has a line:\n%q", out)
	}
}

// What fails has a line, and no line is longer than the terminal is wide.
func TestRollout_TerminalFailures(t *testing.T) {
	testhelp.OnlyAll(t, "TestRollout_Terminal has the same hosts")
	t.Parallel()
	h := newHosts(t, "node-1")[0]
	out := h.on("config", "publish", h.site("refused"), "/config/web", "--rollout", "--vote-timeout", "10m").end(1)
	shows(t, out, "/config/web: vote node-1: abort: nginx: check", "no refused\n", "/config/web: decision abort: node-1: ", "/config/web: phase aborted\n", "error: rollout aborted: ")
	out = h.on("config", "publish", h.site("broken"), "/config/web", "--rollout", "--bake", "0s", "--vote-timeout", "10m", "--grace", "10m").end(1)
	shows(t, out, "/config/web: host node-1: failed: nginx: reload", "/config/web: phase halted\n", "error: rollout halted: node-1: ", "hint: \"zkagent rollout retry /config/web\" tries again")
	for _, line := range strings.FieldsFunc(out, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if bar := strings.TrimPrefix(line, "\x1b[K"); strings.ContainsAny(bar, "█░") && len([]rune(bar)) >= 60 {
			t.Errorf("a bar of %d columns: %q", len([]rune(bar)), bar)
		}
	}
	out = h.on("rollout", "undo", "/config/web", "--vote-timeout", "10m", "--grace", "10m").end(0)
	if want := "/config/web: v4 is in use on 1 host\n"; !strings.Contains(out, want) {
		t.Errorf("no %q in\n%q", want, out)
	}
}

// TestFleet_KnownAcceptedInUse: a host whose check has refused a version knows it. It
// has accepted the version before, and its file uses that one. When a version comes
// without a vote, the host accepts it, and its file keeps the one before.
func TestFleet_KnownAcceptedInUse(t *testing.T) {
	testhelp.OnlyAll(t, "TestViews_KnownAcceptedInUse of agent proves the rule")
	t.Parallel()
	h := newHosts(t, "node-1")[0]
	says := func(want string) {
		t.Helper()
		var out string
		spaces := regexp.MustCompile(` {2,}`)
		h.await(want, func() bool {
			var shown, talk bytes.Buffer
			run([]string{"fleet", "/config/web", "--config", filepath.Join(h.dir, "agent.hcl")}, strings.NewReader(""), &shown, &talk)
			out = shown.String()
			return strings.Contains(spaces.ReplaceAllString(out, "|"), want)
		})
		t.Log(out)
	}
	says("/config/web|node-1|v1|ok|ok|-|v1: nginx\n")
	h.on("config", "publish", h.site("refused"), "/config/web", "--rollout", "--vote-timeout", "10m").end(1)
	says("/config/web|node-1|v1|ok|ok|knows v2|v1: nginx\n")
	shows(t, h.on("fleet", "/config/web", "-o", "json").end(0), `"version": 1`, `"known": 2`, `"nginx": "ok@1"`)
	shows(t, h.on("status", "--config", filepath.Join(h.dir, "agent.hcl")).end(0), "version 1 (knows v2), ")
	h.on("config", "publish", h.site("broken"), "/config/web").end(0)
	says("/config/web|node-1|v3|ok|failing|-|v1: nginx (failed)\n")
}
