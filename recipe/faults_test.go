package recipe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// scenario uses a recipe from beginning to end. It must leave no ephemeral
// znode, whatever happens to its requests.
type scenario struct {
	name string
	run  func(ctx context.Context, s *session.Session) error
}

func scenarios() []scenario {
	held := func(acquire func(context.Context) (*Hold, error)) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			h, err := acquire(ctx)
			if err != nil {
				return err
			}
			return h.Release(ctx)
		}
	}
	return []scenario{
		{"lock", func(ctx context.Context, s *session.Session) error {
			return held(NewLock(s, LockConfig{Path: "/r/lock", Revocable: true}).Acquire)(ctx)
		}},
		{"lock-kazoo", func(ctx context.Context, s *session.Session) error {
			return held(NewLock(s, LockConfig{Path: "/r/lock", Dialect: Kazoo}).Acquire)(ctx)
		}},
		{"semaphore", func(ctx context.Context, s *session.Session) error {
			return held(NewSemaphore(s, SemaphoreConfig{Path: "/r/sem", K: 1}).Acquire)(ctx)
		}},
		{"semaphore-kazoo", func(ctx context.Context, s *session.Session) error {
			return held(NewSemaphore(s, SemaphoreConfig{Path: "/r/kazoo-sem", K: 1, Dialect: Kazoo}).Acquire)(ctx)
		}},
		{"downgrade", func(ctx context.Context, s *session.Session) error {
			l := NewRWLock(s, LockConfig{Path: "/r/rw"})
			w, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			r, err := l.Downgrade(ctx, w)
			if err != nil {
				_ = w.Release(ctx)
				return err
			}
			return r.Release(ctx)
		}},
		{"double barrier", func(ctx context.Context, s *session.Session) error {
			d := NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/r/double", N: 1})
			h, err := d.Enter(ctx)
			if err != nil {
				return err
			}
			return d.Leave(ctx, h)
		}},
		{"queue", useQueue},
		{"reserve", useReserve},
		{"counter", useCounter},
		{"txn", useTxn},
		{"lease", func(ctx context.Context, s *session.Session) error {
			l := NewLease(s, LeaseConfig{Path: "/r/lease", Holder: "me", Duration: time.Hour})
			first, err := l.TryAcquire(ctx)
			if err != nil {
				return err
			}
			second, err := l.TryAcquire(ctx)
			if err == nil && second.Fence <= first.Fence {
				err = errors.New("the fence has not grown")
			}
			return err
		}},
		{"barrier", func(ctx context.Context, s *session.Session) error {
			b := NewBarrier(s, "/r/a/barrier")
			return errors.Join(b.Close(ctx), b.Open(ctx), b.Wait(ctx))
		}},
		{"node", func(ctx context.Context, s *session.Session) error {
			n := NewNode(NodeConfig{Path: "/r/group/me", Data: []byte("x")})
			run, stop := context.WithCancel(ctx)
			defer stop()
			go func() {
				select {
				case <-n.Created():
				case <-run.Done():
				}
				stop()
			}()
			err := n.Run(run, s)
			return errors.Join(err, ctx.Err())
		}},
	}
}

func useQueue(ctx context.Context, s *session.Session) error {
	q := NewQueue(s, QueueConfig{Path: "/r/q"})
	if err := q.Put(ctx, []byte("one")); err != nil {
		return err
	}
	body, err := q.Take(ctx)
	if err != nil {
		return err
	}
	if n, err := q.Len(ctx); string(body) != "one" || n != 0 || err != nil {
		return fmt.Errorf("took %q, left %d, %w", body, n, err)
	}
	return nil
}

func useReserve(ctx context.Context, s *session.Session) error {
	q := NewPriorityQueue(s, PriorityQueueConfig{Path: "/r/pq", Reserve: true})
	if err := q.Put(ctx, []byte("one"), 5); err != nil {
		return err
	}
	r, err := q.Reserve(ctx)
	if err != nil {
		return err
	}
	if err := r.Ack(ctx); err != nil {
		return err
	}
	if n, err := q.Len(ctx); string(r.Body()) != "one" || n != 0 || err != nil {
		return fmt.Errorf("reserved %q, left %d, %w", r.Body(), n, err)
	}
	return nil
}

