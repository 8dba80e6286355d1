package recipe

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// Benchmarks against one real ZooKeeper. Those named after kazoo and Curator run those
// clients on the same server: the benchmark sends each a line per operation, and the
// client measures the time itself.

func BenchmarkLock_Uncontended(b *testing.B) {
	ctx, s, root := b.Context(), dialReal(b), zktest.Root(b)
	lock := NewLock(s, LockConfig{Path: root + "/lock"})
	warm(b, lock)
	before := total(s)
	for b.Loop() {
		h, err := lock.Acquire(ctx)
		must(b, err)
		must(b, h.Release(ctx))
	}
	b.ReportMetric(float64(total(s)-before)/float64(b.N), "requests/op")
}

// warm makes the parents and the first connection.
func warm(b *testing.B, lock *Lock) {
	b.Helper()
	h, err := lock.Acquire(b.Context())
	must(b, err)
	must(b, h.Release(b.Context()))
}

// A release by one session and an acquire that waits in another.
func BenchmarkLock_HandOver(b *testing.B) {
	ctx, root := b.Context(), zktest.Root(b)
	locks := [2]*Lock{}
	for i := range locks {
		locks[i] = NewLock(dialReal(b), LockConfig{Path: root + "/lock"})
	}
	watcher := dialReal(b)
	warm(b, locks[0])
	h, err := locks[0].Acquire(ctx)
	must(b, err)
	var latency time.Duration
	for i := 1; b.Loop(); i++ {
		got := make(chan *Hold)
		go func() {
			h, err := locks[i%2].Acquire(ctx)
			if err != nil {
				b.Error(err)
			}
			got <- h
		}()
		awaitWatches(b, watcher, root+"/lock", 2)
		start := time.Now()
		go func() { _ = h.Release(ctx) }()
		h = <-got
		latency += time.Since(start)
	}
	must(b, h.Release(ctx))
	b.ReportMetric(float64(latency.Microseconds())/float64(b.N), "µs/hand-over")
}

// awaitWatches waits until n contenders stand in line.
func awaitWatches(b *testing.B, s *session.Session, path string, n int) {
	b.Helper()
	for {
		names, _, watch, err := s.ChildrenW(b.Context(), path)
		must(b, err)
		if len(names) >= n {
			watch.Stop()
			return
		}
		must(b, watch.Wait(b.Context()))
	}
}

func BenchmarkLock_50Contenders(b *testing.B) {
	const contenders = 50
	ctx, root := b.Context(), zktest.Root(b)
	locks := make([]*Lock, contenders)
	for i := range locks {
		locks[i] = NewLock(dialReal(b), LockConfig{Path: root + "/lock"})
	}
	warm(b, locks[0])
	turns := make(chan struct{})
	var wg sync.WaitGroup
	for _, lock := range locks {
		wg.Go(func() {
			for range turns {
				h, err := lock.Acquire(ctx)
				if err == nil {
					err = h.Release(ctx)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		turns <- struct{}{}
	}
	close(turns)
	wg.Wait()
}

func BenchmarkQueue_Put(b *testing.B) {
	ctx, q := b.Context(), NewQueue(dialReal(b), QueueConfig{Path: zktest.Root(b) + "/q"})
	body := bytes.Repeat([]byte("x"), 100)
	must(b, q.Put(ctx, body))
	for b.Loop() {
		must(b, q.Put(ctx, body))
	}
}

func BenchmarkQueue_Take(b *testing.B) {
	ctx, q := b.Context(), NewQueue(dialReal(b), QueueConfig{Path: zktest.Root(b) + "/q"})
	fill(ctx, b, q)
	left := queueFill
	for b.Loop() {
		if left == 0 {
			b.StopTimer()
			fill(ctx, b, q)
			left = queueFill
			b.StartTimer()
		}
		_, err := q.Take(ctx)
		must(b, err)
		left--
	}
}

const queueFill = 1000

func fill(ctx context.Context, b *testing.B, q *Queue) {
	b.Helper()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range queueFill / 10 {
				if err := q.Put(ctx, make([]byte, 100)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
