package recipe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// Two recipes of different kinds on one path are never both held, in either
// order: the second is refused in words.
func TestOnePathOneKind(t *testing.T) {
	type acquire = func(s *session.Session) func(context.Context) (*Hold, error)
	kinds := map[string]acquire{
		"lock": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewLock(s, LockConfig{Path: "/x"}).Acquire
		},
		"write": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewRWLock(s, LockConfig{Path: "/x"}).Lock
		},
		"read": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewRWLock(s, LockConfig{Path: "/x"}).RLock
		},
		"semaphore": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 2}).Acquire
		},
		"kazoo semaphore": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 2, Dialect: Kazoo}).Acquire
		},
		"kazoo lock": func(s *session.Session) func(context.Context) (*Hold, error) {
			return NewLock(s, LockConfig{Path: "/x", Dialect: Kazoo}).Acquire
		},
	}
	family := func(kind string) string {
		switch {
		case strings.Contains(kind, "semaphore"):
			return "semaphore"
		case kind == "write", kind == "read":
			return "rw"
		}
		return kind
	}
	for first, a := range kinds {
		for second, b := range kinds {
			f, g := family(first), family(second)
			if f == g || strings.HasPrefix(first, "kazoo lock") && g != "semaphore" || strings.HasPrefix(second, "kazoo lock") && f != "semaphore" {
				continue
			}
			t.Run(first+" then "+second, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					h, err := a(w.dial("a"))(t.Context())
					must(t, err)
					_, err = b(w.dial("b"))(t.Context())
					if kind, ok := errors.AsType[*KindError](err); !ok || !errors.Is(err, ErrKind) || kind.Path != "/x" {
						t.Errorf("got %v, want a KindError", err)
					}
					must(t, h.Release(t.Context()))
					again, err := a(w.dial("c"))(t.Context())
					if err != nil {
						t.Fatalf("the first kind again: %v", err)
					}
					must(t, again.Release(t.Context()))
					if left := w.leftovers("/x"); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				})
			})
		}
	}
}

// As many contenders as permits all get one, however they come: only the count of
// leases refuses.
func TestSemaphore_TryRefusesOnlyWhenNoPermitIsFree(t *testing.T) {
	for _, dialect := range []string{Curator, Kazoo} {
		bubble(t, func(t *testing.T, w *world) {
			const k = 8
			w.Delay(jute.OpCreate2, 50*time.Millisecond)
			var wg sync.WaitGroup
			errs := make(chan error, k+2)
			for range k {
				s := w.dial("a")
				wg.Go(func() {
					_, err := NewSemaphore(s, SemaphoreConfig{Path: "/x", K: k, Dialect: dialect}).TryAcquire(t.Context())
					errs <- err
				})
			}
			wg.Wait()
			for range k {
				if err := <-errs; err != nil {
					t.Errorf("%s: a permit was free: %v", dialect, err)
				}
			}
			full := NewSemaphore(w.dial("b"), SemaphoreConfig{Path: "/x", K: k, Dialect: dialect})
			if _, err := full.TryAcquire(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("%s: none was free: got %v", dialect, err)
			}
			// A waiter in the line does not make it hang.
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() { _, _ = full.Acquire(ctx) })
			synctest.Wait()
			start := time.Now()
			if _, err := full.TryAcquire(t.Context()); !errors.Is(err, ErrHeld) || time.Since(start) > time.Second {
				t.Errorf("%s: behind a waiter: got %v after %v", dialect, err, time.Since(start))
			}
			cancel()
			wg.Wait()
		})
	}
}

