package e2e

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
)

// watcher is a client of another language that watches members and candidates.
type watcher struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	out    *syncBuffer
	exited chan struct{}
}

// watch starts a watcher of the children of directories and waits until it
// has set its watches.
func watch(t *testing.T, hosts string, directories ...string) *watcher {
	t.Helper()
	w := &watcher{out: &syncBuffer{}, exited: make(chan struct{})}
	w.cmd = exec.Command("/usr/bin/python3", append([]string{"testdata/watcher.py", hosts}, directories...)...)
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.stdin = stdin
	if err := w.cmd.Start(); err != nil {
		t.Fatalf("start the watcher: %v; python3 and python3-kazoo are needed: run scripts/setup-tests", err)
	}
	go func() {
		_ = w.cmd.Wait()
		close(w.exited)
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		<-w.exited
	})
	eventually(t, "the watcher to be ready", func() bool {
		select {
		case <-w.exited:
			t.Fatalf("the watcher ended (is python3-kazoo installed? run scripts/setup-tests):\n%s", w.out)
		default:
		}
		return strings.Contains(w.out.String(), "ready\n")
	})
	return w
}

// end ends the watcher and returns the events it saw and the children it
// found at the end.
func (w *watcher) end(t *testing.T) (events, children []string) {
	t.Helper()
	_ = w.stdin.Close()
	eventually(t, "the watcher to end", func() bool {
		select {
		case <-w.exited:
			return true
		default:
			return false
		}
	})
	for line := range strings.Lines(w.out.String()) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "event "):
			events = append(events, line)
		case strings.HasPrefix(line, "child "):
			children = append(children, line)
		}
	}
	return events, children
}

// quiet ends the watcher, which must have seen nothing, and checks that there
// are as many children as the caller knows.
func (w *watcher) quiet(t *testing.T, children int) {
	t.Helper()
	events, found := w.end(t)
	if len(events) > 0 {
		t.Errorf("the watcher saw %d events:\n%s", len(events), strings.Join(events, "\n"))
	}
	if len(found) != children {
		t.Errorf("the watcher found %d children, want %d:\n%s", len(found), children, w.out)
	}
}

// status asks the agent; nil while it does not answer.
func (a *agentProcess) status(t *testing.T) *show.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := web.NewClient(a.path("sock")).Status(ctx)
	if err != nil {
		return nil
	}
	return s
}

// await asks the agent until its status is as wanted.
func (a *agentProcess) await(t *testing.T, what string, ok func(*show.Status) bool) *show.Status {
	t.Helper()
	var s *show.Status
	eventually(t, what, func() bool {
		s = a.status(t)
		return s != nil && ok(s)
	})
	return s
}

// settled waits until this very process of the agent runs on a session, has
// its member registered, and knows whether it leads.
func (a *agentProcess) settled(t *testing.T) *show.Status {
	t.Helper()
	pid := a.cmd.Process.Pid
	return a.await(t, "a connected agent with its member", func(s *show.Status) bool {
		registered := !slices.ContainsFunc(s.Services, func(x registry.ServiceStatus) bool { return !x.Registered })
		return s.Agent.PID == pid && s.ZooKeeper.State == "connected" && s.Agent.State == "running" && registered
	})
}

// zkChildren lists a znode.
func zkChildren(t *testing.T, zk, path string) []string {
	t.Helper()
	out, code := command(t, nil, "zk", "ls", path, "--zk", zk)
	if code != 0 {
		return nil
	}
	return strings.Fields(out)
}

// candidate is the settings of an agent with one member and one election.
func candidate(servers []string, timeout string) string {
	return fmt.Sprintf(`
zookeeper {
  servers         = %s
  session_timeout = %q
}
service "api" {
  group   = "/services/api"
  address = "127.0.0.1"
  port    = 8080
}
election "nightly" { path = "/elections/nightly" }
`, quoted(servers), timeout)
}
