package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// shows is a host that keeps the value that it shows.
type shows struct {
	mu    sync.Mutex
	value string
}

func (h *shows) Show(tree *view.Tree) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key, _ := tree.Keys().Get("k")
	h.value = string(key.Value)
}

func (h *shows) Vote(context.Context, *view.Tree) error { return nil }
func (h *shows) Use(_ context.Context, _, _ *view.Tree) error {
	return errors.New("no turn was granted")
}
func (h *shows) Back(_ context.Context, tree *view.Tree) error { h.Show(tree); return nil }

// A tree is deleted and published again while a host is away, so that its version has the
// number of the first one, and a rollout is open. The host uses the new tree meanwhile.
func TestParticipant_TreeMadeAgainUnderARollout(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		desk := join(t, z)
		defer desk.Close()
		host, watcher := &shows{}, config.NewWatcher(config.Config{Name: "c", Path: "/c"})
		p := New(Config{Root: "/c", Agent: "h", Host: host, NeverCoordinate: true, Tree: func(ctx context.Context, s *session.Session, v Version) (*view.Tree, error) {
			return watcher.ReadVersion(ctx, s, v.Number)
		}})
		run := func() func() {
			s, ctx := join(t, z), t.Context()
			ctx, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			wg.Go(func() { _ = watcher.Run(ctx, s, func(u view.Update) { p.Offer(u.(*view.Tree)) }) })
			wg.Go(func() { _ = p.Run(ctx, s) })
			after(10 * time.Second)
			synctest.Wait()
			return func() { cancel(); wg.Wait(); must(t, s.Close()) }
		}
		first := mustPublish(t, desk, "/c", "", map[string]string{"k": "old"})
		run()()
		if host.value != "old" {
			t.Fatalf("it shows %q", host.value)
		}
		for _, path := range slices.Backward(slices.Sorted(maps.Keys(z.Tree()))) {
			if strings.HasPrefix(path, "/c/") {
				must(t, z.Delete(path))
			}
		}
		if again := mustPublish(t, desk, "/c", "", map[string]string{"k": "new"}); again.Version != first.Version {
			t.Fatalf("version %d, then %d", first.Version, again.Version)
		}
		must(t, z.Create(SubscriptionPath("/c", "h"), []byte(`{"version":1}`)))
		r, err := Prepare(t.Context(), desk, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"k": "next"})})
		must(t, err)
		_, err = Propose(t.Context(), desk, Request{Root: "/c", Version: r.Version, Digest: r.Digest, Strategy: Strategy{Parallel: 1}})
		must(t, err)
		stop := run()
		defer stop()
		if host.value != "new" {
			t.Errorf("it shows %q", host.value)
		}
	})
}