func TestSemaphore_ManyAtOnceAndParticipants(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := NewSemaphore(w.dial("a"), SemaphoreConfig{Path: "/x", K: 5, Data: []byte("me")})
		three, err := m.AcquireN(t.Context(), 3)
		must(t, err)
		if _, err := m.TryAcquireN(t.Context(), 3); !errors.Is(err, ErrHeld) {
			t.Errorf("six of five: %v", err)
		}
		if _, err := m.AcquireN(t.Context(), 6); !errors.Is(err, ErrRange) {
			t.Errorf("six at once of five: %v", err)
		}
		list, err := m.Participants(t.Context())
		if err != nil || len(list) != 3 || string(list[0].Data) != "me" || !list[0].Holder || list[0].Since.IsZero() {
			t.Errorf("participants %+v, %v", list, err)
		}
		must(t, three.Release(t.Context()))
		five, err := m.TryAcquireN(t.Context(), 5)
		must(t, err)
		must(t, five.Release(t.Context()))
		if left := w.leftovers("/x"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// The number of permits follows a counter, for those who wait, too. A plain
// semaphore on the path is refused.
func TestSemaphore_PermitsFromACounter(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		k := NewCounter(s, CounterConfig{Path: "/k", Dialect: CounterShared})
		_, err := k.Add(t.Context(), 1)
		must(t, err)
		m := NewSemaphore(s, SemaphoreConfig{Path: "/x", Counter: "/k"})
		_, err = m.Acquire(t.Context())
		must(t, err)
		got := make(chan error, 1)
		go func() {
			_, err := m.Acquire(t.Context())
			got <- err
		}()
		settle()
		if len(got) > 0 {
			t.Fatal("two permits of one")
		}
		_, err = k.Add(t.Context(), 1)
		must(t, err)
		must(t, <-got)
		if _, err := NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 9}).Acquire(t.Context()); !errors.Is(err, ErrPermits) {
			t.Errorf("a plain semaphore: %v", err)
		}
	})
}

// K is looked at each time, not remembered.
func TestSemaphore_KIsNotRemembered(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := NewSemaphore(w.dial("a"), SemaphoreConfig{Path: "/x", K: 2})
		h, err := m.Acquire(t.Context())
		must(t, err)
		must(t, h.Release(t.Context()))
		must(t, w.Set("/x", []byte("1")))
		if _, err := m.Acquire(t.Context()); !errors.Is(err, ErrPermits) {
			t.Errorf("got %v, want ErrPermits", err)
		}
	})
}

// A waiter keeps its place over a suspension that its session survives.
func TestSemaphore_WaiterSurvivesASuspension(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		holder := NewSemaphore(w.dial("holder"), SemaphoreConfig{Path: "/x", K: 1})
		h, err := holder.Acquire(t.Context())
		must(t, err)
		got := make(chan error, 1)
		waiter := NewSemaphore(w.dial("waiter"), SemaphoreConfig{Path: "/x", K: 1})
		go func() {
			_, err := waiter.Acquire(t.Context())
			got <- err
		}()
		synctest.Wait()
		w.Partition("waiter:2181")
		time.Sleep(memTimeout * 3 / 4)
		w.Heal()
		time.Sleep(memTimeout)
		if len(got) > 0 {
			t.Fatalf("the waiter gave up: %v", <-got)
		}
		must(t, h.Release(t.Context()))
		must(t, <-got)
	})
}

// An Ack whose claim was deleted meanwhile fails, and leaves alone the claim of
// the next consumer.
func TestReservation_AckAfterTheClaimWasLost(t *testing.T) {
	for _, wait := range []time.Duration{0, memTimeout} { // before and after the hold has its watch
		bubble(t, func(t *testing.T, w *world) {
			q := func(name string) *Queue { return NewQueue(w.dial(name), QueueConfig{Path: "/q"}) }
			must(t, q("p").Put(t.Context(), []byte("one")))
			a, err := q("a").Reserve(t.Context())
			must(t, err)
			must(t, w.Delete("/q-taken/"+a.Name()))
			b, err := q("b").Reserve(t.Context())
			must(t, err)
			time.Sleep(wait)
			if err := a.Ack(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("ack after %v: got %v, want ErrNotHeld", wait, err)
			}
			settle()
			if _, err := q("c").TryReserve(t.Context()); !errors.Is(err, ErrEmpty) {
				t.Errorf("a third consumer: got %v, want ErrEmpty", err)
			}
			if b.Attempts() != 2 {
				t.Errorf("%d attempts, want 2", b.Attempts())
			}
			must(t, b.Ack(t.Context()))
		})
	}
}

// A Return after the claim was lost leaves the next claim alone, too.
func TestReservation_ReturnAfterTheClaimWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := func(name string) *Queue { return NewQueue(w.dial(name), QueueConfig{Path: "/q"}) }
		must(t, q("p").Put(t.Context(), []byte("one")))
		a, err := q("a").Reserve(t.Context())
		must(t, err)
		must(t, w.Delete("/q-taken/"+a.Name()))
		b, err := q("b").Reserve(t.Context())
		must(t, err)
		_ = a.Return(t.Context())
		settle()
		must(t, b.Ack(t.Context()))
	})
}

