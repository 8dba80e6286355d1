package recipe

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// A lock and a semaphore leave no znodes behind when their last user has gone.
func TestParents_AreContainers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		for _, acquire := range []func(context.Context) (*Hold, error){
			NewLock(s, LockConfig{Path: "/locks/job-1"}).Acquire,
			NewSemaphore(s, SemaphoreConfig{Path: "/permits/job-1", K: 2}).Acquire,
		} {
			h, err := acquire(t.Context())
			must(t, err)
			must(t, h.Release(t.Context()))
		}
		time.Sleep(time.Hour)
		if w.Exists("/locks") || w.Exists("/permits") {
			t.Errorf("left behind: %v", w.Tree())
		}
	})
}

// A server without containers gets persistent parents.
func TestParents_WithoutContainers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.RefuseWith(jute.OpCreateContainer, jute.ErrCodeUnimplemented)
		s := w.dial("a")
		h, err := NewLock(s, LockConfig{Path: "/locks/job-1"}).Acquire(t.Context())
		must(t, err)
		must(t, h.Release(t.Context()))
		m, err := NewSemaphore(s, SemaphoreConfig{Path: "/permits/job-1", K: 2}).Acquire(t.Context())
		must(t, err)
		must(t, m.Release(t.Context()))
	})
}

func TestValue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := NewValue[[]byte](w.dial("a"), "/v")
		seen := make(chan string, 10)
		go func() {
			_ = NewValue[[]byte](w.dial("b"), "/v").Follow(t.Context(), func(v Versioned[[]byte]) { seen <- string(v.Data) })
		}()
		synctest.Wait()
		old, err := v.Get(t.Context())
		must(t, err)
		w.LoseReply(jute.OpMulti, 1, false)
		if ok, err := v.CompareAndSet(t.Context(), old, []byte("one")); !ok || err != nil {
			t.Errorf("the first set, whose reply is lost: %v, %v", ok, err)
		}
		if ok, err := v.CompareAndSet(t.Context(), old, []byte("two")); ok || err != nil {
			t.Errorf("a set with an old version: %v, %v", ok, err)
		}
		now, err := v.Get(t.Context())
		must(t, err)
		if ok, err := v.CompareAndSet(t.Context(), now, []byte("three")); !ok || err != nil {
			t.Errorf("the next set: %v, %v", ok, err)
		}
		synctest.Wait()
		for _, want := range []string{"", "one", "three"} {
			if got := <-seen; got != want {
				t.Errorf("followed %q, want %q", got, want)
			}
		}
	})
}

// A multi-lock holds read-write locks and permits, too.
func TestMultiLock_OfAnyKind(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		rw := NewRWLock(s, LockConfig{Path: "/rw"})
		m := NewMultiLock(NewSemaphore(s, SemaphoreConfig{Path: "/sem", K: 1}), rw.Writer(), NewLock(s, LockConfig{Path: "/l"}))
		h, err := m.Acquire(t.Context())
		must(t, err)
		if _, err := rw.TryRLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("a reader beside it: %v", err)
		}
		must(t, h.Release(t.Context()))
	})
}

// A request to give back reaches all readers.
func TestRWLock_Revoke(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cfg := LockConfig{Path: "/rw", Revocable: true}
		var holds []*Hold
		for _, name := range []string{"a", "b"} {
			h, err := NewRWLock(w.dial(name), cfg).RLock(t.Context())
			must(t, err)
			holds = append(holds, h)
		}
		must(t, NewRWLock(w.dial("c"), cfg).Revoke(t.Context()))
		for _, h := range holds {
			<-h.Revoked()
			must(t, h.Release(t.Context()))
		}
	})
}

