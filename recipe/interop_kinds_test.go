package recipe

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// A path that Curator or kazoo holds as one kind of lock is refused to ours as
// another kind, and held by ours of the same kind only after them.
func TestInterop_Kinds(t *testing.T) {
	testhelp.InTurn(t, 2)
	for name, start := range map[string]func() *peers.Peer{
		"curator": func() *peers.Peer { return peers.Curator(t, zktest.Shared(t).Addr(), peers.Quick) },
		"kazoo":   func() *peers.Peer { return peers.Kazoo(t, zktest.Shared(t).Addr()) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			p := start()
			s, root := dialReal(t), zktest.Root(t)
			dialect := map[string]string{"curator": Curator, "kazoo": Kazoo}[name]
			lock := func(path string) error {
				_, err := NewLock(s, LockConfig{Path: path, Dialect: dialect}).TryAcquire(ctx)
				return err
			}
			write := func(path string) error {
				_, err := NewRWLock(s, LockConfig{Path: path, Dialect: dialect}).TryLock(ctx)
				return err
			}
			permit := func(path string) error {
				_, err := NewSemaphore(s, SemaphoreConfig{Path: path, K: 1, Dialect: dialect}).TryAcquire(ctx)
				return err
			}
			for _, c := range []struct {
				kind  string
				other func(string) error // of another kind
				same  func(string) error
			}{
				{"write", lock, write},
				{"read", lock, write},
				{"lock", write, lock},
				{"semaphore", lock, permit},
				{"lock", permit, lock},
			} {
				// kazoo's lock is its write lock, and kazoo's semaphore writes no K.
				if name == "kazoo" && c.kind != "semaphore" {
					continue
				}
				path := root + "/" + c.kind
				p.Tell(t, "acquire %s %s", c.kind, path)
				p.Expect(ctx, t, "held "+c.kind)
				if err := c.other(path); !errors.Is(err, ErrKind) {
					t.Errorf("theirs is a %s, ours of another kind: got %v, want ErrKind", c.kind, err)
				}
				if err := c.same(path); !errors.Is(err, ErrHeld) {
					t.Errorf("theirs is a %s, ours of the same kind: got %v, want ErrHeld", c.kind, err)
				}
				p.Tell(t, "release %s", c.kind)
				p.Expect(ctx, t, "released "+c.kind)
			}
		})
	}
}

// A hold ends when Curator takes a lock of another kind on the path later: its locks do
// not see ours.
func TestInterop_CuratorComesLater(t *testing.T) {
	testhelp.OnlyAll(t, "the other tests of kinds need no waiting clients of Java")
	ctx := testContext(t)
	p := peers.Curator(t, zktest.Shared(t).Addr(), peers.Quick)
	s, err := session.Dial(ctx, session.Config{Servers: []string{zktest.Shared(t).Addr()}, Timeout: 6 * time.Second})
	must(t, err)
	defer s.Close()
	root := zktest.Root(t)
	h, err := NewLock(s, LockConfig{Path: root + "/x"}).Acquire(ctx)
	must(t, err)
	p.Tell(t, "acquire write %s/x", root)
	p.Expect(ctx, t, "held write")
	select {
	case <-h.Context().Done():
		if err := h.Err(); !errors.Is(err, ErrKind) {
			t.Errorf("the hold ended with %v", err)
		}
	case <-ctx.Done():
		t.Error("both hold")
	}
	p.Tell(t, "release write")
	p.Expect(ctx, t, "released write")
}