// An Ack of work that was finished while the connection was suspended is decided
// by the server: the session lived, so the item is done.
func TestReservation_AckOverASuspension(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := NewQueue(w.dial("a"), QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("one")))
		r, err := q.Reserve(t.Context())
		must(t, err)
		w.Partition("a:2181")
		time.Sleep(memTimeout * 3 / 4)
		if !errors.Is(context.Cause(r.Context()), session.ErrSuspended) {
			t.Fatalf("the lease has not run out: %v", context.Cause(r.Context()))
		}
		time.AfterFunc(memTimeout/12, func() { w.Heal() })
		must(t, r.Ack(t.Context()))
		if n, err := q.Len(t.Context()); n != 0 || err != nil {
			t.Errorf("%d items are left, %v", n, err)
		}
	})
}

// Opening a barrier whose reply is lost does not open it again after somebody
// else has closed it.
func TestBarrier_OpenWithALostReply(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		b := NewBarrier(w.dial("a"), "/b")
		must(t, b.Close(t.Context()))
		struck := w.LoseReply(jute.OpDelete, 1, false)
		done := make(chan error, 1)
		go func() { done <- b.Open(t.Context()) }()
		<-struck
		must(t, w.Create("/b", nil)) // closed again, before the reply is missed
		must(t, <-done)
		if !w.Exists("/b") {
			t.Error("the later Close was undone")
		}
	})
}

// A persistent znode with a contender's name is named, not waited for in silence.
func TestLock_PersistentContender(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		must(t, w.Create("/x", nil))
		must(t, w.Create("/x/_c_restored-lock-0000000000", []byte("old")))
		must(t, w.SetSequence("/x", 1))
		s := w.dial("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := NewLock(s, LockConfig{Path: "/x"}).Acquire(ctx)
		if !errors.Is(err, ErrInTheWay) || !strings.Contains(err.Error(), "/x/_c_restored-lock-0000000000") {
			t.Errorf("got %v, want ErrInTheWay with the path", err)
		}
		list, err := Contenders(t.Context(), s, "/x")
		if err != nil || len(list) != 1 || list[0].Owner != 0 || string(list[0].Data) != "old" {
			t.Errorf("contenders %+v, %v", list, err)
		}
	})
}

// An item that may not be read does not block those behind it.
func TestQueue_AnItemThatMayNotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		q := NewQueue(s, QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("x")))
		_, err := s.SetACL(t.Context(), "/q/qn-0000000000", []session.ACL{{Perms: session.PermAll &^ session.PermRead, Scheme: "world", ID: "anyone"}}, -1)
		must(t, err)
		must(t, q.Put(t.Context(), []byte("one")))
		must(t, q.Put(t.Context(), []byte("two")))
		body, err := q.TryTake(t.Context())
		if err != nil || string(body) != "one" {
			t.Errorf("took %q, %v", body, err)
		}
		r, err := q.TryReserve(t.Context())
		if err != nil || string(r.Body()) != "two" {
			t.Fatalf("reserved %+v, %v", r, err)
		}
		must(t, r.Ack(t.Context()))
	})
}

// A lock that is named twice would wait for itself.
func TestMultiLock_OnePathTwice(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		l := func(path string) *Lock { return NewLock(s, LockConfig{Path: path}) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := NewMultiLock(l("/x"), l("/y"), l("/x")).Acquire(ctx); !errors.Is(err, ErrReentrant) {
			t.Errorf("got %v, want ErrReentrant", err)
		}
	})
}

// A read lock inside a read lock is refused for what it is, and not as an upgrade.
func TestRWLock_NestedRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := NewRWLock(w.dial("a"), LockConfig{Path: "/x"})
		h, err := l.RLock(t.Context())
		must(t, err)
		if _, err := l.RLock(h.Context()); !errors.Is(err, ErrReentrant) || errors.Is(err, ErrUpgrade) {
			t.Errorf("a read lock inside one: %v", err)
		}
		if _, err := l.Lock(h.Context()); !errors.Is(err, ErrUpgrade) {
			t.Errorf("an upgrade: %v", err)
		}
		must(t, h.Release(t.Context()))
	})
}

