package recipe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/history"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// chaos disturbs the network of the clients until ctx ends. With expire it also
// ends sessions before their time, which no lease can foresee: not for tests of
// exclusion.
func chaos(ctx context.Context, w *world, rng *rand.Rand, clients int, expire bool) {
	for ctx.Err() == nil {
		addr := fmt.Sprintf("c%d:2181", rng.IntN(clients))
		switch rng.IntN(6) {
		case 0:
			w.LoseReply(memzk.AnyOp, 1+rng.IntN(10), rng.IntN(2) == 0)
		case 1:
			w.DropConnections(addr)
		case 2:
			w.Partition(addr)
		case 3:
			w.CutServerToClient(addr)
		case 4:
			w.Heal()
		case 5:
			if ids := w.SessionIDs(); expire && len(ids) > 0 && rng.IntN(4) == 0 {
				w.ExpireSession(ids[rng.IntN(len(ids))])
			}
		}
		pause(ctx, time.Duration(rng.Int64N(int64(memTimeout/2))))
	}
	w.ClearFaults()
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stormTime is how long a storm lasts, in virtual time.
const stormTime = 10 * time.Minute

// storm runs clients, each with one session after the other, while the network
// is disturbed.
func storm(t *testing.T, w *world, seed uint64, clients int, expire bool, client func(ctx context.Context, s *session.Session, id int, rng *rand.Rand)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stormTime)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { chaos(ctx, w, rand.New(rand.NewPCG(seed, 0)), clients, expire) })
	for id := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(id)+1))
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := session.Dial(ctx, session.Config{
					Servers: []string{fmt.Sprintf("c%d:2181", id)}, Timeout: memTimeout, Dial: w.Dial,
				})
				if err != nil {
					continue
				}
				client(ctx, s, id, rng)
				_ = s.Close()
			}
		})
	}
	wg.Wait()
}

// permitted is what a client may hold, and how many permits that takes.
type permitted struct {
	weight  int
	acquire func(context.Context) (*Hold, error)
	alone   bool // it takes all permits
}

// resource is what holders write, guarded by what they hold.
type resource struct {
	mu     sync.Mutex      // mu guards writes
	writes map[int64]int64 // fence by the zxid of the write
}

// write writes under a hold, which may be lost: then the guard must refuse it.
func (r *resource) write(ctx context.Context, s *session.Session, h *Hold) {
	fence := h.Fence()
	results, err := s.Multi(ctx, h.Guard(), session.SetOp("/resource", fmt.Append(nil, fence), -1))
	if err != nil {
		return // refused, or nobody knows
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes == nil {
		r.writes = map[int64]int64{}
	}
	r.writes[results[1].Stat.Mzxid] = fence
}

// check finds a write of a holder of the past behind one of a later holder.
func (r *resource) check(t *testing.T) {
	t.Helper()
	newest := int64(0)
	for _, zxid := range slices.Sorted(maps.Keys(r.writes)) {
		if r.writes[zxid] < newest {
			t.Errorf("a write under fence %d after one under %d", r.writes[zxid], newest)
		}
		newest = r.writes[zxid]
	}
}

// Locks, semaphores and read-write locks never have more holders than permits,
// as far as the holders' contexts say, and their histories are those of permits:
// a writer has all of them.
func TestHistory_Permits(t *testing.T) {
	testhelp.InTurn(t, 2)
	for name, k := range map[string]struct {
		permits int
		of      func(s *session.Session, rng *rand.Rand) permitted
	}{
		"lock": {1, func(s *session.Session, _ *rand.Rand) permitted {
			return permitted{weight: 1, acquire: NewLock(s, LockConfig{Path: "/x"}).Acquire}
		}},
		"semaphore": {2, func(s *session.Session, _ *rand.Rand) permitted {
			return permitted{weight: 1, acquire: NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 2}).Acquire}
		}},
		"rwlock": {100, func(s *session.Session, rng *rand.Rand) permitted {
			l := NewRWLock(s, LockConfig{Path: "/x"})
			if rng.IntN(3) == 0 {
				return permitted{weight: 100, acquire: l.Lock}
			}
			return permitted{weight: 1, acquire: l.RLock}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
				var h history.Log
				var r resource
				bubble(t, func(t *testing.T, w *world) {
					must(t, w.Create("/resource", nil))
					storm(t, w, seed, 4, false, func(ctx context.Context, s *session.Session, id int, rng *rand.Rand) {
						usePermits(ctx, t, s, &h, &r, func() permitted {
							p := k.of(s, rng)
							p.alone = p.weight == k.permits
							return p
						}, id, rng)
					})
				})
				h.Check(t, history.Permits(k.permits), 20)
				r.check(t)
			})
		})
	}
}

