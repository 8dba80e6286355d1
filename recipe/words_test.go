package recipe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Words of exported documents, such as "grows" and "each", as properties.

// Fences grow from writer to writer over every transition: a downgrade, also one whose
// reply is lost, a release, an expiry, and a path that the server has reaped meanwhile.
// A reader that was a writer keeps the fence of the writer.
func TestRWLock_FencesGrowOverAllTransitions(t *testing.T) {
	for _, dialect := range []string{Curator, Kazoo} {
		bubble(t, func(t *testing.T, w *world) {
			ctx := t.Context()
			newest := int64(0)
			next := func(h *Hold, err error) *Hold {
				must(t, err)
				if h.Fence() <= newest {
					t.Errorf("%s: fence %d after %d", dialect, h.Fence(), newest)
				}
				newest = h.Fence()
				return h
			}
			for round, end := range []string{"release", "expiry", "reap", "release"} {
				sa, sb := w.dial("a"), w.dial("b")
				a, b := NewRWLock(sa, LockConfig{Path: "/h", Dialect: dialect}), NewRWLock(sb, LockConfig{Path: "/h", Dialect: dialect})
				first := next(a.Lock(ctx))
				got := make(chan *Hold, 1)
				go func() {
					h, err := b.Lock(ctx)
					if err != nil {
						t.Error(err)
					}
					got <- h
				}()
				synctest.Wait()
				if round == 3 {
					w.LoseReply(14, 1, false)
				}
				reader, err := a.Downgrade(ctx, first)
				must(t, err)
				if reader.Fence() != first.Fence() {
					t.Errorf("%s: the reader has fence %d, it had %d as a writer", dialect, reader.Fence(), first.Fence())
				}
				pause(ctx, memTimeout) // the watcher of the reader accepts its own znode
				must(t, reader.Err())
				if end == "expiry" {
					w.ExpireSession(sa.ID())
				} else {
					must(t, reader.Release(ctx))
				}
				must(t, next(<-got, nil).Release(ctx))
				if end == "reap" {
					time.Sleep(5 * time.Minute)
					if w.Exists("/h") {
						t.Error("the path was not reaped")
					}
				}
			}
		})
	}
}

// Under the context of a multi-hold, or of a hold outside it, each lock says that it
// would wait for itself.
func TestMultiHold_AcquireUnderItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		lock := func(path string) *Lock { return NewLock(s, LockConfig{Path: path}) }
		rw := NewRWLock(s, LockConfig{Path: "/rw"})
		outer, err := lock("/outer").Acquire(t.Context())
		must(t, err)
		many, err := NewMultiLock(lock("/a"), lock("/b"), rw.Reader()).Acquire(outer.Context())
		must(t, err)
		ctx, cancel := context.WithTimeout(many.Context(), time.Hour)
		defer cancel()
		for _, path := range []string{"/a", "/b", "/outer"} {
			if err := second(lock(path).Acquire(ctx)); !errors.Is(err, ErrReentrant) {
				t.Errorf("%s: got %v, want ErrReentrant", path, err)
			}
		}
		if err := second(rw.Lock(ctx)); !errors.Is(err, ErrUpgrade) {
			t.Errorf("/rw: got %v, want ErrUpgrade", err)
		}
		must(t, second(lock("/free").Acquire(ctx)))
	})
}
