package recipe

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// What happens between two requests of a recipe.

// between runs do when a request of the client comes that has op and names what: before
// the server sees the request. It does so once. The result is closed when do has
// returned.
func (w *world) between(client string, op int32, what string, do func()) <-chan struct{} {
	var once sync.Once
	done := make(chan struct{})
	w.Hold(func(h memzk.Held) <-chan struct{} {
		if h.Addr != client+":2181" || h.Op != op || !bytes.Contains(h.Body, []byte(what)) {
			return nil
		}
		var mine <-chan struct{}
		once.Do(func() {
			mine = done
			go func() {
				defer close(done)
				do()
			}()
		})
		return mine
	})
	return done
}

// remove deletes the only contender of a session below dir.
func (w *world) remove(by *session.Session, dir string, owner *session.Session) {
	w.t.Helper()
	names, _, err := by.Children(w.t.Context(), dir)
	must(w.t, err)
	for _, name := range names {
		st, ok, err := by.Exists(w.t.Context(), child(dir, name))
		must(w.t, err)
		if ok && st.EphemeralOwner == owner.ID() {
			must(w.t, by.Delete(w.t.Context(), child(dir, name), -1))
		}
	}
}

// A site dies after the coordinator has read its vote, and before it decides.
func TestTxn_VoteVanishesBeforeTheDecision(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		site, c := w.dial("site"), w.dial("coordinator")
		x := NewTxn(c, "/txn/1")
		must(t, x.Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}))
		_, err := NewTxn(site, "/txn/1").Vote(ctx, "a", Commit)
		must(t, err)
		died := w.between("coordinator", jute.OpMulti, "/txn/1/tx_result", func() { w.ExpireSession(site.ID()) })
		d, err := x.Coordinate(ctx)
		<-died
		if must(t, err); d != Abort {
			t.Errorf("%s without the vote of a site", d)
		}
	})
}

// The znode of a candidate is deleted after it was its turn, and before it holds.
func TestCandidates_OwnZnodeDeletedBeforeTheHold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		s, desk := w.dial("candidate"), w.dial("desk")
		ps, err := Candidates("/h", "", nil)
		must(t, err)
		p, err := ps.Join(ctx, s, nil)
		must(t, err)
		must(t, p.Wait(ctx))
		gone := w.between("candidate", jute.OpGetData, "latch-", func() { w.remove(desk, "/h", s) })
		h, err := p.Hold(ctx)
		<-gone
		if !errors.Is(err, ErrLost) {
			t.Errorf("holds %v, error %v", h, err)
		}
	})
}

// The znode of a waiter is deleted. When the holder leaves, the waiter does not
// acquire, although no contender stands before it.
func TestLock_WaiterWithoutItsZnode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		s, desk := w.dial("waiter"), w.dial("desk")
		first, err := NewLock(w.dial("holder"), LockConfig{Path: "/h"}).Acquire(ctx)
		must(t, err)
		got := make(chan error, 1)
		go func() { got <- second(NewLock(s, LockConfig{Path: "/h"}).Acquire(ctx)) }()
		synctest.Wait()
		w.remove(desk, "/h", s)
		// A third contender keeps the path, and comes after the waiter.
		third := make(chan error, 1)
		go func() { third <- second(NewLock(w.dial("third"), LockConfig{Path: "/h"}).Acquire(ctx)) }()
		synctest.Wait()
		must(t, first.Release(ctx))
		if err := <-got; !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
		must(t, <-third)
	})
}

// A contender for permits whose turn is taken away counts no more: it and the next one
// would wait for each other.
func TestSemaphore_TurnDeletedBeforeTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		a, b, desk := w.dial("a"), w.dial("b"), w.dial("desk")
		semaphore := func(s *session.Session) *Semaphore { return NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 1}) }
		next := make(chan error, 1)
		gone := w.between("a", jute.OpCreate2, "lease-", func() {
			w.remove(desk, "/h/locks", a)
			go func() { next <- second(semaphore(b).Acquire(ctx)) }()
			time.Sleep(time.Second) // b counts the leases
		})
		h, err := semaphore(a).Acquire(ctx)
		<-gone
		if err == nil && len(next) > 0 && <-next == nil {
			t.Fatal("two holders of one permit")
		}
		if err == nil {
			t.Error("acquired without a turn")
			must(t, h.Release(ctx))
		} else if !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
		time.Sleep(time.Minute)
		if len(next) == 0 {
			t.Error("the next contender waits for a permit without a holder")
		}
	})
}

