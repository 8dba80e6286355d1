package recipe

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// anyHold is what is held: a Hold or a MultiHold.
type anyHold interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// holdKind is one way to hold something below /h exclusively.
type holdKind struct {
	name    string
	acquire func(s *session.Session) func(context.Context) (anyHold, error)
}

// holding adapts an Acquire: a nil *Hold must not become a hold that is not nil.
func holding[H anyHold](acquire func(context.Context) (H, error)) func(context.Context) (anyHold, error) {
	return func(ctx context.Context) (anyHold, error) {
		h, err := acquire(ctx)
		if err != nil {
			return nil, err
		}
		return h, nil
	}
}

func holdKinds() []holdKind {
	lock := func(path, dialect string, revocable bool) func(*session.Session) func(context.Context) (anyHold, error) {
		return func(s *session.Session) func(context.Context) (anyHold, error) {
			return holding(NewLock(s, LockConfig{Path: path, Dialect: dialect, Revocable: revocable}).Acquire)
		}
	}
	semaphore := func(dialect string) func(*session.Session) func(context.Context) (anyHold, error) {
		return func(s *session.Session) func(context.Context) (anyHold, error) {
			return holding(NewSemaphore(s, SemaphoreConfig{Path: "/h/sem", K: 1, Dialect: dialect}).Acquire)
		}
	}
	return []holdKind{
		{"lock", lock("/h/lock", Curator, false)},
		{"lock-kazoo", lock("/h/lock", Kazoo, false)},
		{"revocable", lock("/h/lock", Curator, true)},
		writer(),
		{"multi", func(s *session.Session) func(context.Context) (anyHold, error) {
			return holding(NewMultiLock(NewLock(s, LockConfig{Path: "/h/b"}), NewLock(s, LockConfig{Path: "/h/a"})).Acquire)
		}},
		{"semaphore", semaphore(Curator)},
		{"semaphore-kazoo", semaphore(Kazoo)},
	}
}

// A waiter behind a holder is cancelled at every moment, also while it gets the hold.
// It leaves nothing behind, and does not disturb the holder.
func TestHolds_CancelledAtEveryAwaitBehindAHolder(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, k := range append(holdKinds(), readBehindWriter()) {
		if testhelp.NotToday(k.name, 3) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			for n := range 60 {
				done := false
				bubble(t, func(t *testing.T, w *world) { done = cancelledBehind(t, w, k, n) })
				if t.Failed() {
					t.Fatalf("cancelled after %d half replies", n)
				}
				if done {
					return
				}
			}
			t.Error("it is never acquired")
		})
	}
}

// readBehindWriter is a reader; who waits behind its like does not wait.
func readBehindWriter() holdKind {
	return holdKind{"read", func(s *session.Session) func(context.Context) (anyHold, error) {
		return holding(NewRWLock(s, LockConfig{Path: "/h/rw"}).RLock)
	}}
}

// writer is the kind that a reader waits for.
func writer() holdKind {
	return holdKind{"write", func(s *session.Session) func(context.Context) (anyHold, error) {
		return holding(NewRWLock(s, LockConfig{Path: "/h/rw"}).Lock)
	}}
}

// cancelledBehind cancels a waiter after n half replies, and reports whether it
// had the hold by then.
func cancelledBehind(t *testing.T, w *world, k holdKind, n int) bool {
	t.Helper()
	const latency = time.Second
	s := w.dial("waiter")
	ahead := k
	if k.name == "read" {
		ahead = writer()
	}
	first, err := ahead.acquire(w.dial("holder"))(t.Context())
	must(t, err)
	w.Delay(memzk.AnyOp, latency)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*latency/2+latency/4)
	defer cancel()
	released := make(chan error, 1)
	time.AfterFunc(6*latency, func() { released <- first.Release(t.Context()) })
	h, err := k.acquire(s)(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	if err == nil {
		must(t, h.Release(t.Context()))
	}
	must(t, <-released)
	w.Delay(memzk.AnyOp, 0)
	settle()
	if left := w.leftovers("/h"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return err == nil
}

// The nth reply after a release is lost for each n: the next in line has the hold
// all the same.
func TestHolds_ReplyLostAtEveryStepOfAHandOver(t *testing.T) {
	for _, k := range holdKinds() {
		t.Run(k.name, func(t *testing.T) {
			first, stride := testhelp.Steps()
			for n := first; n < 60; n += stride {
				hit := false
				for _, before := range []bool{true, false} {
					bubble(t, func(t *testing.T, w *world) {
						hit = handOver(t, w, k, n, before) || hit
					})
				}
				if !hit {
					return
				}
				if t.Failed() {
					t.Fatalf("reply %d lost", n)
				}
			}
			t.Error("the hand-over does not end")
		})
	}
}

// handOver passes a hold on while one reply is lost, and reports whether it was.
func handOver(t *testing.T, w *world, k holdKind, n int, before bool) bool {
	t.Helper()
	ctx := t.Context()
	a, b := w.dial("a"), w.dial("b")
	first, err := k.acquire(a)(ctx)
	must(t, err)
	got := make(chan error, 1)
	var next anyHold
	go func() {
		var err error
		next, err = k.acquire(b)(ctx)
		got <- err
	}()
	synctest.Wait()
	struck := w.LoseReply(memzk.AnyOp, n, before)
	must(t, first.Release(ctx))
	must(t, <-got)
	if err := context.Cause(next.Context()); err != nil {
		t.Errorf("the hold ended by itself: %v", err)
	}
	must(t, next.Release(ctx))
	if left := w.leftovers("/h"); len(left) > 0 {
		t.Errorf("reply %d lost, before %v: left behind %v", n, before, left)
	}
	select {
	case <-struck:
		return true
	default:
		return false
	}
}

// Locks of all kinds whose holder is killed at every request: the next one in
// line has it in the end, and never beside a holder that believes in it.
func TestHolds_KilledAtEveryStep(t *testing.T) {
	for _, k := range holdKinds() {
		t.Run(k.name, func(t *testing.T) {
			everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
				p, s := w.start(t, "victim", n, before), w.dial("next")
				var mu sync.Mutex // mu guards inside
				inside := 0
				enter := func(by int) {
					mu.Lock()
					defer mu.Unlock()
					if inside += by; inside > 1 {
						t.Error("two holders")
					}
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					h, err := k.acquire(p.s)(p.ctx)
					if err != nil {
						return
					}
					enter(1)
					pause(h.Context(), memTimeout)
					enter(-1)
					_ = h.Release(p.ctx)
				})
				synctest.Wait()
				h, err := k.acquire(s)(t.Context())
				must(t, err)
				enter(1)
				must(t, context.Cause(h.Context()))
				enter(-1)
				must(t, h.Release(t.Context()))
				wg.Wait()
				settle()
				if left := w.leftovers("/h"); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				return !p.alive()
			})
		})
	}
}
