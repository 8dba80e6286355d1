package recipe

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// Each check in a multi, and each version of a set or a delete: what it protects from
// happens just before the server sees the request.

// A node is about to write, to delete or to replace a znode that it has written once. The
// znode goes, and another session makes one, at another version: that one stays.
func TestChecks_NodeAtAnotherVersion(t *testing.T) {
	for name, op := range map[string]int32{"set": jute.OpSetData, "remove": jute.OpDelete, "replace": jute.OpMulti} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, former, late, other := t.Context(), w.dial("former"), w.dial("late"), w.dial("other")
				var want atomic.Pointer[keeper.Want]
				want.Store(&keeper.Want{Data: []byte("1")})
				wake := make(chan struct{})
				cfg := NodeConfig{Path: "/n", Internal: keeper.Config{Control: &keeper.Control{
					Wake: wake, Changed: func(keeper.State) {}, Want: func(keeper.State) (keeper.Want, error) { return *want.Load(), nil },
				}}}
				if op == jute.OpMulti {
					must(t, second2(former.Create(ctx, "/n", nil, session.Ephemeral)))
					must(t, w.Set("/n", nil))
					cfg.Internal.Earlier = []int64{former.ID()}
				} else {
					go func() { _ = NewNode(cfg).Run(ctx, late) }()
					time.Sleep(time.Second)
					want.Store(&keeper.Want{Data: []byte("2")})
					wake <- struct{}{}
					time.Sleep(time.Second)
				}
				var theirs session.Stat
				came := w.between("late", op, "/n", func() {
					must(t, w.Delete("/n"))
					var err error
					_, theirs, err = other.Create(ctx, "/n", []byte("theirs"), session.Ephemeral)
					must(t, err)
				})
				if op == jute.OpMulti {
					go func() { _ = NewNode(cfg).Run(ctx, late) }()
				} else {
					want.Store(&keeper.Want{Data: []byte("3"), Absent: op == jute.OpDelete})
					wake <- struct{}{}
				}
				<-came
				time.Sleep(time.Minute)
				if n, err := w.Get("/n"); err != nil || n.Stat.Mzxid != theirs.Czxid {
					t.Errorf("%q at %d, %v, want the znode of the other at %d", n.Data, n.Stat.Mzxid, err, theirs.Czxid)
				}
			})
		})
	}
}

// A znode with a name that others use goes, and another one is there at another version,
// between the look and the delete.
func TestChecks_RemoveExactly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late := t.Context(), w.dial("late")
		_, stat, err := late.Create(ctx, "/x", nil, session.Persistent)
		must(t, err)
		must(t, w.Set("/x", nil))
		w.between("late", jute.OpDelete, "/x", func() {
			must(t, w.Delete("/x"))
			must(t, w.Create("/x", []byte("theirs")))
		})
		must(t, removeExactly(ctx, late, "/x", stat.Czxid))
		if !w.Exists("/x") {
			t.Error("it deleted another znode")
		}
	})
}

// A refused contender of a semaphore takes its number back. Just before, somebody uses the
// number: a holder that came before it was first in line, a holder because it is first no
// more, or an operator who set another number.
func TestChecks_NumberThatIsInUse(t *testing.T) {
	for name, want := range map[string]string{"held": "1", "turn lost": "1", "set": "3"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
				semaphore := func(s *session.Session) *Semaphore {
					return NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 1, Dialect: Kazoo})
				}
				lock := "/h/_c_x-lock-0000000000"
				holds := func() {
					must(t, other.Delete(ctx, lock, -1))
					must(t, second(semaphore(other).Acquire(ctx)))
				}
				op, path := jute.OpMulti, "/h"
				if name == "held" {
					op, path = jute.OpCreate2, "/h-__lock__"
				}
				w.between("late", jute.OpGetChildren2, "/h", func() {
					must(t, second2(other.Create(ctx, lock, nil, session.Ephemeral)))
					w.between("late", op, path, func() {
						switch name {
						case "turn lost":
							w.remove(other, "/h-__lock__", late)
							holds()
						case "held":
							holds()
						default:
							must(t, w.Set("/h", []byte("3")))
						}
					})
				})
				if err := second(semaphore(late).Acquire(ctx)); !errors.Is(err, ErrKind) {
					t.Errorf("got %v, want ErrKind", err)
				}
				time.Sleep(time.Minute)
				if n, err := w.Get("/h"); err != nil || string(n.Data) != want {
					t.Errorf("the number is %q, %v, want %s", n.Data, err, want)
				}
			})
		})
	}
}

// A contender writes its number into an empty path. Just before, another one has.
func TestChecks_NumberOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		semaphore := func(name string, k int) *Semaphore {
			return NewSemaphore(w.dial(name), SemaphoreConfig{Path: "/h", K: k})
		}
		other, late := semaphore("other", 1), semaphore("late", 2)
		must(t, w.Create("/h", nil))
		w.between("late", jute.OpSetData, "/h", func() { must(t, second(other.Acquire(t.Context()))) })
		if err := second(late.Acquire(t.Context())); !errors.Is(err, ErrPermits) {
			t.Errorf("got %v, want ErrPermits", err)
		}
	})
}