// The server removes the path, which was empty for a while, after a contender has read it.
func TestSemaphore_PathReapedMeanwhile(t *testing.T) {
	for _, dialect := range []string{Curator, Kazoo} {
		bubble(t, func(t *testing.T, w *world) {
			must(t, w.Create("/h", []byte("2")))
			gone := w.between("a", jute.OpGetChildren2, "/h", func() { must(t, w.Delete("/h")) })
			h, err := NewSemaphore(w.dial("a"), SemaphoreConfig{Path: "/h", K: 2, Dialect: dialect}).Acquire(t.Context())
			<-gone
			must(t, err)
			must(t, h.Release(t.Context()))
		})
	}
}

// A lease is deleted before it is counted: that is no permit.
func TestSemaphore_LeaseDeletedBeforeTheCount(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s, desk := w.dial("holder"), w.dial("desk")
		gone := w.between("holder", jute.OpGetChildren2, "/h/leases", func() { w.remove(desk, "/h/leases", s) })
		h, err := NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 2}).Acquire(t.Context())
		<-gone
		if !errors.Is(err, ErrLost) {
			t.Errorf("acquired %v, error %v", h, err)
		}
	})
}

// The reply to the create of a contender is lost, and its caller gives up before the
// session is connected again. In both namings the znode leaves the line.
func TestLock_GivenUpAfterALostCreateLeavesNothing(t *testing.T) {
	for _, dialect := range []string{Curator, Kazoo} {
		for _, applied := range []bool{true, false} {
			bubble(t, func(t *testing.T, w *world) {
				s := w.dial("a")
				must(t, s.CreateParents(t.Context(), "/h/x"))
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				struck := w.LoseReply(jute.OpCreate2, 1, !applied)
				go func() {
					<-struck
					w.RefuseDial("a:2181")
				}()
				if err := second(NewLock(s, LockConfig{Path: "/h", Dialect: dialect}).Acquire(ctx)); err == nil {
					t.Error("acquired without a connection")
				}
				w.Heal("a:2181")
				time.Sleep(memTimeout / 2)
				if err := context.Cause(s.Context()); err != nil {
					t.Fatal(err)
				}
				if left := w.leftovers("/h"); len(left) > 0 {
					t.Errorf("%s, applied %v: left behind %v", dialect, applied, left)
				}
			})
		}
	}
}

// A second member with the id of another is refused, and leaves the other alone.
func TestDoubleBarrier_MemberOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		member := func(name string) *DoubleBarrier {
			return NewDoubleBarrier(w.dial(name), DoubleBarrierConfig{Path: "/h", N: 2, ID: "me"})
		}
		first := make(chan error, 1)
		go func() { first <- second(member("a").Enter(t.Context())) }()
		synctest.Wait()
		if h, err := member("b").Enter(t.Context()); !errors.Is(err, session.ErrNodeExists) {
			t.Errorf("entered with %v, error %v", h, err)
		}
		must(t, second(NewDoubleBarrier(w.dial("c"), DoubleBarrierConfig{Path: "/h", N: 2, ID: "other"}).Enter(t.Context())))
		must(t, <-first)
	})
}

// A member is inside. Its znode is deleted, the others leave, and in the next round at the
// path another session has its id: the guard of the first hold fails.
func TestDoubleBarrier_GuardOverRounds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s, other := t.Context(), w.dial("a"), w.dial("other")
		cfg := DoubleBarrierConfig{Path: "/h", N: 1, ID: "me"}
		h, err := NewDoubleBarrier(s, cfg).Enter(ctx)
		must(t, err)
		must(t, second(s.Multi(ctx, h.Guard())))
		must(t, w.Delete(h.Path()))
		must(t, w.Delete("/h/ready"))
		must(t, second(NewDoubleBarrier(other, cfg).Enter(ctx)))
		if err := second(s.Multi(ctx, h.Guard())); !errors.Is(err, session.ErrNoNode) {
			t.Errorf("the guard of a hold that is gone: %v", err)
		}
	})
}

