package recipe

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

func TestLock_UncontendedCostsThreeRequests(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		must(t, w.Create("/lock", nil))
		before := total(s)
		h, err := NewLock(s, LockConfig{Path: "/lock"}).Acquire(ctx)
		must(t, err)
		must(t, h.Release(ctx))
		if got := total(s) - before; got != 3 {
			t.Errorf("requests: got %d, want 3 (%v)", got, s.Requests())
		}
	})
}

// Many wait, one gives back: one is woken, for a number of requests that does not
// depend on how many wait.
func TestHolds_NoHerd(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, k := range []struct {
		name    string
		waiters int
		open    func(s *session.Session) func(context.Context) (*Hold, error)
		most    uint64 // requests a hand-over
	}{
		{"lock", testhelp.Rounds(200, 1000), func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewLock(s, LockConfig{Path: "/h"}).Acquire
		}, 3},
		{"write lock", 100, func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewRWLock(s, LockConfig{Path: "/h"}).Lock
		}, 3},
		// The lease is deleted, the leases listed, the place given back; the next
		// one lists the line, makes its lease, reads its place and K, and lists and
		// watches the leases.
		{"semaphore", 100, func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 1}).Acquire
		}, 9},
	} {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) { noHerd(t, w, k.open(w.dial("a")), k.waiters, k.most) })
		})
	}
}

func noHerd(t *testing.T, w *world, acquire func(context.Context) (*Hold, error), waiters int, most uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h, err := acquire(ctx)
	must(t, err)
	got := make(chan *Hold)
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if h, err := acquire(ctx); err == nil {
				got <- h
			}
		})
		synctest.Wait()
	}
	for range 3 {
		w.ResetRequests()
		must(t, h.Release(ctx))
		h = <-got
		synctest.Wait()
		r := w.Requests()
		delete(r, "ping")
		var n uint64
		for _, c := range r {
			n += c
		}
		if n > most {
			t.Errorf("one release among %d waiters: got %v, at most %d are wanted", waiters, r, most)
		}
	}
	must(t, h.Release(ctx))
	cancel()
	go func() { // more may get their turn before their cancel
		wg.Wait()
		close(got)
	}()
	for h := range got {
		_ = h.Release(context.WithoutCancel(ctx))
	}
}

func TestLock_CancelAndTimeoutLeaveNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		lock := NewLock(s, LockConfig{Path: "/lock"})
		h, err := lock.Acquire(t.Context())
		must(t, err)
		reason := errors.New("no more")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(reason) })
		if _, err := lock.Acquire(ctx); !errors.Is(err, reason) {
			t.Errorf("cancelled: got %v, want the cause", err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := lock.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("timed out: got %v, want DeadlineExceeded", err)
		}
		if got := w.leftovers("/lock"); len(got) != 1 {
			t.Errorf("contenders: got %v, want the holder alone", got)
		}
		must(t, h.Release(t.Context()))
	})
}

func TestLock_KilledSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.dial("a"), w.dial("b")
		h, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context())
		must(t, err)
		next := make(chan error, 1)
		go func() {
			_, err := NewLock(b, LockConfig{Path: "/lock"}).Acquire(t.Context())
			next <- err
		}()
		synctest.Wait()
		w.ExpireSession(a.ID())
		<-h.Context().Done()
		if cause := h.Err(); !errors.Is(cause, session.ErrExpired) && !errors.Is(cause, ErrLost) {
			t.Errorf("cause: got %v, want ErrExpired", cause)
		}
		must(t, <-next)
		if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("release after expiry: got %v, want ErrNotHeld", err)
		}
		if _, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context()); !errors.Is(err, session.ErrExpired) {
			t.Errorf("use after the session's end: got %v, want ErrExpired", err)
		}
	})
}

