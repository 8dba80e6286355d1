package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

func TestMain(m *testing.M) {
	proc.GuardMain()
	childMain()
	zktest.RunMain(m)
}

// patience bounds every wait for something that must come.
const patience = 2 * time.Minute

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

// fileIs waits until the file has the content.
func fileIs(t *testing.T, path, want string) {
	t.Helper()
	got := ""
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		data, _ := os.ReadFile(path)
		if got = string(data); got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %q, want %q", filepath.Base(path), got, want)
		}
		<-tick.C
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// argv is a command with fixed arguments.
func argv(args ...string) command.Command {
	return command.Command{Text: strings.Join(args, " "), Args: func(command.Vars) ([]string, error) { return args, nil }}
}

// script is a shell command; a test may write one.
func script(format string, args ...any) command.Command {
	return argv("/bin/sh", "-c", fmt.Sprintf(format, args...))
}

// bed is one test's ZooKeeper root, directory and writer session.
type bed struct {
	t    *testing.T
	dir  string
	addr string
	root string
	s    *session.Session
}

func newBed(t *testing.T) *bed {
	t.Helper()
	server := zktest.Shared(t)
	b := &bed{t: t, dir: t.TempDir(), addr: server.Addr(), root: zktest.Root(t)}
	b.s = b.dial()
	return b
}

// dial opens a session in the test's root.
func (b *bed) dial() *session.Session {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	s, err := session.Dial(ctx, session.Config{Servers: []string{b.addr}, Chroot: b.root, Timeout: 10 * time.Second})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	return s
}

// create makes a persistent znode with its parents.
func (b *bed) create(path, data string) {
	b.t.Helper()
	if err := b.s.CreateParents(b.t.Context(), path); err != nil {
		b.t.Fatal(err)
	}
	b.sure(func() error {
		_, _, err := b.s.Create(b.t.Context(), path, []byte(data), session.Persistent)
		if errors.Is(err, session.ErrNodeExists) {
			return nil // of an attempt whose reply was lost.
		}
		return err
	})
}

func (b *bed) set(path, data string) {
	b.t.Helper()
	b.sure(func() error {
		_, err := b.s.Set(b.t.Context(), path, []byte(data), -1)
		return err
	})
}

// sure repeats a call as long as its outcome is unknown.
func (b *bed) sure(fn func() error) {
	b.t.Helper()
	for {
		err := fn()
		if err == nil {
			return
		}
		if !errors.Is(err, session.ErrUnknown) {
			b.t.Fatal(err)
		}
	}
}

// tree makes a flat config tree under /config/web.
func (b *bed) tree(keys map[string]string) {
	b.t.Helper()
	b.create("/config/web", "")
	for k, v := range keys {
		b.create("/config/web/"+k, v)
	}
	b.create("/config/web/ready", "")
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// config is the plainest configuration: one flat tree.
func (b *bed) config() Config {
	return Config{
		ID: "a1", Host: "h1", OnStop: onStopLeave, StateDir: b.path("state"),
		ZooKeeper: session.Config{Servers: []string{b.addr}, Chroot: b.root, Timeout: 4 * time.Second},
		Configs:   []config.Config{{Name: "web", Path: "/config/web"}},
	}
}

// file is a bundle of one template.
func (b *bed) file(name, contents string) apply.Config {
	dest := b.path(name)
	return apply.Config{Name: name, Templates: []apply.FileConfig{{
		Name: name, Contents: contents, Destination: func(*template.Each) (string, error) { return dest, nil },
	}}}
}

// started is an agent that runs in this process.
type started struct {
	*Agent

	t      *testing.T
	cancel context.CancelFunc
	done   chan error
}

// start runs an agent until the test ends.
func (b *bed) start(c Config, setup ...func(*Agent)) *started {
	b.t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(b.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	a, err := New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, fn := range setup {
		fn(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{Agent: a, t: b.t, cancel: cancel, done: make(chan error, 1)}
	go func() { s.done <- a.Run(ctx) }()
	b.t.Cleanup(func() { s.stop() })
	return s
}

// stop ends the agent and waits for it; more than once does nothing.
func (s *started) stop() error {
	s.t.Helper()
	s.cancel()
	select {
	case err := <-s.done:
		s.done <- err
		return err
	case <-time.After(2 * patience): //nolint:forbidigo // once.
		s.t.Error("the agent does not end")
		return nil
	}
}

// ready waits until the agent is ready.
func (s *started) ready() {
	s.t.Helper()
	select {
	case <-s.Ready():
	case err := <-s.done:
		s.done <- err
		s.t.Fatalf("agent ended: %v", err)
	case <-time.After(patience): //nolint:forbidigo // once.
		s.t.Fatal("the agent does not become ready")
	}
}

// recorded waits until there is an event of a kind.
func (s *started) recorded(kind string) {
	s.t.Helper()
	eventually(s.t, "an event "+kind, func() bool {
		list, _ := s.events.Since(0)
		return slices.ContainsFunc(list, func(e event.Event) bool { return e.Kind == kind })
	})
}

// condition waits until a condition is open, or closed.
func (s *started) condition(kind *condition.Kind, subject string, isOpen bool) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("condition %s %s to be open: %v", kind.Code, subject, isOpen), func() bool {
		return s.conds.Has(kind, subject) == isOpen
	})
}

func source(kind view.Kind, name string) view.Source { return view.Source{Kind: kind, Name: name} }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !os.IsNotExist(err)
}

// refuse makes the check of a test fail, or pass.
func (b *bed) refuse(on bool) {
	b.t.Helper()
	var err error
	if on {
		err = os.WriteFile(b.path("refuse"), nil, 0o600)
	} else {
		err = os.Remove(b.path("refuse"))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