// A contender is about to put its text in force. Just before, it loses its turn to one that
// takes a permit, or its lease, or somebody sets another text: the text is not its own.
func TestChecks_TextInForce(t *testing.T) {
	for name, want := range map[string]string{"turn lost": "2", "lease lost": "2", "set": "3"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
				semaphore := func(s *session.Session, text string) *Semaphore {
					return NewSemaphore(s, SemaphoreConfig{Path: "/h", Text: text, Permits: func(_ context.Context, text string) (int, error) { return strconv.Atoi(text) }})
				}
				must(t, w.Create("/h", []byte("2")))
				w.between("late", jute.OpMulti, "/h", func() {
					switch name {
					case "turn lost":
						w.remove(other, "/h/locks", late)
						must(t, second(semaphore(other, "2").Acquire(ctx)))
					case "lease lost":
						w.remove(other, "/h/leases", late)
					default:
						must(t, w.Set("/h", []byte("3")))
					}
				})
				if h, err := semaphore(late, "5").Acquire(ctx); err == nil {
					t.Errorf("holds %s", h.Path())
				}
				if n, err := w.Get("/h"); err != nil || string(n.Data) != want {
					t.Errorf("the text is %q, %v, want %s", n.Data, err, want)
				}
			})
		})
	}
}

// A consumer is about to claim, to acknowledge or to bury an item. Just before, another one
// reserves it: each reservation counts, and the item is not taken from under the other.
func TestChecks_ItemReservedByAnother(t *testing.T) {
	for _, name := range []string{"claim", "ack", "bury", "bury early"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, late := t.Context(), w.dial("late")
				mine, theirs := NewQueue(late, QueueConfig{Path: "/q", MaxAttempts: 2}), NewQueue(w.dial("other"), QueueConfig{Path: "/q"})
				must(t, theirs.Put(ctx, []byte("x")))
				reserve := func(q *Queue) *Reservation {
					t.Helper()
					r, err := q.TryReserve(ctx)
					must(t, err)
					return r
				}
				attempts := map[string]int{"bury": 2, "bury early": 1}[name]
				for range attempts {
					must(t, reserve(theirs).Return(ctx))
				}
				var r, other *Reservation
				if name == "ack" {
					r = reserve(mine)
				}
				op := jute.OpMulti
				if name == "bury early" {
					op = jute.OpGetData
				}
				w.between("late", op, "/q/qn-", func() {
					if r != nil {
						must(t, w.Delete(r.claim))
					}
					if other = reserve(theirs); name == "claim" {
						must(t, other.Return(ctx))
					}
				})
				if name != "ack" {
					var err error
					if r, err = mine.TryReserve(ctx); name != "claim" && !errors.Is(err, ErrEmpty) {
						t.Errorf("got %v, want ErrEmpty", err)
					}
				}
				if name == "claim" {
					if r.Attempts() != 2 {
						t.Errorf("reserved %d times, want 2", r.Attempts())
					}
					must(t, r.Ack(ctx))
					return
				}
				if name == "ack" {
					if err := r.Ack(ctx); !errors.Is(err, ErrNotHeld) {
						t.Errorf("got %v, want ErrNotHeld", err)
					}
				}
				must(t, other.Ack(ctx))
				if n, err := NewQueue(late, QueueConfig{Path: "/q-dead"}).Len(ctx); n != 0 || err != nil {
					t.Errorf("%d dead letters, %v", n, err)
				}
			})
		})
	}
}

// A session does not take over the claim of another.
func TestChecks_TakeOverOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		mine, theirs := NewQueue(w.dial("a"), QueueConfig{Path: "/q"}), NewQueue(w.dial("b"), QueueConfig{Path: "/q"})
		must(t, mine.Put(ctx, nil))
		r, err := theirs.TryReserve(ctx)
		must(t, err)
		if err := second(mine.TakeOver(ctx, r.Name())); !errors.Is(err, ErrNotHeld) {
			t.Errorf("got %v, want ErrNotHeld", err)
		}
		must(t, r.Ack(ctx))
	})
}

// The reply to a proposal is lost, and it was not applied. Before the proposer looks, another
// one proposes at the path.
func TestChecks_ProposalOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
		propose := func(s *session.Session) error {
			return NewTxn(s, "/x").Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)})
		}
		w.LoseReply(jute.OpMulti, 1, true)
		w.between("late", jute.OpSync, "/x", func() { must(t, propose(other)) })
		if err := propose(late); !errors.Is(err, session.ErrNodeExists) {
			t.Errorf("got %v, want ErrNodeExists", err)
		}
	})
}

// A site is about to withdraw a vote. Just before, the vote is counted: it stays, and the site
// gets the result.
func TestChecks_VoteThatWasCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
		x := NewTxn(late, "/x")
		must(t, x.Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}))
		must(t, second(x.Vote(ctx, "a", Commit)))
		w.between("late", jute.OpMulti, "/x/a", func() { must(t, second(NewTxn(other, "/x").Coordinate(ctx))) })
		if d, err := x.Withdraw(ctx, "a"); d != Commit || err != nil || !w.Exists("/x/a") {
			t.Errorf("got %q, %v, the vote stands %v", d, err, w.Exists("/x/a"))
		}
	})
}

// The place in line of a lease is lost before its first holder writes.
func TestChecks_FirstLeaseWithoutTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := NewLease(w.dial("late"), LeaseConfig{Path: "/l", Holder: "a", Duration: time.Hour})
		other := w.dial("other")
		w.between("late", jute.OpMulti, "lease_holder", func() { w.remove(other, "/l", l.s) })
		if err := second(l.TryAcquire(t.Context())); !errors.Is(err, ErrLost) || w.Exists("/l/lease_holder") {
			t.Errorf("got %v, the lease stands %v", err, w.Exists("/l/lease_holder"))
		}
	})
}
