package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// TestLoop_LoadsDuringAnApply loads settings again and again while an apply is in
// flight: one apply at a time writes the file, and the newest settings win, also
// when the bundle has another name in them or was away in between.
func TestLoop_LoadsDuringAnApply(t *testing.T) {
	for name, loads := range map[string][]string{
		"twice": {"web", "web", "web"}, "renamed": {"web", "other"}, "away and back": {"web", "", "web"}, "renamed twice": {"web", "other", "web"},
	} {
		dir := t.TempDir()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dest := filepath.Join(dir, "out")
				var running atomic.Int32
				settings := func(n int, name string) Config {
					c := Config{
						ID: "a1", Logger: slog.New(slog.DiscardHandler), ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}},
						Configs: []config.Config{{Name: "web", Path: "/config/web"}},
						Run: func(context.Context, proc.Command) (proc.Result, error) {
							if running.Add(1) > 1 {
								t.Error("two applies write one file")
							}
							time.Sleep(time.Minute / time.Duration(n+1)) // an older one takes longer
							running.Add(-1)
							return proc.Result{}, nil
						},
					}
					if name != "" {
						c.Bundles = []apply.Config{{
							Name: name, Check: &apply.CheckConfig{Command: argv("check"), At: "staged"},
							Templates: []apply.FileConfig{{
								Name: "f", Contents: fmt.Sprintf(`{{ key "web/v" }} %d`, n),
								Destination: func(*template.Each) (string, error) { return dest, nil },
							}},
						}}
					}
					return c
				}
				cfg := settings(0, loads[0])
				a, ctx, end := runLoop(t, &cfg)
				defer end()
				for n, name := range loads[1:] {
					time.Sleep(time.Second)
					next := settings(n+1, name)
					bundles, err := parseBundles(&next)
					if err != nil {
						t.Fatal(err)
					}
					a.cfg.Store(&next)
					a.loop.do(ctx, func() { a.loop.set(next.Sources(), bundles) })
				}
				time.Sleep(10 * time.Minute)
				data, err := os.ReadFile(dest)
				if want := fmt.Sprintf("1 %d", len(loads)-1); err != nil || string(data) != want {
					t.Errorf("got %q, %v; want %q", data, err, want)
				}
			})
		})
	}
}

// Settings that give a source another znode, and change the template with it: nothing is
// rendered from what the previous znode holds.
func TestLoop_SourceMoves(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dest := filepath.Join(dir, "out")
		settings := func(root, contents string) Config {
			return Config{
				ID: "a1", Logger: slog.New(slog.DiscardHandler), ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}},
				Configs: []config.Config{{Name: "web", Path: root}},
				Bundles: []apply.Config{{Name: "web", Templates: []apply.FileConfig{{Name: "f", Contents: contents, Destination: fixedPath(dir, "out")}}}},
			}
		}
		is := func(want string) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := read(t, dest); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		cfg := settings("/config/web", `{{ key "web/v" }}`)
		a, ctx, end := runLoop(t, &cfg)
		defer end()
		is("1")
		next := settings("/config/next", `{{ keyOrDefault "web/w" "none" }}`)
		bundles, err := parseBundles(&next)
		if err != nil {
			t.Fatal(err)
		}
		a.cfg.Store(&next)
		a.loop.do(ctx, func() { a.loop.set(next.Sources(), bundles) })
		a.loop.send(view.TreeOf("web", "/config/web", map[string]string{"v": "3"})) // of the unit that is about to stop
		is("1")
		if !a.conds.Has(condition.WaitingForSources, "") {
			t.Error("the agent does not say that it waits for the new znode")
		}
		a.loop.send(view.TreeOf("web", "/config/next", map[string]string{"w": "2"}))
		is("2")
	})
}

// runLoop runs the loop of an agent whose config web has one key, until the returned
// function ends it.
func runLoop(t *testing.T, cfg *Config) (*Agent, context.Context, func()) {
	t.Helper()
	a, err := New(*cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.loop.run(ctx)
	}()
	a.setLoop(ctx, cfg)
	a.loop.send(view.TreeOf("web", "/config/web", map[string]string{"v": "1"}))
	return a, ctx, func() { cancel(); <-done }
}

// Two agents write one file. Each repairs it a few times, then seldom, and says so. When
// one of them is gone, the file is soon that of the other, and all is quiet.
func TestLoop_TwoAgentsOneDestination(t *testing.T) {
	testhelp.InTurn(t, 2)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // A day in virtual time is cheaper on one processor.
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dest := filepath.Join(dir, "out")
		var reloads atomic.Int32
		start := func(id string) (*Agent, func()) {
			cfg := Config{
				ID: id, Logger: slog.New(slog.DiscardHandler), ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}},
				Configs: []config.Config{{Name: "web", Path: "/config/web"}},
				Run: func(context.Context, proc.Command) (proc.Result, error) {
					reloads.Add(1)
					return proc.Result{}, nil
				},
				Bundles: []apply.Config{{
					Name: "web", Reload: &apply.ReloadConfig{Command: argv("reload")},
					Templates: []apply.FileConfig{{
						Name: "f", Contents: id + ` {{ key "web/v" }}`, Destination: func(*template.Each) (string, error) { return dest, nil },
					}},
				}},
			}
			a, _, end := runLoop(t, &cfg)
			return a, end
		}
		one, endOne := start("one")
		two, endTwo := start("two")
		defer endOne()
		time.Sleep(24 * time.Hour)
		if n := reloads.Load(); n > 300 {
			t.Errorf("%d reloads in a day", n)
		}
		for _, a := range []*Agent{one, two} {
			if !a.conds.Has(condition.Drift, dest) {
				t.Error("an agent does not say that another program writes its file")
			}
		}
		endTwo()
		time.Sleep(2 * time.Hour)
		if got := read(t, dest); got != "one 1" {
			t.Errorf("got %q", got)
		}
		if one.conds.Has(condition.Drift, dest) {
			t.Error("the condition stays open")
		}
		// One edit by hand is repaired at once again.
		if err := os.WriteFile(dest, []byte("by hand"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if got := read(t, dest); got != "one 1" {
			t.Errorf("after an edit: %q", got)
		}
	})
}