// A deferred Release under a context without an end does not wait for as long as
// ZooKeeper is away.
func TestHold_ReleaseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		h, err := NewLock(w.dial("a"), LockConfig{Path: "/x"}).Acquire(t.Context())
		must(t, err)
		w.Partition("a:2181")
		start := time.Now()
		if err := h.Release(context.WithoutCancel(t.Context())); err == nil {
			t.Error("released without a server")
		}
		if took := time.Since(start); took > memTimeout+cleanupWait {
			t.Errorf("Release took %v", took)
		}
	})
}

// A coordinator reads each vote when it comes, and all of them before it decides.
func TestTxn_CoordinatorReadsEachVoteOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const n = 60
		var sites []string
		for i := range n {
			sites = append(sites, string(rune('A'+i/26))+string(rune('a'+i%26)))
		}
		x := NewTxn(w.dial("a"), "/t")
		must(t, x.Propose(t.Context(), Proposal{Sites: sites, Deadline: time.Now().Add(time.Hour)}))
		c := w.dial("c")
		done := make(chan Decision, 1)
		go func() {
			d, err := NewTxn(c, "/t").Coordinate(t.Context())
			if err != nil {
				t.Error(err)
			}
			done <- d
		}()
		for _, site := range sites {
			_, err := x.Vote(t.Context(), site, Commit)
			must(t, err)
			synctest.Wait()
		}
		if d := <-done; d != Commit {
			t.Errorf("decided %q", d)
		}
		if got := total(c); got > 5*n {
			t.Errorf("%d requests for %d votes: %v", got, n, c.Requests())
		}
	})
}

// A lock and a semaphore that come to an unused path at the same time, at every
// distance: never both get it, and when both are refused the path is not spoilt for
// those who come later.
func TestOnePathOneKind_BothComeAtOnce(t *testing.T) {
	testhelp.InTurn(t, 2)
	const reply = 10 * time.Millisecond
	for _, dialect := range []string{Curator, Kazoo} {
		for _, used := range []bool{false, true} { // an empty znode stands there
			refused := 0
			for offset := time.Duration(0); offset < 14*reply; offset += reply / 2 {
				bubble(t, func(t *testing.T, w *world) {
					a, b := w.dial("a"), w.dial("b")
					if used {
						must(t, w.Create("/x", nil))
					}
					w.Delay(memzk.AnyOp, reply)
					var lock, permit error
					var wg sync.WaitGroup
					wg.Go(func() {
						time.Sleep(6 * reply)
						_, lock = NewLock(a, LockConfig{Path: "/x", Dialect: dialect}).TryAcquire(t.Context())
					})
					wg.Go(func() {
						time.Sleep(offset)
						_, permit = NewSemaphore(b, SemaphoreConfig{Path: "/x", K: 2, Dialect: dialect}).TryAcquire(t.Context())
					})
					wg.Wait()
					for _, err := range []error{lock, permit} {
						if err != nil && !errors.Is(err, ErrKind) {
							t.Errorf("%v: refused with %v", offset, err)
						}
					}
					switch {
					case lock == nil && permit == nil:
						t.Errorf("%v: both are held", offset)
					case lock != nil && permit != nil:
						refused++
						time.Sleep(3 * time.Minute) // containers are gone
						if _, err := NewLock(w.dial("c"), LockConfig{Path: "/x", Dialect: dialect}).TryAcquire(t.Context()); err != nil {
							t.Errorf("%v: the path is spoilt: %v", offset, err)
						}
					}
				})
			}
			t.Logf("%s, used %v: both refused at %d distances", dialect, used, refused)
		}
	}
}

