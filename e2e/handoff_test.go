package e2e

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// The session timeout of these tests outlasts a restart on any machine, so
// that nothing depends on how fast one is.
const longSession = "40s"

// stopping puts on_stop into the settings of an agent that does not run.
func (a *agentProcess) stopping(t *testing.T, onStop string) {
	t.Helper()
	data, err := os.ReadFile(a.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte("agent {\n"), fmt.Appendf(nil, "agent {\n  on_stop = %q\n", onStop), 1)
	if err := os.WriteFile(a.path("agent.hcl"), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Another candidate stands behind the agent that is restarted and killed. No
// event may reach the watcher: members stay, and no other host leads.
func TestHandoff_RestartsAndKillsAreNotSeen(t *testing.T) {
	t.Parallel()
	zk := zookeeper(t)
	settings := candidate([]string{zk}, longSession)
	a := newAgent(t, "a", settings)
	a.stopping(t, "hand_over")
	a.start(t)
	first := a.settled(t)
	a.leads(t)
	b := startAgent(t, "b", settings)
	b.settled(t)
	eventually(t, "both candidates", func() bool { return len(zkChildren(t, zk, "/elections/nightly")) == 2 })

	w := watch(t, zk, "/services/api", "/elections/nightly")
	restarts, kills := 8, 4
	if testhelp.All() {
		restarts, kills = 50, 20
	}
	again := func(what string, i int) {
		t.Helper()
		a.start(t)
		s := a.settled(t)
		if !s.ZooKeeper.Resumed || s.ZooKeeper.SessionID != first.ZooKeeper.SessionID {
			t.Fatalf("after %s %d: session %x, resumed %v; want %x", what, i+1, s.ZooKeeper.SessionID, s.ZooKeeper.Resumed, first.ZooKeeper.SessionID)
		}
		a.leads(t)
	}
	for i := range restarts {
		a.stop(t)
		again("restart", i)
	}
	for i := range kills {
		a.kill()
		again("kill", i)
	}
	w.quiet(t, 4)
}

// leads waits until the agent leads its election.
func (a *agentProcess) leads(t *testing.T) {
	t.Helper()
	a.await(t, "the agent to lead", func(s *show.Status) bool {
		return len(s.Elections) == 1 && s.Elections[0].Mine && s.Elections[0].Held
	})
}

// The server that has the session's connection ends with the agent: the next
// process resumes at another server.
func TestHandoff_ResumesAtAnotherServer(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble")
	t.Parallel()
	ensemble := zktest.StartEnsemble(t, 3)
	servers := ensemble.Addrs()
	a := startAgent(t, "a", candidate(servers, longSession))
	first := a.settled(t)
	a.leads(t)
	at := slices.Index(servers, first.ZooKeeper.Server)
	if at < 0 {
		t.Fatalf("connected to %q, which is not one of %v", first.ZooKeeper.Server, servers)
	}
	others := slices.Delete(slices.Clone(servers), at, at+1)
	w := watch(t, strings.Join(others, ","), "/services/api", "/elections/nightly")

	a.kill()
	ensemble.Servers[at].Kill(t)
	a.start(t)
	s := a.settled(t)
	if !s.ZooKeeper.Resumed || s.ZooKeeper.SessionID != first.ZooKeeper.SessionID || s.ZooKeeper.Server == first.ZooKeeper.Server {
		t.Errorf("got session %x at %s, resumed %v; want %x elsewhere than at %s",
			s.ZooKeeper.SessionID, s.ZooKeeper.Server, s.ZooKeeper.Resumed, first.ZooKeeper.SessionID, first.ZooKeeper.Server)
	}
	a.leads(t)
	events, children := w.end(t)
	// When the leader of the ensemble was killed, the watcher's own connection
	// may have gone too; that is no event on a znode.
	events = slices.DeleteFunc(events, func(e string) bool { return strings.HasPrefix(e, "event NONE") })
	if len(events) > 0 || len(children) != 2 {
		t.Errorf("the watcher saw:\n%s", w.out)
	}
}

// The settings may change while the agent is away: what the session owns and
// nobody wants any more goes, the rest stays as it is.
func TestHandoff_ReconcilesWithTheSettings(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	extra := `service "old" {
  group   = "/services/old"
  address = "127.0.0.1"
  port    = 8081
}
`
	a := startAgent(t, "a", candidate([]string{zk}, longSession)+extra)
	first := a.settled(t)
	a.leads(t)
	w := watch(t, zk, "/services/api", "/elections/nightly")
	a.kill()
	data, err := os.ReadFile(a.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "agent.hcl", strings.Replace(string(data), extra, "", 1))
	a.start(t)
	if s := a.settled(t); s.ZooKeeper.SessionID != first.ZooKeeper.SessionID {
		t.Errorf("got session %x, want %x", s.ZooKeeper.SessionID, first.ZooKeeper.SessionID)
	}
	eventually(t, "the unwanted member to go", func() bool { return len(zkChildren(t, zk, "/services/old")) == 0 })
	w.quiet(t, 2)
}

func TestHandoff_UpgradeKeepsProcessAndSession(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	a := startAgent(t, "a", candidate([]string{zk}, longSession))
	before := a.settled(t)
	a.leads(t)
	w := watch(t, zk, "/services/api", "/elections/nightly")
	for range 3 {
		if out, code := a.run(t, "upgrade"); code != 0 {
			t.Fatalf("upgrade: exit %d\n%s", code, out)
		}
		after := a.await(t, "the new program", func(s *show.Status) bool {
			return s.Agent.Started.After(before.Agent.Started) && s.Agent.State == "running" && s.ZooKeeper.State == "connected"
		})
		if after.Agent.PID != before.Agent.PID || after.ZooKeeper.SessionID != before.ZooKeeper.SessionID {
			t.Fatalf("got pid %d and session %x, want %d and %x", after.Agent.PID, after.ZooKeeper.SessionID, before.Agent.PID, before.ZooKeeper.SessionID)
		}
		before = after
		a.leads(t)
	}
	w.quiet(t, 2)
}

// A session file that cannot be used makes a fresh session, says why, and
// does not make the agent try for ever.
func TestHandoff_BadSessionFiles(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	other := ownZooKeeper(t).Addr()
	foreign := startAgent(t, "a", candidate([]string{other}, longSession))
	foreign.settled(t)
	foreign.kill()
	replace := func(from, to string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), from) {
				t.Fatalf("no %q in the session file", from)
			}
			rewrite(t, file, strings.Replace(string(data), from, to, 1))
		}
	}
	cases := []struct {
		name  string
		spoil func(t *testing.T, file string)
		says  string
	}{
		{"garbage", func(t *testing.T, file string) { rewrite(t, file, `{"version":1,`) }, "session file"},
		{"world-readable", func(t *testing.T, file string) {
			if err := os.Chmod(file, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "want 0600"},
		{"of another ensemble", func(t *testing.T, file string) {
			data, err := os.ReadFile(foreign.path("state/session"))
			if err != nil {
				t.Fatal(err)
			}
			rewrite(t, file, string(data))
		}, "another ensemble"},
		{"of another machine", replace(`"machine_id": "`, `"machine_id": "x`), "another machine"},
		{"wrong password", replace(`"password": "`, `"password": "AAAA`), "is gone"},
		{"older than the session", replace(`"session_id": "`, `"session_id": "1`), "is gone"},
		// The last one: what stands there now is not replaced.
		{"unreadable", func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "cannot save the session for the next process"},
	}
	a := startAgent(t, "a", candidate([]string{zk}, longSession))
	former := a.settled(t).ZooKeeper.SessionID
	for _, c := range cases {
		a.kill()
		c.spoil(t, a.path("state/session"))
		a.start(t)
		s := a.settled(t)
		if s.ZooKeeper.Resumed || s.ZooKeeper.SessionID == former {
			t.Errorf("%s: session %x was taken over", c.name, s.ZooKeeper.SessionID)
		}
		if !strings.Contains(a.log.String(), c.says) {
			t.Errorf("%s: the log does not say %q", c.name, c.says)
		}
		if s.ZooKeeper.Expirations > 1 {
			t.Errorf("%s: %d sessions expired", c.name, s.ZooKeeper.Expirations)
		}
		former = s.ZooKeeper.SessionID
	}
}

func rewrite(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHandoff_TwoAgentsOnOneStateDirectory(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	a := startAgent(t, "a", candidate([]string{zk}, longSession))
	first := a.settled(t)
	w := watch(t, zk, "/services/api", "/elections/nightly")
	data, err := os.ReadFile(a.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "second.hcl", strings.Replace(string(data), a.path("sock"), a.path("sock2"), 1))
	out, code := command(t, a.env, "run", "--config", a.path("second.hcl"))
	if code == 0 || !strings.Contains(out, "in use by another process") {
		t.Errorf("the second agent ended with %d:\n%s", code, out)
	}
	if s := a.settled(t); s.ZooKeeper.SessionID != first.ZooKeeper.SessionID || s.ZooKeeper.Reconnects != 0 {
		t.Errorf("the first agent was disturbed: %+v", s.ZooKeeper)
	}
	w.quiet(t, 2)
}

// TestStop_Modes: what a stop means for members and candidates.
func TestStop_Modes(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	stopped := func(t *testing.T, a *agentProcess) {
		t.Helper()
		eventually(t, "the agent to end", func() bool {
			select {
			case <-a.exited:
				return true
			default:
				return false
			}
		})
		if code := a.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the agent ended with %d", code)
		}
	}
	for _, c := range []struct {
		name, onStop, job string
		stop              func(t *testing.T, a *agentProcess)
		stays             bool
	}{
		{"leave", "leave", "", term, false},
		{"hand_over", "hand_over", "", term, true},
		{"auto without systemd", "auto", "", term, false},
		{"auto restarted by systemd", "auto", "restart", term, true},
		{"auto stopped by systemd", "auto", "stop", term, false},
		{"interrupt leaves", "hand_over", "", func(t *testing.T, a *agentProcess) { a.signal(t, syscall.SIGINT) }, false},
		{"zkagent leave", "hand_over", "", func(t *testing.T, a *agentProcess) {
			if out, code := a.run(t, "leave"); code != 0 {
				t.Errorf("leave: exit %d\n%s", code, out)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := "/" + strings.ReplaceAll(c.name, " ", "-")
			var env []string
			if c.job != "" {
				env = append(env, "INVOCATION_ID=1", "DBUS_SYSTEM_BUS_ADDRESS="+systemBus(t, c.job))
			}
			settings := strings.ReplaceAll(candidate([]string{zk}, longSession), `"/`, `"`+root+"/")
			a := newAgent(t, "a", settings, env...)
			a.stopping(t, c.onStop)
			a.start(t)
			a.settled(t)
			a.leads(t)
			c.stop(t, a)
			stopped(t, a)
			want := 0
			if c.stays {
				want = 1
			}
			for _, path := range []string{"/services/api", "/elections/nightly"} {
				if got := zkChildren(t, zk, root+path); len(got) != want {
					t.Errorf("%s: got %v, want %d", path, got, want)
				}
			}
		})
	}
}

func term(t *testing.T, a *agentProcess) {
	t.Helper()
	a.signal(t, syscall.SIGTERM)
}