// The last member is cut at each request of its leaving: it ends the round with its own
// znode, or both stay.
func TestDoubleBarrier_LastLeaveCutAtEveryStep(t *testing.T) {
	everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
		victim := w.start(t, "victim", n, before)
		b := NewDoubleBarrier(victim.s, DoubleBarrierConfig{Path: "/h", N: 1})
		if h, err := b.Enter(victim.ctx); err == nil {
			_ = b.Leave(victim.ctx, h)
			synctest.Wait() // what was sent is applied
			if w.Exists(h.Path()) != w.Exists("/h/ready") {
				t.Errorf("member %v, ready %v", w.Exists(h.Path()), w.Exists("/h/ready"))
			}
		}
		return !victim.alive()
	})
}

// A participant does not hold by a znode of another session, nor by one that was made
// anew under its name.
func TestCandidates_ZnodeOfAnother(t *testing.T) {
	for name, by := range map[string]string{"another session": "other", "this session, later": "candidate"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				s, other := w.dial("candidate"), w.dial("other")
				ps, err := Candidates("/h", "", nil)
				must(t, err)
				p, err := ps.Join(ctx, s, nil)
				must(t, err)
				must(t, p.Wait(ctx))
				maker := map[string]*session.Session{"candidate": s, "other": other}[by]
				must(t, other.Delete(ctx, p.Path(), -1))
				_, st, err := maker.Create(ctx, p.Path(), nil, session.Ephemeral)
				must(t, err)
				if h, err := p.Hold(ctx); !errors.Is(err, ErrLost) {
					t.Errorf("holds %v, error %v", h, err)
				}
				if _, err := ps.Adopt(s, p.Path(), st); (err == nil) != (maker == s) {
					t.Errorf("adopts a znode of %s: %v", by, err)
				}
			})
		})
	}
}

// The reply to a create in kazoo's naming is lost. Meanwhile another session makes a
// znode whose name begins with the same text. The contender finds its own znode, and
// leaves the other one alone, also when its caller gives up.
func TestCreateHex_ForeignZnodeOfTheSamePrefix(t *testing.T) {
	for name, cancelled := range map[string]bool{"found": false, "given up": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, other := w.dial("me"), w.dial("other")
				must(t, s.CreateParents(ctx, "/h/x"))
				must(t, w.SetSequence("/h", 5))
				w.LoseReply(jute.OpCreate2, 1, false)
				foreign := ""
				came := w.between("me", jute.OpSync, "/h", func() {
					names, _, err := other.Children(t.Context(), "/h")
					must(t, err)
					if len(names) != 1 {
						t.Fatalf("got %v", names)
					}
					prefix, _, _ := splitSequence(names[0])
					foreign, _, err = other.Create(t.Context(), child("/h", prefix)+"0000000000", nil, session.Ephemeral)
					must(t, err)
					if cancelled {
						cancel()
					}
				})
				ps, err := Candidates("/h", Kazoo, nil)
				must(t, err)
				p, err := ps.Join(ctx, s, nil)
				<-came
				if cancelled {
					synctest.Wait()
					names, _, lerr := other.Children(t.Context(), "/h")
					if must(t, lerr); err == nil || len(names) != 1 || child("/h", names[0]) != foreign {
						t.Errorf("joined with %v, left %v, want %s", err, names, foreign)
					}
					return
				}
				must(t, err)
				if st, ok, err := other.Exists(t.Context(), p.Path()); err != nil || !ok || st.EphemeralOwner != s.ID() {
					t.Errorf("stands with the znode %s of %+v, %v", p.Path(), st, err)
				}
				if _, ok, err := other.Exists(t.Context(), foreign); err != nil || !ok {
					t.Errorf("the znode of the other is gone, %v", err)
				}
			})
		})
	}
}
