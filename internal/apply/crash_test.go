package apply

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// crash is one apply in a process of its own, which is killed at its n-th
// system call that changes something.
type crash struct {
	Dir string
	N   int // 0: never
	// Swapped makes the bundle's check run while the files are in place.
	Swapped bool
}

const crashVar = "ZKAGENT_TEST_CRASH"

// crashMain applies when the test binary was started for it. It ends with 3
// when the apply has ended before the n-th call.
func crashMain() {
	text := os.Getenv(crashVar)
	if text == "" {
		return
	}
	var c crash
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	calls := 0
	a, b := c.engine(&files.FS{Before: func(string, string) error {
		if calls++; calls == c.N {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}})
	a.Recover([]Config{b.Config})
	if r := c.apply(a, b, "2"); r.Err != nil {
		panic(r.Err)
	}
	os.Exit(3)
}

// engine is an engine and a bundle: two files and one reload,
// which notes what it has read.
func (c crash) engine(fsys *files.FS) (*Engine, *Bundle) {
	path := func(name string) string { return filepath.Join(c.Dir, name) }
	cfg := Config{
		Name: "site", Reload: &ReloadConfig{Command: script("cat %s %s >> %s; echo >> %s", path("one"), path("two"), path("log"), path("log"))},
	}
	at := "staged"
	if c.Swapped {
		at = atSwapped
	}
	cfg.Check = &CheckConfig{At: at, Command: argv("true")}
	for _, name := range []string{"one", "two"} {
		cfg.Templates = append(cfg.Templates, FileConfig{
			Name: name, Contents: name + `={{ key "web/v" }};`, File: files.File{Backup: 1}, Destination: func(*template.Each) (string, error) { return path(name), nil },
		})
	}
	e := New(Options{AgentID: "a1", StateDir: path("state"), Run: proc.Run, FS: fsys})
	return e, Parse(cfg, []view.Source{{Kind: view.KindConfig, Name: "web"}})
}

// apply is what the loop does with the first view.
func (crash) apply(e *Engine, b *Bundle, v string) Result {
	job := Job{Bundle: b, First: true, View: view.View{}.With(view.TreeOf("web", "/config/web", map[string]string{"v": v}))}
	e.Join(&job)
	r := e.Run(context.Background(), job)
	e.Wait()
	return r
}

// run applies version 2 in a process that is killed, and reports whether it
// was.
func (c crash) run(t *testing.T) bool {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), crashVar+"="+string(text))
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState.ExitCode() == 3:
		return false
	case cmd.ProcessState.ExitCode() >= 0 || err == nil:
		t.Fatalf("call %d: %v\n%s", c.N, err, out)
	}
	return true
}

// TestApply_KilledBetweenAnyTwoCalls kills the agent before every system call
// of an apply. At its next start either the old or the new files are in place,
// the program has read what is there or will, and nothing else is left.
func TestApply_KilledBetweenAnyTwoCalls(t *testing.T) {
	t.Parallel()
	for name, swapped := range map[string]bool{"check staged": false, "check swapped": true} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				c := crash{Dir: t.TempDir(), N: n, Swapped: swapped}
				a, b := c.engine(nil)
				a.Recover([]Config{b.Config})
				if r := c.apply(a, b, "1"); r.Err != nil {
					t.Fatal(r.Err)
				}
				killed := c.run(t)
				c.restart(t)
				if !killed {
					if n < 15 {
						t.Errorf("only %d calls", n-1)
					}
					return
				}
			}
		})
	}
}

const (
	crashOld = "one=1;two=1;"
	crashNew = "one=2;two=2;"
)

// restart is the next process: first it puts right what it finds, then the
// same view arrives.
func (c crash) restart(t *testing.T) {
	t.Helper()
	a, b := c.engine(nil)
	a.Recover([]Config{b.Config})
	now := read(t, filepath.Join(c.Dir, "one")) + read(t, filepath.Join(c.Dir, "two"))
	if now != crashOld && now != crashNew {
		t.Errorf("call %d: after the restart: %q", c.N, now)
	}
	lines := strings.Split(strings.TrimSpace(read(t, filepath.Join(c.Dir, "log"))), "\n")
	last := lines[len(lines)-1]
	if now != last && !a.pending.has("site") {
		t.Errorf("call %d: the program has read %q, %q is in place and no reload is pending", c.N, last, now)
	}
	if r := c.apply(a, b, "2"); r.Err != nil {
		t.Fatalf("call %d: %v", c.N, r.Err)
	}
	lines = strings.Split(strings.TrimSpace(read(t, filepath.Join(c.Dir, "log"))), "\n")
	if got := lines[len(lines)-1]; got != crashNew {
		t.Errorf("call %d: the program has last read %q", c.N, got)
	}
	if a.pending.has("site") {
		t.Errorf("call %d: a reload is pending for ever", c.N)
	}
	c.clean(t)
}

// clean checks that no temporary file is left.
func (c crash) clean(t *testing.T) {
	t.Helper()
	for _, dir := range []string{c.Dir, filepath.Join(c.Dir, "state", "journal"), filepath.Join(c.Dir, "state", "staged")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || dir != c.Dir {
				t.Errorf("call %s: left: %s", strconv.Itoa(c.N), e.Name())
			}
		}
	}
}
