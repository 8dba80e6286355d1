package recipe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// The end of the sequence numbers, and directories that the server has removed and a
// client has made again.

// A server repeats 2147483647. Whoever gets it fails, with an error that says what to do,
// and leaves nothing behind.
func TestSequence_EndIsRefused(t *testing.T) {
	acquire := func(kind holdKind) func(context.Context, *session.Session) error {
		return func(ctx context.Context, s *session.Session) error { return second(kind.acquire(s)(ctx)) }
	}
	type try struct {
		name, dir string
		do        func(context.Context, *session.Session) error
	}
	tries := []try{
		{"queue", "/q", func(ctx context.Context, s *session.Session) error {
			return NewQueue(s, QueueConfig{Path: "/q"}).Put(ctx, nil)
		}},
		{"priority", "/q", func(ctx context.Context, s *session.Session) error {
			return NewPriorityQueue(s, PriorityQueueConfig{Path: "/q"}).Put(ctx, nil, 5)
		}},
		{"reserving", "/q/entries", func(ctx context.Context, s *session.Session) error {
			return NewPriorityQueue(s, PriorityQueueConfig{Path: "/q", Reserve: true}).Put(ctx, nil, 5)
		}},
		{"ids", "/q", func(ctx context.Context, s *session.Session) error {
			return NewIDQueue(s, QueueConfig{Path: "/q"}).Put(ctx, "x", nil)
		}},
		{"delay", "/q", func(ctx context.Context, s *session.Session) error {
			return NewDelayQueue(s, QueueConfig{Path: "/q"}).Put(ctx, nil, time.Now())
		}},
		{"lock of a semaphore", "/h/locks", acquire(holdKind{acquire: semaphoreKind(Curator)})},
		{"lease", "/h/leases", acquire(holdKind{acquire: semaphoreKind(Curator)})},
	}
	for _, dialect := range []string{Curator, Kazoo} {
		cfg := LockConfig{Path: "/h", Dialect: dialect}
		for kind, get := range map[string]func(s *session.Session) func(context.Context) (*Hold, error){
			"lock":  func(s *session.Session) func(context.Context) (*Hold, error) { return NewLock(s, cfg).Acquire },
			"read":  func(s *session.Session) func(context.Context) (*Hold, error) { return NewRWLock(s, cfg).RLock },
			"write": func(s *session.Session) func(context.Context) (*Hold, error) { return NewRWLock(s, cfg).Lock },
		} {
			tries = append(tries, try{kind + " " + dialect, "/h", func(ctx context.Context, s *session.Session) error { return second(get(s)(ctx)) }})
		}
	}
	for _, one := range tries {
		t.Run(one.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				s := w.dial("a")
				must(t, s.CreateParents(ctx, one.dir+"/x"))
				must(t, w.SetSequence(one.dir, math.MaxInt32))
				for range 3 {
					if err := one.do(ctx, s); !errors.Is(err, ErrSequence) {
						t.Errorf("got %v, want ErrSequence", err)
					}
				}
				if names, err := w.Children(one.dir); err != nil || len(names) > 0 {
					t.Errorf("left behind: %v, %v", names, err)
				}
			})
		})
	}
}

// The reply of a Put that got the last number is lost, and so is that of its removal. Put
// says what happened: the item was refused, or another client has taken it.
func TestQueue_LastNumberWithALostReply(t *testing.T) {
	for _, removal := range []bool{false, true} {
		for _, taken := range []bool{false, true} {
			bubble(t, func(t *testing.T, w *world) {
				ctx, s, other := t.Context(), w.dial("a"), NewQueue(w.dial("b"), QueueConfig{Path: "/q"})
				q := NewQueue(s, QueueConfig{Path: "/q"})
				must(t, q.Put(ctx, []byte("first")))
				must(t, second(q.TryTake(ctx)))
				must(t, w.SetSequence("/q", math.MaxInt32))
				w.LoseReply(jute.OpMulti, 1, false)
				if removal {
					w.LoseReply(jute.OpMulti, 2, false)
				}
				if taken {
					w.between("a", jute.OpExists, "/q/qn-", func() { must(t, second(other.TryTake(ctx))) })
				}
				err := q.Put(ctx, []byte("last"))
				if taken && err != nil || !taken && !errors.Is(err, ErrSequence) {
					t.Errorf("removal lost %v, taken %v: got %v", removal, taken, err)
				}
				if names, err := w.Children("/q"); err != nil || len(names) > 0 {
					t.Errorf("left behind: %v, %v", names, err)
				}
			})
		}
	}
}

