package recipe

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// leases is what the clients of a lease were told.
type leases struct {
	mu    sync.Mutex // guards what follows
	terms []LeaseTerm
	cuts  [][2]int64 // between which zxids an operator deleted the lease
}

// latest returns the largest fence that a call has returned.
func (l *leases) latest() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	fence := int64(0)
	for _, term := range l.terms {
		fence = max(fence, term.Fence)
	}
	return fence
}

// ask asks once, and checks the answer by itself.
func (l *leases) ask(t *testing.T, s *session.Session, id string) {
	began, latest := time.Now(), l.latest()
	term, err := NewLease(s, LeaseConfig{Path: "/l", Holder: id, Duration: 30 * time.Second}).TryAcquire(t.Context())
	switch {
	case errors.Is(err, ErrHeld) && term.Holder != id && began.Before(term.End):
	case errors.Is(err, ErrLost): // an operator deleted our place in line
	case err == nil && term.Fence > latest && term.Holder == id:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.terms = append(l.terms, term)
	case err == nil || session.ActionFor(err) == session.Decide:
		t.Errorf("%s at %v: %+v, %v after fence %d", id, began.UTC(), term, err, latest)
	}
}

// check checks the answers together. A term began less than a second after its end less the
// duration.
func (l *leases) check(t *testing.T) {
	slices.SortFunc(l.terms, func(a, b LeaseTerm) int { return cmp.Compare(a.Fence, b.Fence) })
	for i, term := range l.terms[min(1, len(l.terms)):] {
		last := l.terms[i]
		cut := slices.ContainsFunc(l.cuts, func(c [2]int64) bool { return c[0] < term.Fence && c[1] > last.Fence })
		if term.Fence == last.Fence || term.Holder != last.Holder && !cut && !term.End.Add(-29*time.Second).After(last.End) {
			t.Errorf("%+v after %+v", term, last)
		}
	}
	if len(l.terms) < 4 {
		t.Errorf("taken %d times", len(l.terms))
	}
}

// Clients ask at random, lose replies, connections and sessions, and an operator deletes
// their places in line and the lease. At most one holder has the lease at a time, ErrHeld
// names a holder whose lease lasts, and the fence grows with each call that succeeds.
func TestLease_Random(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r, l := rand.New(rand.NewPCG(seed, 42)), &leases{}
			var wg sync.WaitGroup
			for i := range 4 {
				id, pauses := fmt.Sprint("c", i), r.Perm(40)
				wg.Go(func() {
					var s *session.Session
					for _, pause := range pauses {
						for s == nil || s.Context().Err() != nil {
							s, _ = w.tryDial(t.Context(), id)
						}
						l.ask(t, s, id)
						time.Sleep(time.Duration(pause) * 200 * time.Millisecond)
					}
				})
			}
			for range 40 {
				id := fmt.Sprintf("c%d:2181", r.IntN(4))
				switch r.IntN(6) {
				case 0:
					w.DropConnections(id)
				case 1:
					w.LoseReply(memzk.AnyOp, 1+r.IntN(9), r.IntN(2) == 0)
				case 2:
					w.Partition(id)
					time.Sleep(time.Duration(r.IntN(20)) * time.Second)
					w.Heal(id)
				case 3:
					w.expireOne(r)
				case 4:
					w.deleteOne(r, "/l")
				case 5:
					before := w.Zxid()
					_ = w.Delete("/l/lease_holder")
					l.cuts = append(l.cuts, [2]int64{before, w.Zxid()})
				}
				time.Sleep(time.Second)
			}
			w.ClearFaults()
			wg.Wait()
			l.check(t)
			if left := w.leftovers("/l"); len(left) > 0 {
				t.Errorf("left %v", left)
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
