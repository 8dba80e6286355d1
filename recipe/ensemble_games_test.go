package recipe_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// holding is what a lock of any kind gives.
type holding interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// acquire takes a hold, and returns how much of the room the hold takes.
type acquire func(ctx context.Context) (holding, int, error)

// single adapts an Acquire whose holders take one each.
func single[H holding](take func(context.Context) (H, error)) acquire { return weighing(1, take) }

func weighing[H holding](weight int, take func(context.Context) (H, error)) acquire {
	return func(ctx context.Context) (holding, int, error) {
		h, err := take(ctx)
		if err != nil {
			return nil, 0, err
		}
		return h, weight, nil
	}
}

// writeWeight is the whole room of a read-write lock.
const writeWeight = 100

// readOrWrite makes one writer and two readers.
func readOrWrite(s *session.Session, path string, i int) acquire {
	l := recipe.NewRWLock(s, recipe.LockConfig{Path: path})
	if i == 0 {
		return weighing(writeWeight, l.Lock)
	}
	return weighing(1, l.RLock)
}

// exclusive has each client hold twice what has a limited room.
func exclusive(open func(s *session.Session, path string, i int) acquire, room int) game {
	return func(ctx context.Context, all []*session.Session, path string) error {
		var mu sync.Mutex // mu guards inside
		inside := 0
		move := func(by int) error {
			mu.Lock()
			defer mu.Unlock()
			if inside += by; inside > room {
				return fmt.Errorf("%d inside, room is for %d", inside, room)
			}
			return nil
		}
		return together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
			take := open(s, path, i)
			for range 2 {
				h, weight, err := take(ctx)
				if err != nil {
					return err
				}
				leave := sync.OnceFunc(func() { _ = move(-weight) })
				context.AfterFunc(h.Context(), leave) // it may be lost, too
				if err := move(weight); err != nil && h.Context().Err() == nil {
					return err
				}
				leave()
				if err := h.Release(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// revocable has a holder that gives back when it is asked to.
func revocable(ctx context.Context, all []*session.Session, path string) error {
	holds := make(chan struct{})
	return together(ctx, all[:2], func(ctx context.Context, s *session.Session, i int) error {
		l := recipe.NewLock(s, recipe.LockConfig{Path: path, Revocable: true})
		if i == 1 {
			select {
			case <-holds:
				return l.Revoke(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		h, err := l.Acquire(ctx)
		if err != nil {
			return err
		}
		close(holds)
		select {
		case <-h.Revoked():
		case <-h.Context().Done():
		case <-ctx.Done():
		}
		return h.Release(ctx)
	})
}

// barrier has two who wait until the third opens.
func barrier(ctx context.Context, all []*session.Session, path string) error {
	if err := recipe.NewBarrier(all[0], path).Close(ctx); err != nil {
		return err
	}
	var mu sync.Mutex // mu guards open
	open := false
	return together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		b := recipe.NewBarrier(s, path)
		if i == 0 {
			mu.Lock()
			open = true
			mu.Unlock()
			return b.Open(ctx)
		}
		err := b.Wait(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && !open {
			return fmt.Errorf("passed a closed barrier")
		}
		return err
	})
}

// doubleBarrier has three who go in and out together.
func doubleBarrier(ctx context.Context, all []*session.Session, path string) error {
	var mu sync.Mutex // mu guards come
	come := 0
	return together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		b := recipe.NewDoubleBarrier(s, recipe.DoubleBarrierConfig{Path: path, N: len(all), ID: fmt.Sprint(i)})
		mu.Lock()
		come++
		mu.Unlock()
		h, err := b.Enter(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		early := come < len(all)
		mu.Unlock()
		if early {
			return fmt.Errorf("let in before all had come")
		}
		return b.Leave(ctx, h)
	})
}

// bodies collects what was taken.
type bodies struct {
	mu  sync.Mutex // mu guards all
	all []string
}

func (b *bodies) add(body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, string(body))
}

func (b *bodies) check(want ...string) error {
	slices.Sort(b.all)
	if !slices.Equal(b.all, want) {
		return fmt.Errorf("took %v, want %v", b.all, want)
	}
	return nil
}

// queue has everybody put one and take one.
func queue(ctx context.Context, all []*session.Session, path string) error {
	var took bodies
	err := together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		q := recipe.NewQueue(s, recipe.QueueConfig{Path: path})
		if err := q.Put(ctx, fmt.Append(nil, i)); err != nil {
			return err
		}
		body, err := q.Take(ctx)
		took.add(body)
		return err
	})
	if err != nil {
		return err
	}
	return took.check("0", "1", "2")
}

// priorityQueue has everybody put one, reserve one and acknowledge it.
func priorityQueue(ctx context.Context, all []*session.Session, path string) error {
	var took bodies
	err := together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		q := recipe.NewPriorityQueue(s, recipe.PriorityQueueConfig{Path: path, Reserve: true})
		if err := q.Put(ctx, fmt.Append(nil, i), 10-i); err != nil {
			return err
		}
		r, err := q.Reserve(ctx)
		if err != nil {
			return err
		}
		took.add(r.Body())
		return r.Ack(ctx)
	})
	if err != nil {
		return err
	}
	return took.check("0", "1", "2")
}

