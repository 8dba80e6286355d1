package fleet

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A publisher loses the publishers' lock just before the server sees any one of its
// transactions: that one and all that follow change nothing.
func TestWithoutTheLock(t *testing.T) {
	t.Parallel()
	keys := map[string]string{"a": "1", "b": strings.Repeat("x", 400<<10), "c": strings.Repeat("y", 400<<10)}
	publish := func(layout string, keys map[string]string) func(context.Context, *session.Session) error {
		return func(ctx context.Context, s *session.Session) error {
			_, err := Publish(ctx, s, PublishConfig{Path: "/c", Layout: layout, Keys: bytesOf(keys), Force: true})
			return err
		}
	}
	inUse := func(layout string) func(t *testing.T, z *memzk.Server, s *session.Session) {
		return func(t *testing.T, _ *memzk.Server, s *session.Session) {
			mustPublish(t, s, "/c", layout, map[string]string{"a": "0", "b": "0", "gone": "0"})
		}
	}
	deleted := func(t *testing.T, _ *memzk.Server, s *session.Session) {
		mustPublish(t, s, "/c", config.LayoutVersioned, map[string]string{"a": "0"})
		_, err := Delete(t.Context(), s, "/c", "ann", "")
		must(t, err)
	}
	cfg := PublishConfig{Path: "/c", Force: true}
	for name, test := range map[string]struct {
		prepare func(t *testing.T, z *memzk.Server, s *session.Session)
		act     func(ctx context.Context, s *session.Session) error
	}{
		"publish flat":         {inUse(config.LayoutFlat), publish(config.LayoutFlat, map[string]string{"a": "1"})},
		"publish flat in many": {inUse(config.LayoutFlat), publish(config.LayoutFlat, keys)},
		"publish versioned":    {inUse(config.LayoutVersioned), publish(config.LayoutVersioned, keys)},
		"convert": {inUse(config.LayoutFlat), func(ctx context.Context, s *session.Session) error {
			_, err := Convert(ctx, s, cfg, false)
			return err
		}},
		"finish": {func(t *testing.T, z *memzk.Server, _ *session.Session) {
			must(t, z.Create("/c", nil))
			must(t, z.Create("/c/a", []byte("1")))
		}, func(ctx context.Context, s *session.Session) error {
			_, err := Finish(ctx, s, cfg)
			return err
		}},
		"freeze": {inUse(""), func(ctx context.Context, s *session.Session) error { return Freeze(ctx, s, "/c", "ann", "night") }},
		"freeze again": {func(t *testing.T, z *memzk.Server, s *session.Session) {
			inUse("")(t, z, s)
			must(t, Freeze(t.Context(), s, "/c", "ann", "night"))
		}, func(ctx context.Context, s *session.Session) error { return Freeze(ctx, s, "/c", "bob", "day") }},
		"delete": {inUse(""), func(ctx context.Context, s *session.Session) error {
			_, err := Delete(ctx, s, "/c", "ann", "")
			return err
		}},
		"restore": {deleted, func(ctx context.Context, s *session.Session) error {
			_, err := Restore(ctx, s, "/c", "ann")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n, met := 1, true; met && !t.Failed(); n++ {
				bubble(t, func(t *testing.T, z *memzk.Server) {
					met = withoutTheLock(t, z, n, test.prepare, test.act)
				})
				if !met && n == 1 {
					t.Error("there is no transaction")
				}
			}
		})
	}
}

// withoutTheLock takes the lock away before transaction n. It returns whether there is one.
func withoutTheLock(t *testing.T, z *memzk.Server, n int, prepare func(*testing.T, *memzk.Server, *session.Session), act func(context.Context, *session.Session) error) bool {
	other, late := join(t, z), join(t, z, "late:2181")
	defer other.Close()
	defer late.Close()
	prepare(t, z, other)
	multis := 0
	var before map[string]memzk.Node
	z.Hold(func(h memzk.Held) <-chan struct{} {
		if h.Addr != "late:2181" || h.Op != jute.OpMulti {
			return nil
		}
		if multis++; multis != n {
			return nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			names, _ := z.Children("/c-lock")
			for _, name := range names {
				must(t, z.Delete("/c-lock/"+name))
			}
			before = z.Tree()
		}()
		return done
	})
	err := act(t.Context(), late)
	z.Hold(nil)
	if multis < n {
		must(t, err)
		return false
	}
	if err == nil {
		t.Errorf("transaction %d: no error without the lock", n)
	}
	now := z.Tree()
	for _, path := range slices.Sorted(maps.Keys(now)) {
		was, had := before[path]
		empty := !had && len(now[path].Data) == 0 // a parent
		if strings.HasPrefix(path, "/c") && !strings.HasPrefix(path, "/c-lock") && !empty && was.Stat.Mzxid != now[path].Stat.Mzxid || path == "/c/ready" && !had || path == "/c/freeze" && !had {
			t.Errorf("transaction %d, which returned %v, changed %s", n, err, path)
		}
	}
	for path := range before {
		if _, still := now[path]; !still && !strings.HasPrefix(path, "/c-lock") {
			t.Errorf("transaction %d, which returned %v, deleted %s", n, err, path)
		}
	}
	if errors.Is(err, session.ErrUnknown) {
		t.Errorf("transaction %d: %v", n, err)
	}
	return true
}

