package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// childConfig is the configuration of an agent in a process of its own.
type childConfig struct {
	ID, Addr, Root, Dir string
	Timeout             time.Duration
	HookSeconds         int    // how long the leader's hook runs
	Reload              string // shell command of the reload; empty: no bundle
}

// childMain runs an agent when the test binary was started as one.
func childMain() {
	text := os.Getenv("ZKAGENT_TEST_CHILD")
	if text == "" {
		return
	}
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	a, err := New(c.config())
	if err != nil {
		panic(err)
	}
	err = a.RunSignals(context.Background())
	if errors.Is(err, ErrUpgrade) {
		err = Exec()
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// config is an agent that follows one tree and stands in one election, whose
// hook writes its fence and its times to a log that all agents share.
func (c childConfig) config() Config {
	state := filepath.Join(c.Dir, "state-"+c.ID)
	log, err := os.OpenFile(filepath.Join(c.Dir, c.ID+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	work := fmt.Sprintf(`echo start $ZKAGENT_FENCE $(date +%%s%%N) %s >> %s/hooks
i=0; while [ $i -lt %d ]; do i=$((i+1)); sleep 0.1; echo run $ZKAGENT_FENCE $(date +%%s%%N) %s >> %s/hooks; done
echo end $ZKAGENT_FENCE $(date +%%s%%N) %s >> %s/hooks`, c.ID, c.Dir, c.HookSeconds*10, c.ID, c.Dir, c.ID, c.Dir)
	cfg := Config{
		ID: c.ID, Host: c.ID, StateDir: state, OnStop: onStopLeave,
		ZooKeeper: session.Config{Servers: []string{c.Addr}, Chroot: c.Root, Timeout: c.Timeout},
		Admin:     web.AdminConfig{Socket: filepath.Join(c.Dir, c.ID+".sock")},
		Configs:   []config.Config{{Name: "web", Path: "/config/web"}},
		Logger:    slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if c.HookSeconds > 0 {
		cfg.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
		cfg.Hooks = []hook.Config{{
			Name: "work", Leader: "e", OnChange: []view.Source{{Kind: view.KindConfig, Name: "web"}},
			Command: script("%s", work), Timeout: time.Hour,
		}}
	}
	if c.Reload != "" {
		dest := filepath.Join(c.Dir, c.ID+".conf")
		cfg.Bundles = []apply.Config{{
			Name: "web", Reload: &apply.ReloadConfig{Command: script("%s", c.Reload), Timeout: time.Hour},
			Templates: []apply.FileConfig{{
				Name: "web", Contents: `{{ key "web/port" }}`, Destination: func(*template.Each) (string, error) { return dest, nil },
			}},
		}}
	}
	return cfg
}

// child is an agent in a process of its own.
type child struct {
	t   *testing.T
	cfg childConfig
	cmd *exec.Cmd
}

func (b *bed) child(c childConfig) *child {
	b.t.Helper()
	c.Addr, c.Root, c.Dir = b.addr, b.root, b.dir
	if c.Timeout == 0 {
		c.Timeout = 6 * time.Second
	}
	return startChild(b.t, c)
}

func startChild(t *testing.T, c childConfig) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	x := &child{t: t, cfg: c, cmd: exec.Command(exe)}
	x.cmd.Env = append(os.Environ(), "ZKAGENT_TEST_CHILD="+string(text))
	x.cmd.Stderr = os.Stderr
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.kill()
		if t.Failed() {
			data, _ := os.ReadFile(filepath.Join(c.Dir, c.ID+".log"))
			t.Logf("agent %s:\n%s", c.ID, data)
		}
	})
	return x
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) client() *web.Client {
	return web.NewClient(filepath.Join(c.cfg.Dir, c.cfg.ID+".sock"))
}

// hookLine is one line of the log that the hooks of all agents write.
type hookLine struct {
	what  string
	fence int64
	at    int64 // nanoseconds
	agent string
}

func (b *bed) hookLines() []hookLine {
	b.t.Helper()
	var lines []hookLine
	for line := range strings.Lines(read(b.t, b.path("hooks"))) {
		var l hookLine
		if n, _ := fmt.Sscan(line, &l.what, &l.fence, &l.at, &l.agent); n == 4 && strings.HasSuffix(line, "\n") {
			lines = append(lines, l)
		}
	}
	return lines
}

// noOverlap checks that no hook acted after one with a higher fence began.
func (b *bed) noOverlap() {
	b.t.Helper()
	first := map[int64]int64{}
	lines := b.hookLines()
	for _, l := range lines {
		if at, ok := first[l.fence]; !ok || l.at < at {
			first[l.fence] = l.at
		}
	}
	for _, l := range lines {
		for fence, at := range first {
			if fence > l.fence && l.at > at {
				b.t.Errorf("agent %s acts with fence %d at %d, after fence %d began at %d", l.agent, l.fence, l.at, fence, at)
			}
		}
	}
}

// leads waits until a hook runs in a term that is not one of the given, and
// returns its agent and fence.
func (b *bed) leads(not ...int64) (string, int64) {
	b.t.Helper()
	agent, fence := "", int64(0)
	eventually(b.t, "a leader's hook", func() bool {
		for _, l := range b.hookLines() {
			other := true
			for _, n := range not {
				other = other && l.fence != n
			}
			if other {
				agent, fence = l.agent, l.fence
				return true
			}
		}
		return false
	})
	return agent, fence
}

func TestLeader_KilledOrStoppedNeverTwo(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.tree(map[string]string{"port": "80"})
			agents := map[string]*child{}
			for _, id := range []string{"a", "b"} {
				agents[id] = b.child(childConfig{ID: id, HookSeconds: 600})
			}
			leader, fence := b.leads()
			agents[leader].signal(sig)
			// The first leader started this change and nobody knows its end,
			// so that the next one reports it and runs the one after it.
			b.set("/config/web/port", "81")
			other, next := b.leads(fence)
			if other == leader || next <= fence {
				t.Errorf("agent %s with fence %d follows agent %s with fence %d", other, next, leader, fence)
			}
			b.noOverlap()
		})
	}
}

