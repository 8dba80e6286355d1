package recipe

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// A real ensemble of three loses its leader while clients hold locks, count and
// pass on items: nothing is counted twice or lost, and no two hold the lock.
func TestEnsemble_LeaderKilled(t *testing.T) {
	e := zktest.StartEnsemble(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	addrs := make([]string, 0, 3)
	for _, s := range e.Servers {
		addrs = append(addrs, s.Addr())
	}
	const clients, rounds = 4, 12
	var inside, done atomic.Int32
	var mu sync.Mutex // mu guards taken
	taken := map[string]int{}
	half := make(chan struct{})
	var wg sync.WaitGroup
	for id := range clients {
		s, err := session.Dial(ctx, session.Config{Servers: addrs, Timeout: time.Minute})
		must(t, err)
		defer s.Close()
		wg.Go(func() {
			lock := NewLock(s, LockConfig{Path: "/lock"})
			count := NewCounter(s, CounterConfig{Path: "/count"})
			q := NewQueue(s, QueueConfig{Path: "/q"})
			for round := range rounds {
				h, err := lock.Acquire(ctx)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				leave := sync.OnceFunc(func() { inside.Add(-1) })
				context.AfterFunc(h.Context(), leave) // it may be lost, too
				if _, err := count.Add(ctx, 1); err != nil {
					t.Errorf("add: %v", err)
				}
				leave()
				if err := h.Release(ctx); err != nil {
					t.Logf("release: %v", err) // lost while there was no quorum
				}
				if err := q.Put(ctx, fmt.Appendf(nil, "%d-%d", id, round)); err != nil {
					t.Errorf("put: %v", err)
				}
				body, err := q.Take(ctx)
				if err != nil {
					t.Errorf("take: %v", err)
				}
				mu.Lock()
				taken[string(body)]++
				mu.Unlock()
				if done.Add(1) == clients*rounds/2 {
					close(half)
				}
			}
		})
	}
	select {
	case <-half:
		e.Leader(t).Kill(t)
	case <-ctx.Done():
		t.Error("the clients do not get on")
	}
	wg.Wait()
	s, err := session.Dial(ctx, session.Config{Servers: addrs, Timeout: time.Minute})
	must(t, err)
	defer s.Close()
	must(t, s.Sync(ctx, "/count"))
	if n, err := NewCounter(s, CounterConfig{Path: "/count"}).Value(ctx); n != clients*rounds || err != nil {
		t.Errorf("count: got %d, %v, want %d", n, err, clients*rounds)
	}
	if len(taken) != clients*rounds {
		t.Errorf("bodies: got %d different ones, want %d", len(taken), clients*rounds)
	}
}
