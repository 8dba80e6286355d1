package recipe

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
)

// BenchmarkCompare does the same with ours, kazoo and Curator on one server, in
// turn, in rounds of which the first warms up, and reports the medians:
//
//	go test -run - -bench Compare ./recipe
func BenchmarkCompare(b *testing.B) {
	const rounds, n = 7, 500
	addr := zktest.Shared(b).Addr()
	kazoo, curator := peers.Kazoo(b, addr), peers.Curator(b, addr)
	for _, c := range []struct {
		what string
		ours func(b *testing.B, path string, n int) time.Duration
	}{
		{"lock", compareLock}, {"contended", compareContended}, {"put", comparePut}, {"take", compareTake},
	} {
		b.Run(c.what, func(b *testing.B) {
			var took [3][]float64 // microseconds each
			for round := range rounds {
				path := fmt.Sprintf("%s/%s/%d", zktest.Root(b), c.what, round)
				one := [3]time.Duration{
					c.ours(b, path+"-ours", n),
					comparePeer(b, kazoo, c.what, path+"-kazoo", n),
					comparePeer(b, curator, c.what, path+"-curator", n),
				}
				for i, d := range one {
					if round > 0 {
						took[i] = append(took[i], float64(d.Nanoseconds())/1000/n)
					}
				}
			}
			for b.Loop() { // it has been measured
			}
			b.ReportMetric(0, "ns/op")
			for i, name := range []string{"ours", "kazoo", "curator"} {
				slices.Sort(took[i])
				b.ReportMetric(took[i][len(took[i])/2], name+"-µs/op")
			}
		})
	}
}

func comparePeer(b *testing.B, p *peers.Peer, what, path string, n int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	p.Tell(b, "bench %s %s %d", what, path, n)
	var seconds float64
	if line := p.Line(ctx, b); line != "" {
		if _, err := fmt.Sscanf(line, "took %g", &seconds); err != nil {
			b.Fatalf("the peer said %q: %v", line, err)
		}
	}
	return time.Duration(seconds * float64(time.Second))
}

func compareLock(b *testing.B, path string, n int) time.Duration {
	b.Helper()
	lock := NewLock(dialReal(b), LockConfig{Path: path})
	began := time.Now()
	for range n {
		compareOnce(b, lock)
	}
	return time.Since(began)
}

func compareOnce(b *testing.B, lock *Lock) {
	h, err := lock.Acquire(b.Context())
	if err == nil {
		err = h.Release(b.Context())
	}
	if err != nil {
		b.Error(err)
	}
}

// compareContended is n locks by 50 contenders, each with a session of its own.
func compareContended(b *testing.B, path string, n int) time.Duration {
	b.Helper()
	const contenders = 50
	locks := make([]*Lock, contenders)
	for i := range locks {
		locks[i] = NewLock(dialReal(b), LockConfig{Path: path})
	}
	var wg sync.WaitGroup
	began := time.Now()
	for _, lock := range locks {
		wg.Go(func() {
			for range n / contenders {
				compareOnce(b, lock)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func comparePut(b *testing.B, path string, n int) time.Duration {
	b.Helper()
	q := NewQueue(dialReal(b), QueueConfig{Path: path})
	began := time.Now()
	for range n {
		must(b, q.Put(b.Context(), make([]byte, 100)))
	}
	return time.Since(began)
}

func compareTake(b *testing.B, path string, n int) time.Duration {
	b.Helper()
	q := NewQueue(dialReal(b), QueueConfig{Path: path})
	for range n {
		must(b, q.Put(b.Context(), make([]byte, 100)))
	}
	began := time.Now()
	for range n {
		_, err := q.Take(b.Context())
		must(b, err)
	}
	return time.Since(began)
}
