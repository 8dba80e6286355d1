package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// TestSaver_LatestGoodView: the saved view is the latest one from which every file was in
// place, however short its time was. Each step is a new view of the keys a and b, which are the
// contents of one file each, and how long it is in use; the check of a file takes a second for
// each "+" and refuses "bad".
func TestSaver_LatestGoodView(t *testing.T) {
	type step struct {
		a, b string
		took time.Duration
	}
	const now, long = 0, time.Minute
	churn := []step{{"0", "0", long}}
	for n := range 20 {
		churn = append(churn, step{fmt.Sprint(n/2, "++"), fmt.Sprint(n/3, "++++"), time.Second})
	}
	for name, c := range map[string]struct {
		steps []step
		want  string // a and b
	}{
		"one good view":                 {[]step{{"1", "1", long}}, "1 1"},
		"good, then refused":            {[]step{{"1", "1", now}, {"bad", "1", long}}, "1 1"},
		"in flight":                     {[]step{{"1", "1", long}, {"bad++", "1", time.Second}}, "1 1"},
		"waits behind what is in use":   {[]step{{"1", "1", long}, {"2++", "1", time.Second}, {"bad", "1", now}}, "1 1"},
		"two at one moment":             {[]step{{"1", "1+", now}, {"1", "bad", now}, {"1", "bad", 3 * time.Second}}, "1 1+"},
		"the other one continues":       {[]step{{"1", "1", long}, {"bad", "1", long}, {"bad", "2", long}}, "1 1"},
		"never good together":           {[]step{{"1", "1", long}, {"2", "bad", long}, {"bad", "3", long}}, "1 1"},
		"good again":                    {[]step{{"1", "1", long}, {"2", "bad", long}, {"bad", "3", long}, {"4", "3", long}}, "4 3"},
		"a first view that is refused":  {[]step{{"bad", "1", long}}, ""},
		"never idle, and still a later": {churn, "7++ 5++++"},
	} {
		dir := t.TempDir()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{
					ID: "a1", Logger: slog.New(slog.DiscardHandler), ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}},
					StateDir: filepath.Join(dir, "state"), Configs: []config.Config{{Name: "web", Path: "/config/web"}},
					Run: func(_ context.Context, c proc.Command) (proc.Result, error) {
						text := read(t, c.Args[1])
						time.Sleep(time.Duration(strings.Count(text, "+")) * time.Second)
						if strings.HasPrefix(text, "bad") {
							return proc.Result{Code: 1}, errors.New("exit status 1")
						}
						return proc.Result{}, nil
					},
				}
				for _, name := range []string{"a", "b"} {
					cfg.Bundles = append(cfg.Bundles, apply.Config{
						Name:      name,
						Templates: []apply.FileConfig{{Name: name, Contents: fmt.Sprintf(`{{ key "web/%s" }}`, name), Destination: fixedPath(dir, name)}},
						Check: &apply.CheckConfig{At: "staged", Command: command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
							return []string{"check", filepath.Join(v.StagedDir, dir, name)}, nil
						}}},
					})
				}
				a, _, end := runLoop(t, &cfg)
				defer end()
				for _, s := range c.steps {
					a.loop.send(view.TreeOf("web", "/config/web", map[string]string{"a": s.a, "b": s.b}))
					if s.took > 0 {
						time.Sleep(s.took)
					}
					synctest.Wait()
				}
				a.saved.flush()
				if got := savedKeys(t, cfg.StateDir); got != c.want {
					t.Errorf("saved %q, want %q", got, c.want)
				}
			})
		})
	}
}

// TestSaver_StatusLineFollowsTheConnection: the service manager hears of an outage and of its
// end, also when nothing else changes.
func TestSaver_StatusLineFollowsTheConnection(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		a, err := New(Config{
			ID: "a1", Host: "a1", OnStop: "leave", StateDir: filepath.Join(dir, "state"), Logger: slog.New(slog.DiscardHandler),
			ZooKeeper: session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		<-a.Ready()
		for _, c := range []struct {
			change func()
			want   string
		}{{func() {}, "ZooKeeper a:2181"}, {srv.Stop, "ZooKeeper suspended"}, {srv.Start, "ZooKeeper a:2181"}, {srv.Stop, "ZooKeeper suspended"}} {
			c.change()
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if !strings.Contains(a.saved.line, c.want) {
				t.Errorf("the status line is %q, want %q", a.saved.line, c.want)
			}
		}
		srv.Start()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// savedKeys returns the keys a and b of the saved view.
func savedKeys(t *testing.T, stateDir string) string {
	t.Helper()
	v, err := lastgood.Load(stateDir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if v == nil {
		return ""
	}
	tree, _ := v.Tree("web")
	a, _ := tree.Get("a")
	b, _ := tree.Get("b")
	return string(a.Value) + " " + string(b.Value)
}

// TestSaver_FirstViewIsSavedAtOnce: what is published before the first good view costs no wait.
func TestSaver_FirstViewIsSavedAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{
			ID: "a1", Logger: slog.New(slog.DiscardHandler), ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}},
			StateDir: filepath.Join(dir, "state"), Configs: []config.Config{{Name: "web", Path: "/config/web"}},
			Bundles: []apply.Config{{Name: "a", Templates: []apply.FileConfig{
				{Name: "a", Contents: `{{ key "web/a" }}`, Destination: fixedPath(dir, "a")},
			}}},
		}
		a, ctx, end := runLoop(t, &cfg)
		saver, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a.saved.run(saver)
		}()
		defer func() { stop(); <-ended; end() }()
		synctest.Wait() // a view without the key a
		a.loop.send(view.TreeOf("web", "/config/web", map[string]string{"a": "1", "b": "1"}))
		time.Sleep(100 * time.Millisecond)
		if got := savedKeys(t, cfg.StateDir); got != "1 1" {
			t.Errorf("saved %q a moment after the first good view", got)
		}
	})
}
