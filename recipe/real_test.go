package recipe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// The recipes on a real ZooKeeper, one after another.

func TestReal_Lock(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	testLock(ctx, t, s, root)
}

func testLock(ctx context.Context, t *testing.T, s *session.Session, root string) {
	t.Helper()
	lock := NewLock(s, LockConfig{Path: root + "/lock"})
	h, err := lock.Acquire(ctx)
	must(t, err)
	if _, err := lock.TryAcquire(ctx); !errors.Is(err, ErrHeld) {
		t.Fatalf("TryAcquire of a held lock: got %v, want ErrHeld", err)
	}
	if _, err := lock.Acquire(h.Context()); !errors.Is(err, ErrReentrant) {
		t.Fatalf("Acquire under its own hold: got %v, want ErrReentrant", err)
	}
	next := make(chan *Hold, 1)
	go func() {
		h2, err := lock.Acquire(ctx)
		if err != nil {
			t.Error(err)
		}
		next <- h2
	}()
	must(t, h.Release(ctx))
	if cause := context.Cause(h.Context()); !errors.Is(cause, ErrReleased) {
		t.Errorf("cause after release: got %v, want ErrReleased", cause)
	}
	if err := h.Release(ctx); !errors.Is(err, ErrNotHeld) {
		t.Errorf("second release: got %v, want ErrNotHeld", err)
	}
	h2 := <-next
	if h2.Fence() <= h.Fence() {
		t.Errorf("fences: got %d after %d, want it to grow", h2.Fence(), h.Fence())
	}
	must(t, h2.Release(ctx))
	assertEmpty(ctx, t, s, root+"/lock")
}

func assertEmpty(ctx context.Context, t *testing.T, s *session.Session, path string) {
	t.Helper()
	names, _, err := s.Children(ctx, path)
	must(t, err)
	if len(names) != 0 {
		t.Errorf("%s: got children %v, want none", path, names)
	}
}

func TestReal_RWLock(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	l := NewRWLock(s, LockConfig{Path: root + "/rw"})
	r1, err := l.RLock(ctx)
	must(t, err)
	r2, err := l.RLock(ctx)
	must(t, err)
	if _, err := l.TryLock(ctx); !errors.Is(err, ErrHeld) {
		t.Fatalf("TryLock under readers: got %v, want ErrHeld", err)
	}
	if _, err := l.Lock(r1.Context()); !errors.Is(err, ErrUpgrade) {
		t.Fatalf("upgrade: got %v, want ErrUpgrade", err)
	}
	must(t, r1.Release(ctx))
	must(t, r2.Release(ctx))
	w, err := l.Lock(ctx)
	must(t, err)
	if _, err := l.TryRLock(ctx); !errors.Is(err, ErrHeld) {
		t.Fatalf("TryRLock under a writer: got %v, want ErrHeld", err)
	}
	r, err := l.Downgrade(ctx, w)
	must(t, err)
	if w.Err() == nil {
		t.Error("the write hold goes on after a downgrade")
	}
	r3, err := l.TryRLock(ctx)
	must(t, err)
	must(t, r3.Release(ctx))
	must(t, r.Release(ctx))
	assertEmpty(ctx, t, s, root+"/rw")
}

func TestReal_Semaphore(t *testing.T) {
	for _, dialect := range []string{Curator, Kazoo} {
		t.Run(dialect, func(t *testing.T) {
			ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
			sem := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 2, Dialect: dialect})
			h1, err := sem.Acquire(ctx)
			must(t, err)
			h2, err := sem.Acquire(ctx)
			must(t, err)
			if _, err := sem.TryAcquire(ctx); !errors.Is(err, ErrHeld) {
				t.Fatalf("third permit: got %v, want ErrHeld", err)
			}
			other := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 3, Dialect: dialect})
			_, err = other.Acquire(ctx)
			p, ok := errors.AsType[*PermitsError](err)
			if !ok || p.Want != 3 || p.Have != "2" || !errors.Is(err, ErrPermits) {
				t.Fatalf("another K: got %v, want a PermitsError with 3 and 2", err)
			}
			must(t, h1.Release(ctx))
			h3, err := sem.Acquire(ctx)
			must(t, err)
			must(t, h2.Release(ctx))
			must(t, h3.Release(ctx))
		})
	}
}