// transaction has two sites and a coordinator, who must agree.
func transaction(ctx context.Context, all []*session.Session, path string) error {
	x := recipe.NewTxn(all[0], path)
	if err := x.Propose(ctx, recipe.Proposal{Sites: []string{"1", "2"}, Deadline: time.Now().Add(time.Hour)}); err != nil {
		return err
	}
	var mu sync.Mutex // mu guards decisions
	var decisions []recipe.Decision
	err := together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		x := recipe.NewTxn(s, path)
		decide := x.Coordinate
		if i > 0 {
			if _, err := x.Vote(ctx, fmt.Sprint(i), recipe.Commit); err != nil {
				return err
			}
			decide = x.AwaitOrAbort
		}
		d, err := decide(ctx)
		mu.Lock()
		defer mu.Unlock()
		decisions = append(decisions, d)
		return err
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(decisions, func(d recipe.Decision) bool { return d != recipe.Commit }) {
		return fmt.Errorf("decisions: got %v, want commit", decisions)
	}
	return nil
}

// counter has everybody add one, twice.
func counter(ctx context.Context, all []*session.Session, path string) error {
	err := together(ctx, all, func(ctx context.Context, s *session.Session, _ int) error {
		c := recipe.NewCounter(s, recipe.CounterConfig{Path: path})
		for range 2 {
			if _, err := c.Add(ctx, 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := all[0].Sync(ctx, path); err != nil {
		return err
	}
	n, err := recipe.NewCounter(all[0], recipe.CounterConfig{Path: path}).Value(ctx)
	if err == nil && n != int64(2*len(all)) {
		return fmt.Errorf("counted %d, want %d", n, 2*len(all))
	}
	return err
}

// group has two members and one who sees both come.
func group(ctx context.Context, all []*session.Session, path string) error {
	joined, leave := context.WithCancel(ctx)
	defer leave()
	return together(joined, all, func(ctx context.Context, s *session.Session, i int) error {
		g := recipe.NewGroup(s, path, nil)
		if i > 0 {
			return unless(joined, g.Join(ctx, fmt.Sprint(i), nil))
		}
		return unless(joined, g.Follow(ctx, func(members []recipe.Member) {
			if len(members) == 2 {
				leave()
			}
		}))
	})
}

// unless returns err while ctx lives: what ends with it is no error.
func unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = nil
	}
	return err
}

// elections lets each session lead once, and checks that no two lead at a time.
func elections(ctx context.Context, all []*session.Session, path string) error {
	var mu sync.Mutex // mu guards what follows
	leader, last := -1, int64(0)
	return together(ctx, all, func(ctx context.Context, s *session.Session, i int) error {
		own, done := context.WithCancelCause(ctx)
		defer done(nil)
		c := election.New(election.Config{Name: "e", Path: path, ID: fmt.Sprint(i), Lead: func(term context.Context, t election.Term) {
			mu.Lock()
			if term.Err() == nil && (leader >= 0 || t.ID <= last) {
				done(fmt.Errorf("%d leads in term %d beside %d in term %d", i, t.ID, leader, last))
			}
			leader, last = i, max(last, t.ID)
			mu.Unlock()
			_, _, _ = s.Exists(term, path) // leading takes a while
			mu.Lock()
			leader = -1
			mu.Unlock()
			done(nil)
			<-term.Done()
		}})
		err := c.Run(own, s, nil)
		if own.Err() != nil && ctx.Err() == nil {
			if cause := context.Cause(own); cause != context.Canceled { //nolint:errorlint // it is that very one
				return cause
			}
			return nil
		}
		return err
	})
}