func useCounter(ctx context.Context, s *session.Session) error {
	c := NewCounter(s, CounterConfig{Path: "/r/counter"})
	for want := int64(1); want <= 3; want++ {
		if got, err := c.Add(ctx, 1); got != want || err != nil {
			return fmt.Errorf("add: got %d, want %d, %w", got, want, err)
		}
	}
	return nil
}

func useTxn(ctx context.Context, s *session.Session) error {
	x := NewTxn(s, "/r/txn/1")
	if err := x.Propose(ctx, Proposal{Sites: []string{"a", "b"}, Deadline: time.Now().Add(time.Hour)}); err != nil {
		return err
	}
	for _, site := range []string{"a", "b"} {
		if _, err := x.Vote(ctx, site, Commit); err != nil {
			return err
		}
	}
	if d, err := x.Coordinate(ctx); d != Commit || err != nil {
		return fmt.Errorf("decision: got %q, %w", d, err)
	}
	return x.Remove(ctx)
}

// Every reply is lost once, before and after the request was applied: nothing
// is done twice, nothing is forgotten, and no error comes of it.
func TestReplyLostAtEveryRequest(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, sc := range scenarios() {
		if testhelp.NotToday(sc.name, 3) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			for n := 1; n < 60; n++ {
				before, after := loseOne(t, sc, n, true), loseOne(t, sc, n, false)
				if !before && !after {
					return // the scenario has no more requests
				}
			}
			t.Error("the scenario does not end")
		})
	}
}

func loseOne(t *testing.T, sc scenario, n int, before bool) bool {
	t.Helper()
	var hit bool
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		struck := w.LoseReply(memzk.AnyOp, n, before)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := sc.run(ctx, s); err != nil {
			t.Errorf("request %d lost, before it was applied %v: %v", n, before, err)
		}
		select {
		case <-struck:
			hit = true
		default:
		}
		w.ClearFaults()
		if left := w.leftovers("/r"); len(left) > 0 {
			t.Errorf("request %d lost, before %v: left behind %v", n, before, left)
		}
	})
	return hit
}

// The context ends while each of the requests is under way: nothing is left
// behind.
func TestCancelAtEveryAwait(t *testing.T) {
	const latency = time.Second
	for _, sc := range scenarios() {
		if testhelp.NotToday(sc.name, 3) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			for n := range 60 {
				done := false
				bubble(t, func(t *testing.T, w *world) {
					s := w.dial("a")
					w.Delay(memzk.AnyOp, latency)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*latency+latency/2)
					defer cancel()
					err := sc.run(ctx, s)
					done = err == nil
					w.Delay(memzk.AnyOp, 0)
					settle()
					if left := w.leftovers("/r"); len(left) > 0 && sc.name != "txn" {
						t.Errorf("cancelled after %d requests (%v): left behind %v", n, err, left)
					}
					if left := w.leftovers("/r/txn/1-latch"); len(left) > 0 {
						t.Errorf("cancelled after %d requests (%v): left behind %v", n, err, left)
					}
				})
				if done {
					return
				}
			}
			t.Error("the scenario does not end")
		})
	}
}

func TestMarkersAndParentsAreAllThatStays(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, sc := range scenarios() {
			s := w.dial(strings.ReplaceAll(sc.name, " ", "-"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if err := sc.run(ctx, s); err != nil {
				t.Errorf("%s: %v", sc.name, err)
			}
			cancel()
			must(t, s.Close())
			synctest.Wait()
		}
		for path, n := range w.Tree() {
			if strings.HasPrefix(path, "/r/") && n.Stat.EphemeralOwner != 0 {
				t.Errorf("left behind: %s", path)
			}
		}
	})
}
