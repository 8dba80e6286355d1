package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func TestMain(m *testing.M) { zktest.RunMain(m) }

// within is how long a test waits for what must happen.
const within = 2 * time.Minute

// dial returns a session on the shared server.
func dial(t *testing.T, edit ...func(*session.Config)) *session.Session {
	t.Helper()
	cfg := session.Config{Servers: []string{zktest.Shared(t).Addr()}, Timeout: time.Minute}
	for _, fn := range edit {
		fn(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// soon bounds what a test waits for.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}

// root is the root of a config of this test alone; it does not exist yet.
func newRoot(t *testing.T) string {
	t.Helper()
	return zktest.Root(t) + "/config"
}

// follower runs a watcher and keeps what it passes on.
type follower struct {
	t    testing.TB
	w    *config.Watcher
	stop func() error

	mu    sync.Mutex // guards what follows
	trees []*view.Tree
	news  chan struct{} // closed at the next tree
}

// follow starts a watcher; it ends with the test.
func follow(t testing.TB, s *session.Session, cfg config.Config) *follower {
	t.Helper()
	f := &follower{t: t, news: make(chan struct{})}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	f.w = config.NewWatcher(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.w.Run(ctx, s, f.up) }()
	f.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = f.stop() })
	return f
}

func (f *follower) up(u view.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trees = append(f.trees, u.(*view.Tree))
	close(f.news)
	f.news = make(chan struct{})
}

// all returns what was passed on until now.
func (f *follower) all() []*view.Tree {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.trees)
}

// last returns the newest tree, nil when there is none.
func (f *follower) last() *view.Tree {
	trees := f.all()
	if len(trees) == 0 {
		return nil
	}
	return trees[len(trees)-1]
}

// await waits until the newest tree satisfies ok.
func (f *follower) await(what string, ok func(*view.Tree) bool) *view.Tree {
	f.t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		f.mu.Lock()
		news := f.news
		f.mu.Unlock()
		if last := f.last(); last != nil && ok(last) {
			return last
		}
		select {
		case <-news:
		case <-limit.C:
			f.t.Fatalf("waited in vain for %s; newest: %s; status: %+v", what, show(f.last()), f.w.Status())
		}
	}
}

// awaitStatus waits until the watcher's status satisfies ok.
func (f *follower) awaitStatus(what string, ok func(config.Status) bool) {
	f.t.Helper()
	eventually(f.t, what, func() bool { return ok(f.w.Status()) })
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

// has reports whether a tree holds exactly the keys.
func has(keys map[string]string) func(*view.Tree) bool {
	return func(t *view.Tree) bool { return t.SameKeys(view.TreeOf("", "", keys)) }
}

// show is a tree for error messages.
func show(t *view.Tree) string {
	if t == nil {
		return "no tree"
	}
	out := fmt.Sprintf("generation %d, %d keys:", t.Generation, t.Len())
	t.Walk("", func(p string, k view.Key) bool {
		out += fmt.Sprintf(" %s=%.20q", p, k.Value)
		return len(out) < 300
	})
	return out
}

// bytesOf makes values of strings.
func bytesOf(keys map[string]string) map[string][]byte {
	m := make(map[string][]byte, len(keys))
	for k, v := range keys {
		m[k] = []byte(v)
	}
	return m
}

// numbered returns n keys, all with the value.
func numbered(n int, value string) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("dir%d/key%04d", i%7, i)] = value
	}
	return m
}

// mustPublish publishes keys.
func mustPublish(t *testing.T, s *session.Session, path, layout string, keys map[string]string) Result {
	t.Helper()
	res, err := Publish(soon(t), s, PublishConfig{Path: path, Layout: layout, Keys: bytesOf(keys), Message: "test", Author: "tester", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// put creates or sets a znode, with its parents.
func write(t testing.TB, s *session.Session, path, data string) {
	t.Helper()
	ctx := t.Context()
	_, err := s.Set(ctx, path, []byte(data), -1)
	if err == nil {
		return
	}
	must(t, s.CreateParents(ctx, path))
	_, _, err = s.Create(ctx, path, []byte(data), session.Persistent)
	must(t, err)
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