func TestReal_Queues(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	q := NewQueue(s, QueueConfig{Path: root + "/q", MaxLen: 4})
	for i := range 4 {
		must(t, q.Put(ctx, fmt.Append(nil, i)))
	}
	if err := q.Put(ctx, nil); !errors.Is(err, ErrFull) {
		t.Fatalf("put into a full queue: got %v, want ErrFull", err)
	}
	r, err := q.Reserve(ctx)
	must(t, err)
	for want := 1; want < 4; want++ {
		body, err := q.Take(ctx)
		must(t, err)
		if string(body) != strconv.Itoa(want) {
			t.Errorf("take: got %q, want %d", body, want)
		}
	}
	if _, err := q.TryTake(ctx); !errors.Is(err, ErrEmpty) {
		t.Fatalf("take of a reserved item: got %v, want ErrEmpty", err)
	}
	must(t, r.Return(ctx))
	r, err = q.TryReserve(ctx)
	must(t, err)
	if string(r.Body()) != "0" {
		t.Errorf("reserve: got %q, want 0", r.Body())
	}
	must(t, r.Ack(ctx))
	if err := r.Ack(ctx); !errors.Is(err, ErrNotHeld) {
		t.Errorf("second ack: got %v, want ErrNotHeld", err)
	}
	if err := q.Put(ctx, make([]byte, maxBody+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("put of a large body: got %v, want ErrTooLarge", err)
	}
	must(t, q.Put(ctx, make([]byte, maxBody)))
	if n, err := q.Purge(ctx); n != 1 || err != nil {
		t.Errorf("purge: got %d, %v, want 1", n, err)
	}
	if n, err := q.Len(ctx); n != 0 || err != nil {
		t.Errorf("len: got %d, %v, want 0", n, err)
	}
}

func TestReal_PriorityQueues(t *testing.T) {
	for _, reserve := range []bool{false, true} {
		ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
		q := NewPriorityQueue(s, PriorityQueueConfig{Path: root + "/pq", Reserve: reserve})
		for _, p := range []int{500, 7, 100, 7} {
			must(t, q.Put(ctx, fmt.Append(nil, p), p))
		}
		if err := q.Put(ctx, nil, 1000); !errors.Is(err, ErrPriority) {
			t.Errorf("priority 1000: got %v, want ErrPriority", err)
		}
		for _, want := range []string{"7", "7", "100", "500"} {
			body, err := q.TryTake(ctx)
			must(t, err)
			if string(body) != want {
				t.Errorf("take: got %q, want %s", body, want)
			}
		}
		_, err := q.TryReserve(ctx)
		if want := map[bool]error{false: ErrDialect, true: ErrEmpty}[reserve]; !errors.Is(err, want) {
			t.Errorf("reserve: got %v, want %v", err, want)
		}
	}
}

func TestReal_Barriers(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	b := NewBarrier(s, root+"/b/arrier")
	must(t, b.Wait(ctx))
	must(t, b.Close(ctx))
	must(t, b.Close(ctx))
	waited := make(chan error, 1)
	go func() { waited <- b.Wait(ctx) }()
	must(t, b.Open(ctx))
	must(t, <-waited)
	must(t, b.Open(ctx))

	const n = 3
	done := make(chan error, n)
	for range n {
		go func() {
			d := NewDoubleBarrier(s, DoubleBarrierConfig{Path: root + "/double", N: n})
			h, err := d.Enter(ctx)
			if err == nil {
				err = d.Leave(ctx, h)
			}
			done <- err
		}()
	}
	for range n {
		must(t, <-done)
	}
	assertEmpty(ctx, t, s, root+"/double")
}

func TestReal_Counter(t *testing.T) {
	for _, dialect := range []string{CounterLong, CounterShared, CounterText} {
		ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
		c := NewCounter(s, CounterConfig{Path: root + "/c", Dialect: dialect})
		for _, step := range []struct{ delta, want int64 }{{5, 5}, {-7, -2}, {0, -2}, {260, 258}} {
			if got, err := c.Add(ctx, step.delta); got != step.want || err != nil {
				t.Errorf("%s: add %d: got %d, %v, want %d", dialect, step.delta, got, err, step.want)
			}
		}
		if ok, err := c.CompareAndSet(ctx, 1, 2); ok || err != nil {
			t.Errorf("compare with another value: got %v, %v, want false", ok, err)
		}
		if ok, err := c.CompareAndSet(ctx, 258, 2); !ok || err != nil {
			t.Errorf("compare and set: got %v, %v, want true", ok, err)
		}
	}
}
