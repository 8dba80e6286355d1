package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// limit is how long a test waits for something that must happen. Machines
// that run these tests may be slow and busy; nothing depends on how fast.
const limit = 2 * time.Minute

// agentProcess is one zkagent run as a process with its own directory.
type agentProcess struct {
	dir string // settings, state, socket, log
	env []string
	via []string // a command that executes the program, and its arguments; nil: none
	// program is the zkagent to run; empty: the one under test.
	program string
	cmd     *exec.Cmd
	log     *syncBuffer

	exited chan struct{} // closed when the process has ended
}

// newAgent writes the settings and does not start the agent. DIR in the
// settings becomes the agent's directory.
func newAgent(t *testing.T, id, settings string, env ...string) *agentProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{dir: dir, log: &syncBuffer{}}
	a.env = append(os.Environ(), append([]string{"DIR=" + dir, "NO_COLOR=1"}, env...)...)
	head := fmt.Sprintf("agent {\n  id = %q\n  state_dir = \"%s/state\"\n}\nadmin { socket = \"%s/sock\" }\n", id, dir, dir)
	a.write(t, "agent.hcl", head+settings)
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("log of agent %s:\n%s", id, tail(a.log.String(), 6000))
		}
		_ = os.RemoveAll(dir)
	})
	return a
}

// startAgent writes settings and starts the agent.
func startAgent(t *testing.T, id, settings string, env ...string) *agentProcess {
	t.Helper()
	a := newAgent(t, id, settings, env...)
	a.start(t)
	return a
}

func (a *agentProcess) path(name string) string { return filepath.Join(a.dir, name) }

func (a *agentProcess) write(t *testing.T, name, content string) {
	t.Helper()
	path := a.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(name) == ".hcl" {
		content = chrooted(content)
	}
	// Written beside and renamed, as editors do.
	if err := os.WriteFile(path+".new", []byte(strings.ReplaceAll(content, "DIR/", a.dir+"/")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (a *agentProcess) start(t *testing.T) {
	t.Helper()
	args := append(slices.Clone(a.via), cmp.Or(a.program, binary), "run", "--config", a.path("agent.hcl"))
	a.cmd = exec.Command(args[0], args[1:]...)
	a.cmd.Env, a.cmd.Stdout, a.cmd.Stderr = a.env, a.log, a.log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.exited = make(chan struct{})
	go func() {
		_ = a.cmd.Wait()
		close(a.exited)
	}()
}

func (a *agentProcess) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal %v: %v", sig, err)
	}
}

// kill ends the process with SIGKILL and waits; a process that does not run
// is fine.
func (a *agentProcess) kill() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.exited
}

// stop ends the agent in good order.
func (a *agentProcess) stop(t *testing.T) {
	t.Helper()
	a.signal(t, syscall.SIGTERM)
	eventually(t, "the agent to stop", func() bool {
		select {
		case <-a.exited:
			return true
		default:
			return false
		}
	})
}

// run runs a command of the program with this agent's settings.
func (a *agentProcess) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return command(t, a.env, append(args, "--config", a.path("agent.hcl"))...)
}

// command runs the program and returns what it printed and its exit code.
func command(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	return commandOf(t, binary, env, args...)
}

// commandOf runs one of several versions of the program.
func commandOf(t *testing.T, program string, env []string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), append([]string{"NO_COLOR=1"}, env...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("zkagent %s: %v", strings.Join(args, " "), err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// must is command that has to succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, code := command(t, nil, args...)
	if code != 0 {
		t.Fatalf("zkagent %s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

// fileHolds waits until the file's content satisfies ok, and returns it.
func fileHolds(t *testing.T, path, what string, ok func(string) bool) string {
	t.Helper()
	var content string
	eventually(t, what+" in "+path, func() bool {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		content = string(data)
		return err == nil && ok(content)
	})
	return content
}

func fileContains(t *testing.T, path string, parts ...string) string {
	t.Helper()
	return fileHolds(t, path, strings.Join(parts, ", "), func(s string) bool {
		for _, p := range parts {
			if !strings.Contains(s, p) {
				return false
			}
		}
		return true
	})
}

// statusHolds waits until `zkagent status -o json` contains the words.
func (a *agentProcess) statusHolds(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, "status with "+strings.Join(words, ", "), func() bool {
		out, _ := a.run(t, "status", "-o", "json")
		for _, w := range words {
			if !strings.Contains(out, w) {
				return false
			}
		}
		return true
	})
}

// syncBuffer is a bytes.Buffer for a process and a test at once.
type syncBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
