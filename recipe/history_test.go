package recipe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
)

// history records operations in the order of their calls and returns, counted
// instead of timed: virtual time stands still between them.
type history struct {
	mu  sync.Mutex // mu guards what follows
	now int64
	ops []porcupine.Operation
}

func (h *history) tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	return h.now
}

func (h *history) add(client int, call int64, input, output any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: input, Call: call, Output: output, Return: h.now})
}

func (h *history) check(t *testing.T, model porcupine.Model) {
	t.Helper()
	if result := porcupine.CheckOperationsTimeout(model, h.ops, 20*time.Second); result == porcupine.Illegal {
		t.Errorf("the history of %d operations is not linearizable", len(h.ops))
	}
}

// permitModel is K permits: acquire needs one that is free.
func permitModel(k int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			n := state.(int) + input.(int) // +1 acquire, -1 release
			return n >= 0 && n <= k, n
		},
	}
}

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

// Locks and semaphores never have more holders than permits, as far as the
// holders' contexts say, and their histories are those of K permits.
func TestHistory_Permits(t *testing.T) {
	for _, k := range []int{1, 2} {
		for _, seed := range seeds(t, 3) {
			t.Run(fmt.Sprintf("k=%d/%s", k, seedName(seed)), func(t *testing.T) {
				var h history
				bubble(t, func(t *testing.T, w *world) {
					storm(t, w, seed, 4, false, func(ctx context.Context, s *session.Session, id int, rng *rand.Rand) {
						acquire := NewLock(s, LockConfig{Path: "/x"}).Acquire
						if k > 1 {
							acquire = NewSemaphore(s, SemaphoreConfig{Path: "/x", K: k}).Acquire
						}
						usePermits(ctx, t, s, &h, acquire, id, rng)
					})
				})
				if len(h.ops) < 20 {
					t.Errorf("only %d operations: the storm is too strong to show anything", len(h.ops))
				}
				h.check(t, permitModel(k))
			})
		}
	}
}

func usePermits(ctx context.Context, t *testing.T, s *session.Session, h *history, acquire func(context.Context) (*Hold, error), id int, rng *rand.Rand) {
	t.Helper()
	fence := int64(0)
	for ctx.Err() == nil && s.Context().Err() == nil {
		call := h.tick()
		bounded, cancel := context.WithTimeout(ctx, 5*memTimeout)
		hold, err := acquire(bounded)
		cancel()
		if err != nil {
			pause(ctx, time.Second)
			continue
		}
		h.add(id, call, 1, nil)
		if hold.Fence() <= fence {
			t.Errorf("fence %d after %d", hold.Fence(), fence)
		}
		fence = hold.Fence()
		pause(hold.Context(), time.Duration(rng.Int64N(int64(memTimeout/3))))
		// From here on it counts as given back: lost, or about to be.
		call = h.tick()
		h.add(id, call, -1, nil)
		_ = hold.Release(ctx) // lost ones say so
	}
}

// queueOp is a put of a body, or a take that returned one.
type queueOp struct {
	put  bool
	body string
}

// queueModel is a queue, first in, first out. A take whose outcome is unknown has
// body "?": it took what was first, or nothing.
var queueModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		q, op := state.(string), input.(queueOp)
		switch {
		case op.put:
			return true, q + op.body
		case op.body == "?":
			if q == "" {
				return true, q
			}
			return true, q[4:]
		}
		return len(q) >= 4 && q[:4] == op.body, q[min(4, len(q)):]
	},
}

// With replies lost and connections dropped, but sessions that last, every body
// that was put is taken once, in order.
func TestHistory_QueueLosesAndDoublesNothing(t *testing.T) {
	for _, seed := range seeds(t, 6) {
		t.Run(seedName(seed), func(t *testing.T) {
			const items = 24
			var h history
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
							call := h.tick()
							if err := q.Put(t.Context(), []byte(body)); err != nil { // the last may be taken before its put returns
								t.Errorf("put: %v", err)
							}
							h.add(p, call, queueOp{true, body}, nil)
						}
					})
				}
				left := items
				for c := range 3 {
					q := NewQueue(w.dial(fmt.Sprintf("c%d", c)), QueueConfig{Path: "/q"})
					wg.Go(func() {
						for {
							call := h.tick()
							body, err := q.Take(ctx)
							if err != nil {
								return // cancelled: everything was taken
							}
							h.add(10+c, call, queueOp{false, string(body)}, nil)
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
			h.check(t, queueModel)
		})
	}
}

// Consumers that die between Reserve and Ack lose nothing: every body is
// acknowledged at the end, and acknowledged once.
func TestStorm_ReservationsLoseNothing(t *testing.T) {
	for _, seed := range seeds(t, 4) {
		t.Run(seedName(seed), func(t *testing.T) {
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
}