func TestReload_PendingAfterKill(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	a := b.child(childConfig{ID: "a", Reload: fmt.Sprintf("echo begun >> %s; while kill -0 $PPID; do sleep 0.1; done", b.path("log"))})
	fileIs(t, b.path("log"), "begun\n")
	a.kill()
	fileIs(t, b.path("a.conf"), "80")
	b.child(childConfig{ID: "a", Reload: "echo good >> " + b.path("log")})
	fileIs(t, b.path("log"), "begun\ngood\n")
	fileIs(t, b.path("a.conf"), "80")
}

// A reload that kills the agent does so three times, as often as a rollout lets it.
// Then the old file is back, the program reads it, the agent says why and goes on.
func TestReload_ThatKillsTheAgent(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	cfg := childConfig{ID: "a", Reload: fmt.Sprintf(`cat %[1]s >> %[2]s; echo >> %[2]s; if grep -q 81 %[1]s; then kill -9 $PPID; fi`, b.path("a.conf"), b.path("log"))}
	a := b.child(cfg)
	fileIs(t, b.path("log"), "80\n")
	b.set("/config/web/port", "81")
	for range maxDeaths {
		if err := a.cmd.Wait(); err == nil {
			t.Fatal("the agent ended well")
		}
		a = b.child(cfg)
	}
	refused := func(s *show.Status) bool {
		return s.Agent.State == "running" && len(s.Templates) == 1 && strings.Contains(s.Templates[0].Error, "the agent ended 3 times")
	}
	await(t, a.client(), "an agent that refuses the content", refused)
	fileIs(t, b.path("a.conf"), "80")
	fileIs(t, b.path("log"), "80\n81\n81\n81\n80\n")

	// A crash for another reason does not try it again, and other content is used.
	a.kill()
	a = b.child(cfg)
	await(t, a.client(), "the next agent to refuse it", refused)
	b.set("/config/web/port", "82")
	fileIs(t, b.path("log"), "80\n81\n81\n81\n80\n82\n")
	fileIs(t, b.path("a.conf"), "82")

	// Content that was published again after other content is tried again.
	b.set("/config/web/port", "81")
	if err := a.cmd.Wait(); err == nil {
		t.Fatal("the agent ended well")
	}
	fileIs(t, b.path("log"), "80\n81\n81\n81\n80\n82\n81\n")
}

// maxDeaths is how many agents one content may kill.
const maxDeaths = 3

func TestUpgrade_KeepsProcessAndSession(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	a := b.child(childConfig{ID: "a", Reload: "true"})
	fileIs(t, b.path("a.conf"), "80")
	before := await(t, a.client(), "a running agent", func(s *show.Status) bool { return s.Agent.State == "running" })
	if err := a.client().Post(t.Context(), "/upgrade", nil); err != nil {
		t.Fatal(err)
	}
	after := await(t, a.client(), "the next program", func(s *show.Status) bool {
		return s.Agent.State == "running" && s.Agent.Started.After(before.Agent.Started)
	})
	if after.Agent.PID != before.Agent.PID || after.ZooKeeper.SessionID != before.ZooKeeper.SessionID || !after.ZooKeeper.Resumed {
		t.Errorf("got pid %d, session %x, resumed %v; want pid %d, session %x", after.Agent.PID, after.ZooKeeper.SessionID,
			after.ZooKeeper.Resumed, before.Agent.PID, before.ZooKeeper.SessionID)
	}
	b.set("/config/web/port", "81")
	fileIs(t, b.path("a.conf"), "81")
	a.signal(syscall.SIGTERM)
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("agent ended with %v", err)
	}
}

// await asks an agent until its status is as wanted.
func await(t *testing.T, c *web.Client, what string, ok func(*show.Status) bool) *show.Status {
	t.Helper()
	var s *show.Status
	eventually(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var err error
		s, err = c.Status(ctx)
		return err == nil && ok(s)
	})
	return s
}
