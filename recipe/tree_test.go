package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// same compares a copy with the server.
func (w *world) same(t *testing.T, tree *Tree, root string) {
	t.Helper()
	for path, n := range w.Tree() {
		if path != root && !strings.HasPrefix(path, root+"/") {
			continue
		}
		got, ok := tree.Get(path)
		if !ok || string(got.Data) != string(n.Data) || got.Czxid != n.Stat.Czxid || got.Mzxid != n.Stat.Mzxid || got.Version != n.Stat.Version {
			t.Errorf("%s is %+v, the copy has %+v (%v)", path, n, got, ok)
		}
		if names, _ := w.Children(path); ok && !slices.Equal(got.Children, names) {
			t.Errorf("%s has children %v, the copy has %v", path, names, got.Children)
		}
	}
}

// Random changes, lost replies, partitions and expired sessions, and znodes that are deleted
// and made again with the same data and version: each update says only what differs from the
// last one, in order, and the copy shows it. When all is calm, the copy is the subtree.
func TestTree_Random(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r := rand.New(rand.NewPCG(seed, 40))
			must(t, w.Create("/t", nil))
			tree, told := NewTree(TreeConfig{Path: "/t"}), map[string]int64{}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := 0; ctx.Err() == nil; n++ {
					s, err := w.tryDial(ctx, "reader")
					if err != nil {
						continue
					}
					first := true
					err = tree.Run(ctx, s, func(u TreeUpdate) {
						if u.First != first {
							t.Errorf("seed %d: %+v, want first %v", seed, u, first)
						}
						first = false
						tellTree(t, tree, told, u)
					})
					if err != nil && s.Context().Err() == nil {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
			}()
			for range 60 {
				randomChange(w, r)
				if disturb(w, r) {
					w.expireOne(r)
				}
				time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
			}
			w.ClearFaults()
			w.Heal("reader:2181")
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			w.same(t, tree, "/t")
			if len(told) != tree.Len() {
				t.Errorf("seed %d: the changes lead to %v, the copy has %d znodes", seed, slices.Sorted(maps.Keys(told)), tree.Len())
			}
			cancel()
			<-done
		})
	})
}

// tellTree applies an update to what was told.
func tellTree(t *testing.T, tree *Tree, told map[string]int64, u TreeUpdate) {
	if !slices.IsSortedFunc(u.Changes, func(a, b TreeChange) int { return cmp.Or(strings.Compare(a.Path, b.Path), 1) }) {
		t.Errorf("not in the order of the paths: %+v", u.Changes)
	}
	for _, c := range u.Changes {
		mzxid, had := told[c.Path]
		if had != (c.Old != nil) || had && mzxid != c.Old.Mzxid || had && c.New != nil && mzxid == c.New.Mzxid || !had && c.New == nil {
			t.Errorf("%s: %+v after %d (%v)", c.Path, c, mzxid, had)
		}
		if now, _ := tree.Get(c.Path); now != c.New {
			t.Errorf("%s: the copy has %+v, the update %+v", c.Path, now, c.New)
		}
		if delete(told, c.Path); c.New != nil {
			told[c.Path] = c.New.Mzxid
			if c.New.Mzxid > u.Last {
				t.Errorf("%s: mzxid %d, last %d", c.Path, c.New.Mzxid, u.Last)
			}
		}
	}
}

func randomChange(w *world, r *rand.Rand) {
	path := "/t"
	for range 1 + r.IntN(3) {
		path += fmt.Sprintf("/%d", r.IntN(4))
	}
	switch r.IntN(4) {
	case 0:
		_ = w.Create(path, []byte("new"))
	case 3:
		if n, err := w.Get(path); err == nil && w.Delete(path) == nil {
			_ = w.Create(path, n.Data)
		}
	case 1:
		_ = w.Set(path, fmt.Append(nil, r.IntN(1000)))
	case 2:
		_ = w.Delete(path)
	}
}

// A depth, a skipped part and bounds.
func TestTree_Limits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, path := range []string{"/t", "/t/a", "/t/a/b", "/t/a/b/c", "/t/skip", "/t/skip/x"} {
			must(t, w.Create(path, []byte("12345")))
		}
		read := func(cfg TreeConfig) (*Tree, error) {
			cfg.Path = "/t"
			tree := NewTree(cfg)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			return tree, tree.Run(ctx, w.dial("r"), func(TreeUpdate) { cancel() })
		}
		tree, err := read(TreeConfig{Depth: 2, Skip: func(path string) bool { return path == "/t/skip" }})
		must(t, err)
		if _, deep := tree.Get("/t/a/b/c"); deep || tree.Len() != 3 {
			t.Errorf("%d znodes", tree.Len())
		}
		for _, cfg := range []TreeConfig{{MaxZnodes: 3}, {MaxBytes: 29}} {
			if _, err := read(cfg); !errors.Is(err, ErrTreeTooLarge) {
				t.Errorf("%+v: %v", cfg, err)
			}
		}
		if _, err := read(TreeConfig{MaxZnodes: 6, MaxBytes: 100}); err != nil {
			t.Error(err)
		}
		if err := NewTree(TreeConfig{Path: "t"}).Run(t.Context(), w.dial("r"), nil); !errors.Is(err, session.ErrBadPath) {
			t.Errorf("a bad path: %v", err)
		}
	})
}

// A part that cannot be read keeps its last state in the next session, too.
func TestTree_Unreadable(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		ctx := t.Context()
		for _, path := range []string{"/t", "/t/a", "/t/a/b", "/t/c"} {
			must(t, w.Create(path, []byte("x")))
		}
		tree := NewTree(TreeConfig{Path: "/t"})
		run, cancel := context.WithCancel(ctx)
		must(t, tree.Run(run, s, func(TreeUpdate) { cancel() }))
		must(t, second(s.SetACL(ctx, "/t/a", []session.ACL{{Perms: session.PermWrite | session.PermAdmin, Scheme: "world", ID: "anyone"}}, -1)))
		must(t, w.Delete("/t/c"))
		run, cancel = context.WithCancel(ctx)
		must(t, tree.Run(run, w.dial("b"), func(u TreeUpdate) {
			if !u.First || len(u.Changes) != 1 || u.Changes[0].Path != "/t/c" || !errors.Is(u.Errors["/t/a"], session.ErrNoAuth) {
				t.Errorf("%+v", u)
			}
			cancel()
		}))
		if _, ok := tree.Get("/t/a/b"); !ok || tree.Len() != 3 {
			t.Errorf("%d znodes are left", tree.Len())
		}
	})
}