func usePermits(ctx context.Context, t *testing.T, s *session.Session, h *history.Log, r *resource, next func() permitted, id int, rng *rand.Rand) {
	t.Helper()
	fence := int64(0)
	for ctx.Err() == nil && s.Context().Err() == nil {
		p := next()
		call := h.Now()
		bounded, cancel := context.WithTimeout(ctx, 5*memTimeout)
		hold, err := p.acquire(bounded)
		cancel()
		if err != nil {
			pause(ctx, time.Second)
			continue
		}
		h.Add(id, call, p.weight, nil)
		if hold.Fence() <= fence {
			t.Errorf("fence %d after %d", hold.Fence(), fence)
		}
		fence = hold.Fence()
		if p.alone {
			r.write(hold.Context(), s, hold)
		}
		pause(hold.Context(), time.Duration(rng.Int64N(int64(memTimeout/3))))
		// From here on it counts as given back: lost, or about to be.
		call = h.Now()
		h.Add(id, call, -p.weight, nil)
		_ = hold.Release(ctx)            // lost ones say so
		if p.alone && rng.IntN(3) == 0 { // a paused process acts late
			pause(ctx, time.Duration(rng.Int64N(int64(memTimeout))))
			r.write(ctx, s, hold)
		}
	}
}

// With replies lost and connections dropped, but sessions that last, every body
// that was put is taken once, in order.
func TestHistory_QueueLosesAndDoublesNothing(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		items := testhelp.Rounds(12, 24)
		var h history.Log
		taken := map[string]int{}
		bubble(t, func(t *testing.T, w *world) {
			var mu sync.Mutex
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for p := range 2 {
				q := NewQueue(w.dial(fmt.Sprintf("p%d", p)), QueueConfig{Path: "/q"})
				wg.Go(func() {
					for i := range items / 2 {
						body := fmt.Sprintf("%d%03d", p, i)
						call := h.Now()
						if err := q.Put(t.Context(), []byte(body)); err != nil { // the last may be taken before its put returns
							t.Errorf("put: %v", err)
						}
						h.Add(p, call, history.QueueOp{Put: true, Body: body}, nil)
					}
				})
			}
			left := items
			for c := range 3 {
				q := NewQueue(w.dial(fmt.Sprintf("c%d", c)), QueueConfig{Path: "/q"})
				wg.Go(func() {
					for {
						call := h.Now()
						body, err := q.Take(ctx)
						if err != nil {
							return // cancelled: everything was taken
						}
						h.Add(10+c, call, history.QueueOp{Body: string(body)}, nil)
						mu.Lock()
						taken[string(body)]++
						if left--; left == 0 {
							cancel()
						}
						mu.Unlock()
					}
				})
			}
			rng := rand.New(rand.NewPCG(seed, 99))
			for ctx.Err() == nil {
				w.LoseReply(memzk.AnyOp, 1+rng.IntN(6), rng.IntN(2) == 0)
				pause(ctx, time.Duration(rng.Int64N(int64(time.Second))))
			}
			wg.Wait()
		})
		if len(taken) != items {
			t.Errorf("bodies taken: got %d, want %d", len(taken), items)
		}
		for body, n := range taken {
			if n != 1 {
				t.Errorf("body %s was taken %d times", body, n)
			}
		}
		h.Check(t, history.Queue, 2*items)
	})
}

