package recipe

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
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

// Fences grow from holder to holder, however a hold ends: by a release, by an expiry, while
// the reply of a take is lost, and over a path that the server has reaped meanwhile.
func TestFencesGrow(t *testing.T) {
	testhelp.InTurn(t, 2)
	type held interface {
		Fence() int64
		Release(ctx context.Context) error
	}
	holds := func(h *Hold, err error) (held, error) { return h, err }
	reserved := func(r *Reservation, err error) (held, error) { return returned{r}, err }
	for name, take := range map[string]func(ctx context.Context, s *session.Session) (held, error){
		"lock": func(ctx context.Context, s *session.Session) (held, error) {
			return holds(NewLock(s, LockConfig{Path: "/h"}).Acquire(ctx))
		},
		"kazoo lock": func(ctx context.Context, s *session.Session) (held, error) {
			return holds(NewLock(s, LockConfig{Path: "/h", Dialect: Kazoo}).Acquire(ctx))
		},
		"semaphore": func(ctx context.Context, s *session.Session) (held, error) {
			return holds(NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 1}).Acquire(ctx))
		},
		"kazoo semaphore": func(ctx context.Context, s *session.Session) (held, error) {
			return holds(NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 1, Dialect: Kazoo}).Acquire(ctx))
		},
		"queue": func(ctx context.Context, s *session.Session) (held, error) {
			return reserved(NewQueue(s, QueueConfig{Path: "/h"}).Reserve(ctx))
		},
		"priority queue": func(ctx context.Context, s *session.Session) (held, error) {
			return reserved(NewPriorityQueue(s, PriorityQueueConfig{Path: "/h", Reserve: true}).Reserve(ctx))
		},
	} {
		testhelp.Seeds(t, 100*time.Millisecond, func(t *testing.T, seed uint64) {
			r := rand.New(rand.NewPCG(seed, 0))
			bubble(t, func(t *testing.T, w *world) {
				ctx, last := t.Context(), int64(0)
				if strings.Contains(name, "queue") {
					putBoth(ctx, t, w, name)
				}
				for range 10 {
					s := w.dial("c")
					if r.IntN(2) == 0 {
						w.LoseReply(memzk.AnyOp, 1+r.IntN(6), r.IntN(2) == 0)
					}
					h, err := take(ctx, s)
					must(t, err)
					w.ClearFaults()
					if h.Fence() <= last {
						t.Errorf("%s: fence %d after %d", name, h.Fence(), last)
					}
					last = h.Fence()
					switch r.IntN(3) {
					case 0:
						w.ExpireSession(s.ID())
					case 1:
						must(t, h.Release(ctx))
						pause(ctx, 10*time.Minute) // empty containers are reaped
					default:
						must(t, h.Release(ctx))
					}
				}
			})
		})
	}
}

// returned is a reservation whose release returns the item.
type returned struct{ *Reservation }

func (r returned) Release(ctx context.Context) error { return r.Return(ctx) }

// putBoth puts two items.
func putBoth(ctx context.Context, t *testing.T, w *world, name string) {
	t.Helper()
	s := w.dial("put")
	for range 2 {
		if name == "queue" {
			must(t, NewQueue(s, QueueConfig{Path: "/h"}).Put(ctx, nil))
		} else {
			must(t, NewPriorityQueue(s, PriorityQueueConfig{Path: "/h", Reserve: true}).Put(ctx, nil, 1))
		}
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