func semaphoreKind(dialect string) func(s *session.Session) func(context.Context) (anyHold, error) {
	return func(s *session.Session) func(context.Context) (anyHold, error) {
		return holding(NewSemaphore(s, SemaphoreConfig{Path: "/h", K: 2, Dialect: dialect}).Acquire)
	}
}

// Another client has put an item under the last number. It can be taken and reserved, and
// a Put beside it is refused.
func TestQueue_LastNumberOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		must(t, s.CreateParents(ctx, "/q/x"))
		must(t, w.SetSequence("/q", math.MaxInt32))
		q := NewQueue(s, QueueConfig{Path: "/q", MaxAttempts: 1})
		must(t, second2(s.Create(ctx, "/q/qn-", []byte("last"), session.PersistentSequential)))
		if err := q.Put(ctx, nil); !errors.Is(err, ErrSequence) {
			t.Errorf("got %v, want ErrSequence", err)
		}
		r, err := q.TryReserve(ctx)
		must(t, err)
		must(t, r.Return(ctx))
		must(t, s.CreateParents(ctx, "/q-dead/x"))
		must(t, w.SetSequence("/q-dead", math.MaxInt32))
		must(t, second2(s.Create(ctx, "/q-dead/qn-", nil, session.PersistentSequential)))
		if _, err := q.TryReserve(ctx); !errors.Is(err, ErrSequence) {
			t.Errorf("no number for a dead letter: got %v, want ErrSequence", err)
		}
	})
}

// A node with a number of the server says so when there are none left.
func TestNode_EndOfTheSequence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := w.dial("a")
		must(t, s.CreateParents(ctx, "/n/x"))
		must(t, w.SetSequence("/n", math.MaxInt32))
		must(t, second2(w.dial("b").Create(ctx, "/n/m-", nil, session.EphemeralSequential)))
		err := NewNode(NodeConfig{Path: "/n/m-", Mode: session.EphemeralSequential, Internal: keeper.Config{Sequence: &keeper.Sequence{}}}).Run(ctx, s)
		if !errors.Is(err, ErrSequence) {
			t.Errorf("got %v, want ErrSequence", err)
		}
	})
}

// A consumer keeps a list. The directory is removed and made again, by a client of ours or
// another: the items come in the order in which they were put.
func TestQueue_OrderOverAReapedDirectory(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprint("foreign ", foreign), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				s := w.dial("other")
				q, other := NewQueue(w.dial("a"), QueueConfig{Path: "/q"}), NewQueue(s, QueueConfig{Path: "/q"})
				put := func(body string) {
					if !foreign || !w.Exists("/q-ops") || w.Exists("/q") {
						must(t, other.Put(ctx, []byte(body)))
						return
					}
					must(t, second2(s.Create(ctx, "/q", nil, session.Container)))
					must(t, second2(s.Create(ctx, "/q/qn-", []byte(body), session.PersistentSequential)))
				}
				for i := range 3 {
					put(fmt.Sprint("a", i))
				}
				must(t, second(q.TryTake(ctx)))
				for range 2 {
					must(t, second(other.TryTake(ctx)))
				}
				time.Sleep(5 * time.Minute)
				if w.Exists("/q") {
					t.Error("the directory was not reaped")
				}
				for i := range 3 {
					put(fmt.Sprint("b", i))
				}
				for i := range 3 {
					body, err := q.TryTake(ctx)
					if must(t, err); string(body) != fmt.Sprint("b", i) {
						t.Errorf("item %d: got %s", i, body)
					}
				}
			})
		})
	}
}