// Consumers that die between Reserve and Ack lose nothing: every body is
// acknowledged at the end, and acknowledged once.
func TestStorm_ReservationsLoseNothing(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		const items = 20
		acked := map[string]int{}
		bubble(t, func(t *testing.T, w *world) {
			var mu sync.Mutex
			q := NewQueue(w.dial("producer"), QueueConfig{Path: "/q"})
			for i := range items {
				must(t, q.Put(t.Context(), fmt.Append(nil, i)))
			}
			work := func(ctx context.Context, s *session.Session, _ int, rng *rand.Rand) {
				q := NewQueue(s, QueueConfig{Path: "/q"})
				for ctx.Err() == nil && s.Context().Err() == nil {
					r, err := q.TryReserve(ctx)
					if err != nil {
						pause(ctx, time.Second)
						continue
					}
					pause(r.Context(), time.Duration(rng.Int64N(int64(memTimeout))))
					err = r.Ack(ctx)
					mu.Lock()
					if err == nil || errors.Is(err, session.ErrUnknown) {
						acked[string(r.Body())]++
					}
					mu.Unlock()
				}
			}
			storm(t, w, seed, 3, true, work)
			q = NewQueue(w.dial("last"), QueueConfig{Path: "/q"})
			for { // what the storm left
				r, err := q.TryReserve(t.Context())
				if errors.Is(err, ErrEmpty) {
					break
				}
				must(t, err)
				must(t, r.Ack(t.Context()))
				acked[string(r.Body())]++
			}
			if n, err := q.Len(t.Context()); n != 0 || err != nil {
				t.Errorf("len at the end: got %d, %v", n, err)
			}
		})
		if len(acked) != items {
			t.Errorf("acknowledged: got %d bodies, want %d", len(acked), items)
		}
		for body, n := range acked {
			if n > 1 {
				t.Logf("body %s: %d acks, of which one is certain", body, n)
			}
		}
	})
}

// Counters and values lose no change of anybody, with replies lost and all clients at
// once.
func TestStorm_CountersAndValues(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		const clients, changes = 3, 12
		bubble(t, func(t *testing.T, w *world) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.Delay(jute.OpGetData, 10*time.Millisecond) // all read before one writes
			var wg sync.WaitGroup
			for c := range clients {
				s := w.dial(fmt.Sprintf("c%d", c))
				wg.Go(func() {
					n, v := NewCounter(s, CounterConfig{Path: "/n"}), NewValue[[]byte](s, "/v")
					for i := range changes {
						if _, err := n.Add(t.Context(), 1); err != nil {
							t.Errorf("add: %v", err)
						}
						for done := false; !done; {
							old, err := v.Get(t.Context())
							if err == nil {
								done, err = v.CompareAndSet(t.Context(), old, fmt.Appendf(slices.Clip(old.Data), "%d.%d;", c, i))
							}
							if err != nil {
								t.Errorf("set: %v", err)
								return
							}
						}
					}
				})
			}
			rng := rand.New(rand.NewPCG(seed, 7))
			go func() {
				for ctx.Err() == nil {
					w.LoseReply(memzk.AnyOp, 1+rng.IntN(20), rng.IntN(2) == 0)
					pause(ctx, time.Duration(rng.Int64N(int64(time.Second))))
				}
			}()
			wg.Wait()
			cancel()
			w.ClearFaults()
			s := w.dial("last")
			if n, err := NewCounter(s, CounterConfig{Path: "/n"}).Value(t.Context()); n != clients*changes || err != nil {
				t.Errorf("counted %d, %v, want %d", n, err, clients*changes)
			}
			v, err := NewValue[[]byte](s, "/v").Get(t.Context())
			must(t, err)
			for c := range clients {
				for i := range changes {
					if n := strings.Count(string(v.Data), fmt.Sprintf("%d.%d;", c, i)); n != 1 {
						t.Errorf("change %d of client %d is there %d times: %s", i, c, n, v.Data)
					}
				}
			}
		})
	})
}