func TestLock_PartitionEndsTheHoldBeforeTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.dial("a"), w.dial("b")
		h, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context())
		must(t, err)
		acquired := make(chan time.Time, 1)
		go func() {
			if _, err := NewLock(b, LockConfig{Path: "/lock"}).Acquire(t.Context()); err != nil {
				t.Error(err)
			}
			acquired <- time.Now()
		}()
		synctest.Wait()
		w.Partition("a:2181")
		<-h.Context().Done()
		lost := time.Now()
		if cause := h.Err(); !errors.Is(cause, session.ErrSuspended) {
			t.Errorf("cause: got %v, want ErrSuspended", cause)
		}
		if margin := (<-acquired).Sub(lost); margin < memTimeout/3-time.Second {
			t.Errorf("the next holder came %v after the first gave up, want a third of %v", margin, memTimeout)
		}
	})
}

func TestLock_ShortDisconnectKeepsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.dial("a")
		h, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context())
		must(t, err)
		w.DropConnections("a:2181")
		time.Sleep(memTimeout)
		must(t, h.Err())
		must(t, h.Release(t.Context()))
	})
}

func TestLock_DeletedByOperator(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.dial("a")
		h, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context())
		must(t, err)
		time.Sleep(memTimeout) // long enough for the watch on our own znode
		must(t, w.Delete(h.Path()))
		<-h.Context().Done()
		if !errors.Is(h.Err(), ErrLost) || !errors.Is(h.Err(), ErrNotHeld) {
			t.Errorf("cause: got %v, want ErrLost", h.Err())
		}
	})
}

func TestLock_ForeignChildrenAndRefusedACL(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.dial("a")
		must(t, w.Create("/lock", nil))
		must(t, w.Create("/lock/backup-of-something", nil))
		must(t, w.Create("/lock/0000000000", nil))
		h, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context())
		must(t, err)
		must(t, h.Release(t.Context()))
		must(t, w.SetACL("/lock", []jute.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}}))
		if _, err := NewLock(a, LockConfig{Path: "/lock"}).Acquire(t.Context()); !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("refused ACL: got %v, want ErrNoAuth", err)
		}
		if _, err := NewLock(a, LockConfig{Path: "/lock", Dialect: "no"}).Acquire(t.Context()); !errors.Is(err, ErrDialect) {
			t.Errorf("unknown dialect: got %v, want ErrDialect", err)
		}
	})
}

func TestLock_RevokeBeforeWatch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.dial("a"), w.dial("b")
		mine := NewLock(a, LockConfig{Path: "/lock", Revocable: true})
		h, err := mine.Acquire(t.Context())
		must(t, err)
		must(t, NewLock(b, LockConfig{Path: "/lock"}).Revoke(t.Context()))
		<-h.Revoked()
		must(t, h.Err()) // releasing stays the holder's decision
		must(t, h.Release(t.Context()))
		must(t, NewLock(b, LockConfig{Path: "/lock"}).Revoke(t.Context()))
	})
}

func TestMultiLock(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, a, b := t.Context(), w.dial("a"), w.dial("b")
		one := NewLock(a, LockConfig{Path: "/one"})
		m := NewMultiLock(NewLock(a, LockConfig{Path: "/two"}), one)
		h, err := m.Acquire(ctx)
		must(t, err)
		if f := h.Fences(); len(f) != 2 || f[0] >= f[1] {
			t.Errorf("fences: got %v, want two in the order of the paths", f)
		}
		if _, err := a.Multi(ctx, h.Guards()...); err != nil {
			t.Errorf("guards: %v", err)
		}
		must(t, h.Release(ctx))
		two, err := NewLock(b, LockConfig{Path: "/two"}).Acquire(ctx)
		must(t, err)
		if _, err := m.TryAcquire(ctx); !errors.Is(err, ErrHeld) {
			t.Errorf("one is held: got %v, want ErrHeld", err)
		}
		if got := w.leftovers("/one"); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
		must(t, two.Release(ctx))
		h, err = m.Acquire(ctx)
		must(t, err)
		time.Sleep(memTimeout)
		must(t, w.Delete(h.holds[1].Path()))
		<-h.Context().Done()
		if cause := context.Cause(h.Context()); !errors.Is(cause, ErrLost) {
			t.Errorf("cause: got %v, want ErrLost", cause)
		}
		if err := h.Release(ctx); !errors.Is(err, ErrNotHeld) {
			t.Errorf("release: got %v, want ErrNotHeld", err)
		}
	})
}
