package recipe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// Clients ask at random, lose replies, connections and sessions: nobody gets the lease
// before the end of another's, and the fences grow.
func TestLease_Random(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r := rand.New(rand.NewPCG(seed, 42))
			var mu sync.Mutex
			var last LeaseTerm
			taken := 0
			var wg sync.WaitGroup
			for i := range 4 {
				id, pauses := fmt.Sprint("c", i), r.Perm(40)
				wg.Go(func() {
					var s *session.Session
					for _, pause := range pauses {
						if s == nil || s.Context().Err() != nil {
							s = w.dial(id)
						}
						term, err := NewLease(s, LeaseConfig{Path: "/l", Holder: id, Duration: 30 * time.Second}).TryAcquire(t.Context())
						mu.Lock()
						switch {
						case errors.Is(err, ErrHeld) && term.Holder != id:
						case err == nil:
							if taken++; term.Fence <= last.Fence || term.Holder != last.Holder && time.Now().Before(last.End) {
								t.Errorf("seed %d: %s at %v: %+v after %+v", seed, id, time.Now().UTC(), term, last)
							}
							last = term
						case session.ActionFor(err) == session.Decide:
							t.Errorf("seed %d: %s: %v", seed, id, err)
						}
						mu.Unlock()
						time.Sleep(time.Duration(pause) * 200 * time.Millisecond)
					}
				})
			}
			for range 30 {
				switch id := fmt.Sprintf("c%d:2181", r.IntN(4)); r.IntN(3) {
				case 0:
					w.DropConnections(id)
				case 1:
					w.LoseReply(memzk.AnyOp, 1+r.IntN(9), r.IntN(2) == 0)
				case 2:
					w.Partition(id)
					time.Sleep(time.Duration(r.IntN(20)) * time.Second)
					w.Heal(id)
				}
				time.Sleep(time.Second)
			}
			w.ClearFaults()
			wg.Wait()
			if taken < 4 {
				t.Errorf("seed %d: taken %d times", seed, taken)
			}
			if left := w.leftovers("/l"); len(left) > 0 {
				t.Errorf("seed %d: left %v", seed, left)
			}
		})
	})
}

// The end of another's lease, a layout that we do not know, and a lock that vanishes.
func TestLease_Cases(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		a := NewLease(s, LeaseConfig{Path: "/l", Holder: "a", Duration: time.Hour})
		b := NewLease(s, LeaseConfig{Path: "/l", Holder: "b", Duration: time.Hour})
		if _, err := a.Holder(ctx); !errors.Is(err, session.ErrNoNode) {
			t.Errorf("a lease that nobody had: %v", err)
		}
		must(t, second(a.TryAcquire(ctx)))
		time.Sleep(time.Hour - time.Second)
		if term, err := b.TryAcquire(ctx); !errors.Is(err, ErrHeld) || term.Holder != "a" {
			t.Errorf("b a second before the end: %+v, %v", term, err)
		}
		time.Sleep(time.Second)
		must(t, second(b.TryAcquire(ctx)))
		for _, data := range []string{`{"version": 2, "holder": "b", "end": "2000-01-01T00:00:00"}`, `{"version": 1, "end": "soon"}`, `[]`, ``} {
			must(t, w.Set("/l/lease_holder", []byte(data)))
			if _, err := a.TryAcquire(ctx); !errors.Is(err, ErrFormat) {
				t.Errorf("%s: %v", data, err)
			}
		}
		must(t, w.Set("/l/lease_holder", []byte(`{"version": 1, "holder": "b", "end": "2000-01-01T00:00:00"}`)))
		hold, err := NewLock(s, LockConfig{Path: "/l", Dialect: Kazoo}).Acquire(ctx)
		must(t, err)
		must(t, w.Delete(hold.Path()))
		if _, err := a.take(ctx, hold); !errors.Is(err, ErrLost) {
			t.Errorf("without the lock: %v", err)
		}
	})
}

// kazoo's NonBlockingLease and ours, in both orders.
func TestInterop_Lease(t *testing.T) {
	ctx := testContext(t)
	peer := peers.Kazoo(t, zktest.Shared(t).Addr())
	s, root := dialReal(t), zktest.Root(t)
	ours := func(path string) error {
		return second(NewLease(s, LeaseConfig{Path: root + path, Holder: "ours", Duration: time.Hour}).TryAcquire(ctx))
	}
	must(t, ours("/a"))
	peer.Tell(t, "lease %s/a theirs 3600", root)
	peer.Expect(ctx, t, "lease False")
	peer.Tell(t, "lease %s/a ours 3600", root) // the same holder
	peer.Expect(ctx, t, "lease True")
	must(t, ours("/a"))
	peer.Tell(t, "lease %s/b theirs 3600", root)
	peer.Expect(ctx, t, "lease True")
	if err := ours("/b"); !errors.Is(err, ErrHeld) {
		t.Errorf("kazoo holds it: %v", err)
	}
	peer.Tell(t, "lease %s/b theirs 0", root)
	peer.Expect(ctx, t, "lease True")
	must(t, ours("/b"))
}