// An item that is reserved too often becomes a dead letter, once, whatever reply is
// lost.
func TestQueue_DeadLetters(t *testing.T) {
	for _, lost := range []int{0, 1, 2} { // 0: none; before it was applied; after
		bubble(t, func(t *testing.T, w *world) {
			s := w.dial("a")
			q := NewQueue(s, QueueConfig{Path: "/q", MaxAttempts: 2})
			must(t, q.Put(t.Context(), []byte("poison")))
			must(t, q.Put(t.Context(), []byte("good")))
			for range 2 {
				r, err := q.Reserve(t.Context())
				must(t, err)
				if string(r.Body()) != "poison" {
					t.Fatalf("reserved %q", r.Body())
				}
				must(t, r.Return(t.Context()))
			}
			list, err := q.Items(t.Context(), 0)
			if err != nil || len(list) != 2 || list[0].Attempts != 2 || list[0].Reserved || list[0].Size != 6 {
				t.Errorf("items %+v, %v", list, err)
			}
			if body, err := q.Peek(t.Context()); err != nil || string(body) != "poison" {
				t.Errorf("peek %q, %v", body, err)
			}
			if lost > 0 {
				w.LoseReply(jute.OpMulti, 1, lost == 1)
			}
			r, err := q.Reserve(t.Context())
			must(t, err)
			if string(r.Body()) != "good" {
				t.Errorf("reserved %q", r.Body())
			}
			must(t, r.Ack(t.Context()))
			dead := NewQueue(s, QueueConfig{Path: "/q-dead"})
			if n, err := dead.Len(t.Context()); n != 1 || err != nil {
				t.Errorf("%d dead letters, %v", n, err)
			}
			if n, err := q.Len(t.Context()); n != 0 || err != nil {
				t.Errorf("%d items are left, %v", n, err)
			}
		})
	}
}

// A returned item keeps its place, also for a consumer that has listed the items behind it,
// and for one that took the reservation over. Neither lists the queue again for it.
func TestQueue_ReturnKeepsThePlace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		q := NewIDQueue(s, QueueConfig{Path: "/q"})
		var held []*Reservation
		for _, body := range []string{"1", "2", "3", "4", "5"} {
			must(t, q.Put(ctx, "id", []byte(body)))
		}
		for range 3 {
			r, err := q.Reserve(ctx)
			must(t, err)
			held = append(held, r)
		}
		held[1].Keep()
		over, err := q.TakeOver(ctx, held[1].Name())
		must(t, err)
		for _, r := range []*Reservation{held[2], held[0], over} {
			must(t, r.Return(ctx))
		}
		var got []byte
		lists := s.Requests()["getChildren2"]
		for range 5 {
			body, err := q.TryTake(ctx)
			must(t, err)
			got = append(got, body...)
		}
		if again := s.Requests()["getChildren2"] - lists; string(got) != "12345" || lists == 0 || again > 0 {
			t.Errorf("took %s, listed %d times and then %d", got, lists, again)
		}
	})
}

// Counter.Follow passes each number on. A text that is no number ends it with an error.
func TestCounter_Follow(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		must(t, w.Create("/n", []byte("1")))
		var got []int64
		ended := make(chan error, 1)
		c := NewCounter(w.dial("a"), CounterConfig{Path: "/n", Dialect: CounterText})
		go func() { ended <- c.Follow(t.Context(), func(n int64) { got = append(got, n) }) }()
		settle()
		must(t, w.Set("/n", []byte("2")))
		settle()
		must(t, w.Set("/n", []byte("many")))
		settle()
		select {
		case err := <-ended:
			if !errors.Is(err, ErrFormat) || !slices.Equal(got, []int64{1, 2}) {
				t.Errorf("got %v, %v", got, err)
			}
		default:
			t.Error("it does not end")
		}
	})
}

// A value that was deleted and made again is another one, also at the same version.
func TestValue_FollowSeesAnotherZnode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		must(t, w.Create("/v", []byte("one")))
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		s := w.dial("a")
		go func() {
			defer close(ended)
			_ = NewValue[[]byte](s, "/v").Follow(ctx, func(v Versioned[[]byte]) { got = append(got, string(v.Data)) })
		}()
		settle()
		w.Delay(jute.OpGetData, time.Second) // both happen before the next read
		must(t, w.Delete("/v"))
		must(t, w.Create("/v", []byte("two")))
		settle()
		cancel()
		<-ended
		if !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("got %q", got)
		}
	})
}