// A consumer has read an item. Before its multi, another consumer takes the item, the
// server removes the directory, and a producer puts another item, which gets the same name:
// each item is delivered once.
func TestQueue_AnotherItemOfTheSameName(t *testing.T) {
	for _, kind := range []string{"take", "reserve", "take priority", "reserve priority", "purge", "ack", "dead letter"} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) { sameName(t, w, kind) })
		})
	}
}

func sameName(t *testing.T, w *world, kind string) {
	t.Helper()
	ctx := t.Context()
	late, other := w.dial("late"), w.dial("other")
	dir := "/q"
	queue := func(s *session.Session, attempts int) (*items, func(string) error) {
		if kind == "take priority" || kind == "reserve priority" {
			q := NewPriorityQueue(s, PriorityQueueConfig{Path: "/q", Reserve: kind == "reserve priority"})
			dir = q.dir
			return q.items, func(body string) error { return q.Put(ctx, []byte(body), 5) }
		}
		q := NewQueue(s, QueueConfig{Path: "/q", MaxAttempts: attempts})
		return q.items, func(body string) error { return q.Put(ctx, []byte(body)) }
	}
	attempts := 0
	if kind == "dead letter" {
		attempts = 1
	}
	q, _ := queue(late, attempts)
	o, put := queue(other, 0)
	must(t, put("old"))
	if kind == "dead letter" {
		r, err := o.TryReserve(ctx)
		must(t, err)
		must(t, r.Return(ctx))
	}
	var mine *Reservation
	if kind == "ack" {
		var err error
		mine, err = q.TryReserve(ctx)
		must(t, err)
	}
	w.between("late", jute.OpMulti, dir+"/", func() {
		if mine != nil {
			must(t, other.Delete(ctx, mine.claim, -1))
		}
		body, err := o.TryTake(ctx)
		if must(t, err); string(body) != "old" {
			t.Errorf("the other consumer took %q", body)
		}
		must(t, other.Delete(ctx, dir, -1)) // as the server does
		must(t, put("new"))
		if kind == "dead letter" || mine != nil {
			r, err := o.TryReserve(ctx)
			must(t, err)
			if mine == nil {
				must(t, r.Return(ctx))
			}
		}
	})
	switch kind {
	case "take", "take priority":
		body, err := q.TryTake(ctx)
		if must(t, err); string(body) != "new" {
			t.Errorf("took %q", body)
		}
		return
	case "reserve", "reserve priority":
		r, err := q.TryReserve(ctx)
		must(t, err)
		if string(r.Body()) != "new" {
			t.Errorf("reserved %q", r.Body())
		}
		must(t, r.Return(ctx))
	case "purge":
		if n, err := q.Purge(ctx); n != 0 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
	case "ack":
		if err := mine.Ack(ctx); !errors.Is(err, ErrNotHeld) {
			t.Errorf("acknowledged the item of another consumer: %v", err)
		}
		if n, err := o.Len(ctx); n != 1 || err != nil {
			t.Errorf("items: %d, %v", n, err)
		}
		return
	case "dead letter":
		_, err := q.TryReserve(ctx)
		if !errors.Is(err, ErrEmpty) {
			t.Errorf("got %v, want ErrEmpty", err)
		}
		body, err := NewQueue(other, QueueConfig{Path: "/q-dead"}).TryTake(ctx)
		if must(t, err); string(body) != "new" {
			t.Errorf("dead letter %q", body)
		}
		return
	}
	body, err := o.TryTake(ctx)
	if must(t, err); string(body) != "new" {
		t.Errorf("left %q", body)
	}
}

// A purge deletes many items in one request, and leaves reserved ones.
func TestQueue_PurgeInFewRequests(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		q, items := NewQueue(s, QueueConfig{Path: "/q"}), 1000
		for range items {
			must(t, q.Put(ctx, nil))
		}
		r, err := q.TryReserve(ctx)
		must(t, err)
		before := total(s)
		n, err := NewQueue(s, QueueConfig{Path: "/q"}).Purge(ctx)
		if must(t, err); n != items-1 {
			t.Errorf("purged %d, want %d", n, items-1)
		}
		if used := total(s) - before; used > uint64(items)/50 {
			t.Errorf("%d requests for %d items", used, items)
		}
		must(t, r.Ack(ctx))
	})
}