// A client that does not see our znode and comes later ends the hold: both would hold
// the same. One of ours that is refused, again and again, does not.
func TestHold_EndsWhenAnotherKindComesLater(t *testing.T) {
	testhelp.InTurn(t, 2)
	type acquire func(s *session.Session) (*Hold, error)
	for name, c := range map[string]struct {
		hold  acquire
		later string // of a Curator client
		try   acquire
	}{
		"lock": {
			func(s *session.Session) (*Hold, error) {
				return NewLock(s, LockConfig{Path: "/x"}).Acquire(s.Context())
			},
			"/x/_c_0-__WRIT__",
			func(s *session.Session) (*Hold, error) {
				return NewRWLock(s, LockConfig{Path: "/x"}).TryLock(s.Context())
			},
		},
		"revocable lock": {
			func(s *session.Session) (*Hold, error) {
				return NewLock(s, LockConfig{Path: "/x", Revocable: true}).Acquire(s.Context())
			},
			"/x/_c_0-__READ__",
			func(s *session.Session) (*Hold, error) {
				return NewRWLock(s, LockConfig{Path: "/x"}).TryRLock(s.Context())
			},
		},
		"read lock": {
			func(s *session.Session) (*Hold, error) {
				return NewRWLock(s, LockConfig{Path: "/x"}).RLock(s.Context())
			},
			"/x/_c_0-lock-",
			func(s *session.Session) (*Hold, error) {
				return NewLock(s, LockConfig{Path: "/x"}).TryAcquire(s.Context())
			},
		},
		"semaphore": {
			func(s *session.Session) (*Hold, error) {
				return NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 2}).Acquire(s.Context())
			},
			"/x/_c_0-lock-",
			func(s *session.Session) (*Hold, error) {
				return NewLock(s, LockConfig{Path: "/x"}).TryAcquire(s.Context())
			},
		},
	} {
		if testhelp.NotToday(name, 2) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.dial("a"), w.dial("b")
				h, err := c.hold(a)
				must(t, err)
				for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(time.Second / 3) {
					if _, err := c.try(b); !errors.Is(err, ErrKind) {
						t.Fatalf("the other kind: %v", err)
					}
				}
				must(t, h.Err())
				before := total(a)
				time.Sleep(time.Hour)
				if n := total(a) - before; n > 3*125 {
					t.Errorf("%d requests in an idle hour", n)
				}
				_, _, err = b.Create(t.Context(), c.later, nil, session.EphemeralSequential)
				must(t, err)
				time.Sleep(time.Minute + memTimeout)
				if err := h.Err(); !errors.Is(err, ErrKind) {
					t.Errorf("the hold goes on: %v", err)
				}
				if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) || !errors.Is(err, ErrKind) {
					t.Errorf("release: %v", err)
				}
				if left := w.leftovers("/x"); len(left) != 1 {
					t.Errorf("left behind: %v", left)
				}
			})
		})
	}
}

// A claim that this session has lost and made again is another one: what was reserved
// first ends.
func TestReservation_ClaimedAgainBySameSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := NewQueue(w.dial("a"), QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("one")))
		first, err := q.Reserve(t.Context())
		must(t, err)
		must(t, w.Delete("/q-taken/"+first.Name()))
		second, err := q.Reserve(t.Context())
		must(t, err)
		settle()
		if err := context.Cause(first.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("the first goes on: %v", err)
		}
		must(t, context.Cause(second.Context()))
		if err := first.Ack(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("ack of the first: %v", err)
		}
		must(t, second.Ack(t.Context()))
	})
}

// A lock logs once that contenders of both families use its path.
func TestLock_MixedFamiliesAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		l := NewLock(w.dial("a"), LockConfig{Path: "/x", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 3 {
			h, err := l.Acquire(t.Context())
			must(t, err)
			if i == 0 && log.Len() > 0 {
				t.Errorf("logged too early: %s", &log)
			}
			_, err = NewLock(w.dial("b"), LockConfig{Path: "/x", Dialect: Kazoo}).TryAcquire(t.Context())
			if !errors.Is(err, ErrHeld) {
				t.Errorf("in kazoo's dialect: %v", err)
			}
			_, _, err = w.dial("c").Create(t.Context(), "/x/0123456789abcdef0123456789abcdef__lock__", nil, session.EphemeralSequential)
			must(t, err)
			_, _ = l.TryAcquire(t.Context())
			must(t, h.Release(t.Context()))
			for _, id := range w.SessionIDs()[1:] {
				w.ExpireSession(id)
			}
		}
		if n := strings.Count(log.String(), "do not wait for Curator's"); n != 1 {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}

// An Ack is decided by the server, not by what was read before: the claim is lost, and
// the item reserved by another, while the Ack is under way.
func TestReservation_LostWhileTheAckIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := func(name string) *Queue { return NewQueue(w.dial(name), QueueConfig{Path: "/q"}) }
		must(t, q("p").Put(t.Context(), []byte("one")))
		a, err := q("a").Reserve(t.Context())
		must(t, err)
		other := q("b")
		w.Delay(jute.OpExists, time.Second)
		acked := make(chan error, 1)
		go func() { acked <- a.Ack(t.Context()) }()
		time.Sleep(time.Second / 2) // it has been read that the claim stands
		must(t, w.Delete("/q-taken/"+a.Name()))
		b, err := other.Reserve(t.Context())
		must(t, err)
		if err := <-acked; !errors.Is(err, ErrNotHeld) {
			t.Errorf("ack: %v", err)
		}
		w.Delay(jute.OpExists, 0)
		must(t, b.Ack(t.Context()))
	})
}