// Just before the transaction that deletes or restores a config, somebody freezes it by hand
// or proposes a rollout: it is refused, and ready stays as it is.
func TestDelete_MeetsAFreezeOrAProposal(t *testing.T) {
	t.Parallel()
	freeze := func(t *testing.T, z *memzk.Server, _ *session.Session) {
		must(t, z.Create("/c/freeze", []byte("by hand")))
	}
	propose := func(t *testing.T, _ *memzk.Server, s *session.Session) {
		_, err := Propose(t.Context(), s, Request{Root: "/c", Base: 1, Version: 2, Digest: "x", Strategy: Strategy{Parallel: 1}})
		must(t, err)
	}
	for name, test := range map[string]struct {
		restore bool
		happens func(*testing.T, *memzk.Server, *session.Session)
	}{"a freeze": {false, freeze}, "a proposal": {false, propose}, "a restore meets a freeze": {true, freeze}} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			other, late := join(t, z), join(t, z, "late:2181")
			defer other.Close()
			defer late.Close()
			mustPublish(t, other, "/c", "", map[string]string{"k": "1"})
			_, err := Prepare(t.Context(), other, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"k": "2"})})
			must(t, err)
			must(t, z.Create(SubscriptionPath("/c", "h"), []byte(`{"version":1}`)))
			if test.restore {
				_, err := Delete(t.Context(), other, "/c", "ann", "")
				must(t, err)
			}
			done := make(chan struct{})
			once := sync.OnceFunc(func() { go func() { defer close(done); test.happens(t, z, other) }() })
			z.Hold(func(h memzk.Held) <-chan struct{} {
				if h.Addr != "late:2181" || h.Op != jute.OpMulti {
					return nil
				}
				once()
				return done
			})
			if test.restore {
				_, err = Restore(t.Context(), late, "/c", "late")
			} else {
				_, err = Delete(t.Context(), late, "/c", "late", "")
			}
			z.Hold(nil)
			if err == nil || z.Exists("/c/ready") == test.restore {
				t.Errorf("%s: %v, ready exists %v", name, err, z.Exists("/c/ready"))
			}
		})
	}
}

// Another tool changes a key of a flat tree just before the transaction that converts it: the
// tree stays flat.
func TestConvert_KeyChangesBeforeTheFlip(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		other, late := join(t, z), join(t, z, "late:2181")
		defer other.Close()
		defer late.Close()
		mustPublish(t, other, "/c", config.LayoutFlat, map[string]string{"a": "1"})
		z.Hold(func(h memzk.Held) <-chan struct{} {
			if h.Addr == "late:2181" && h.Op == jute.OpMulti && bytes.Contains(h.Body, []byte("/c/ready")) {
				done := make(chan struct{})
				go func() { defer close(done); must(t, z.Set("/c/a", []byte("2"))) }()
				return done
			}
			return nil
		})
		_, err := Convert(t.Context(), late, PublishConfig{Path: "/c", Force: true}, false)
		z.Hold(nil)
		if n, _ := z.Get("/c/ready"); !errors.Is(err, ErrConflict) || len(n.Data) > 0 {
			t.Errorf("got %v, and ready is %q", err, n.Data)
		}
	})
}

// A version is about to be deleted with its dry run. Just before, it comes into use: it stays.
func TestDry_VersionComesIntoUse(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		other, late := join(t, z), join(t, z, "late:2181")
		defer other.Close()
		defer late.Close()
		mustPublish(t, other, "/c", "", map[string]string{"k": "1"})
		res, err := Prepare(t.Context(), other, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"k": "2"})})
		must(t, err)
		z.Hold(func(h memzk.Held) <-chan struct{} {
			if h.Addr != "late:2181" || h.Op != jute.OpMulti {
				return nil
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				ready, _, err := trees.ReadReady(t.Context(), other, "/c")
				must(t, err)
				ready.Version = res.Version
				must(t, z.Set("/c/ready", ready.Encode()))
			}()
			return done
		})
		err = deleteVersion(t.Context(), late, "/c", res.Version)
		z.Hold(nil)
		if must(t, err); !z.Exists(trees.VersionPath("/c", res.Version)) {
			t.Error("the version in use is deleted")
		}
	})
}