// The operations of an Ack are applied with it, or give the item back.
func TestReservation_AckWithOtherOperations(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		q := NewQueue(s, QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("one")))
		hold, err := NewLock(s, LockConfig{Path: "/l"}).Acquire(t.Context())
		must(t, err)
		result := session.CreateOp("/result", []byte("1"), session.Persistent)
		r, err := q.Reserve(t.Context())
		must(t, err)
		must(t, w.Delete(hold.Path()))
		failed, ok := errors.AsType[*session.MultiError](r.Ack(t.Context(), result, hold.Guard()))
		if !ok || failed.Index != 1 || failed.Path != hold.Path() || w.Exists("/result") {
			t.Errorf("ack without the lock: %v", failed)
		}
		r, err = q.Reserve(t.Context())
		must(t, err)
		w.LoseReply(jute.OpMulti, 1, false)
		must(t, r.Ack(t.Context(), result))
		if r.Attempts() != 2 || w.data("/result") != "1" || w.Exists(r.Path()) || !errors.Is(r.hold.Err(), ErrReleased) {
			t.Errorf("acknowledged after %d attempts, with the result %q: %v", r.Attempts(), w.data("/result"), r.hold.Err())
		}
	})
}

// The claim of another program, which does not count in the item, is left alone.
func TestReservation_ForeignClaimIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		q := NewPriorityQueue(s, PriorityQueueConfig{Path: "/q", Reserve: true})
		must(t, q.Put(t.Context(), []byte("one"), 5))
		r, err := q.Reserve(t.Context())
		must(t, err)
		claim := "/q/taken/" + r.Name()
		must(t, w.Delete(claim))
		_, err = w.CreateEphemeral(w.dial("kazoo").ID(), claim, []byte("kazoo"), jute.FlagEphemeral)
		must(t, err)
		if err := r.Ack(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("ack: %v", err)
		}
		settle()
		if w.data(claim) != "kazoo" || !w.Exists(r.Path()) {
			t.Error("the foreign claim, or its item, is gone")
		}
	})
}

// A double barrier is not opened by a member who has counted one that died since, or whose
// own znode was deleted since.
func TestDoubleBarrier_AMemberDiesWhileItIsCounted(t *testing.T) {
	for _, gone := range []string{"first", "opener"} {
		bubble(t, func(t *testing.T, w *world) {
			ctx, cancel := context.WithCancel(t.Context())
			entered := map[string]chan error{"first": make(chan error, 1), "opener": make(chan error, 1)}
			sessions := map[string]*session.Session{"first": w.dial("first"), "opener": w.dial("opener")}
			enter := func(id string) {
				entered[id] <- second(NewDoubleBarrier(sessions[id], DoubleBarrierConfig{Path: "/b", N: 2, ID: id}).Enter(ctx))
			}
			go enter("first")
			synctest.Wait()
			counted := w.between("opener", jute.OpMulti, "/b/ready", func() { w.remove(sessions["first"], "/b", sessions[gone]) })
			go enter("opener")
			<-counted
			time.Sleep(time.Hour)
			if w.Exists("/b/ready") {
				t.Errorf("it opened without the %s", gone)
			}
			cancel()
			for id, got := range entered {
				if err := <-got; id == gone && !errors.Is(err, ErrLost) || id != gone && !errors.Is(err, context.Canceled) {
					t.Errorf("without the %s: %s: %v", gone, id, err)
				}
			}
		})
	}
}
