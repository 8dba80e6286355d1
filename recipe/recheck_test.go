package recipe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// An event is lost. Each recipe finds the change within two slow looks, and asks
// little until then.
func TestRecheck_ALostEventIsFound(t *testing.T) {
	testhelp.InTurn(t, 2)
	one := func(got chan<- error) func(error) { return func(err error) { got <- err } }
	type action = func(ctx context.Context, w *world, other *session.Session) error
	closes := func(_ context.Context, _ *world, o *session.Session) error { return o.Close() }
	deletes := func(contender int) action {
		return func(ctx context.Context, w *world, o *session.Session) error {
			list, err := Contenders(ctx, o, "/x")
			if err != nil {
				return err
			}
			return w.Delete(list[contender].Path)
		}
	}
	unlessLost := func(err error) error {
		if errors.Is(err, ErrLost) {
			return nil
		}
		return err
	}
	for name, c := range map[string]struct {
		// before is done by another session, then wait runs with a deaf one, then after
		// must make it call done.
		before func(ctx context.Context, other *session.Session) error
		wait   func(ctx context.Context, s *session.Session, done func(error))
		after  action
	}{
		"lock": {
			before: func(ctx context.Context, o *session.Session) error {
				return second(NewLock(o, LockConfig{Path: "/x"}).Acquire(ctx))
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewLock(s, LockConfig{Path: "/x"}).Acquire(ctx)))
			},
			after: closes,
		},
		"read lock": {
			before: func(ctx context.Context, o *session.Session) error {
				return second(NewRWLock(o, LockConfig{Path: "/x"}).Lock(ctx))
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewRWLock(s, LockConfig{Path: "/x"}).RLock(ctx)))
			},
			after: closes,
		},
		"semaphore": {
			before: func(ctx context.Context, o *session.Session) error {
				return second(NewSemaphore(o, SemaphoreConfig{Path: "/x", K: 1}).Acquire(ctx))
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewSemaphore(s, SemaphoreConfig{Path: "/x", K: 1}).Acquire(ctx)))
			},
			after: closes,
		},
		"candidate whose znode is deleted": {
			before: func(ctx context.Context, o *session.Session) error {
				ps, err := Candidates("/x", "", nil)
				if err != nil {
					return err
				}
				return second(ps.Join(ctx, o, nil))
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				ps, _ := Candidates("/x", "", nil)
				p, err := ps.Join(ctx, s, []byte("deaf"))
				if err != nil {
					done(err)
					return
				}
				done(unlessLost(p.Wait(ctx)))
			},
			after: deletes(1),
		},
		"hold whose znode is deleted": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				h, err := NewLock(s, LockConfig{Path: "/x"}).Acquire(ctx)
				if err != nil {
					done(err)
					return
				}
				<-h.Context().Done()
				done(unlessLost(h.Err()))
			},
			after: deletes(0),
		},
		"follower of a leader": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				ps, _ := Candidates("/x", "", nil)
				_ = ps.Follow(ctx, s, func(l Leader) {
					if l.Path != "" {
						done(nil)
					}
				})
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				ps, _ := Candidates("/x", "", nil)
				return second(ps.Join(ctx, o, nil))
			},
		},
		"queue": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewQueue(s, QueueConfig{Path: "/x"}).Take(ctx)))
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return NewQueue(o, QueueConfig{Path: "/x"}).Put(ctx, nil)
			},
		},
		"barrier": {
			before: func(ctx context.Context, o *session.Session) error { return NewBarrier(o, "/x").Close(ctx) },
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(NewBarrier(s, "/x").Wait(ctx))
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error { return NewBarrier(o, "/x").Open(ctx) },
		},
		"double barrier": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/x", N: 2}).Enter(ctx)))
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return second(NewDoubleBarrier(o, DoubleBarrierConfig{Path: "/x", N: 2}).Enter(ctx))
			},
		},
		"value": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				_ = NewValue[[]byte](s, "/x").Follow(ctx, func(v Versioned[[]byte]) {
					if v.Exists {
						done(nil)
					}
				})
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return second(NewValue[[]byte](o, "/x").CompareAndSet(ctx, Versioned[[]byte]{}, []byte("new")))
			},
		},
		"group": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				_ = NewGroup(s, "/x", nil).Follow(ctx, func(list []Member) {
					if len(list) > 0 {
						done(nil)
					}
				})
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return withParents(ctx, o, "/x/m", func() error { return second2(o.Create(ctx, "/x/m", nil, session.Ephemeral)) })
			},
		},
		"node": {
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				owned := 0
				_ = NewNode(NodeConfig{Path: "/x", Owned: func(is bool) {
					if is {
						owned++
					}
					if owned == 2 {
						done(nil)
					}
				}}).Run(ctx, s)
			},
			after: func(_ context.Context, w *world, _ *session.Session) error { return w.Delete("/x") },
		},
		"transaction": {
			before: func(ctx context.Context, o *session.Session) error {
				return NewTxn(o, "/x").Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(24 * time.Hour)})
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewTxn(s, "/x").Await(ctx)))
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return second(NewTxn(o, "/x").Abort(ctx))
			},
		},
		"coordinator": {
			before: func(ctx context.Context, o *session.Session) error {
				return NewTxn(o, "/x").Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(24 * time.Hour)})
			},
			wait: func(ctx context.Context, s *session.Session, done func(error)) {
				done(second(NewTxn(s, "/x").Coordinate(ctx)))
			},
			after: func(ctx context.Context, _ *world, o *session.Session) error {
				return second(NewTxn(o, "/x").Vote(ctx, "a", Commit))
			},
		},
	} {
		if testhelp.NotToday(name, 3) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				other := w.dial("other")
				if c.before != nil {
					must(t, c.before(ctx, other))
				}
				s := w.dial("deaf")
				got := make(chan error, 8) // size 8: some tell more than once
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					c.wait(ctx, s, one(got))
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				w.LoseEvents("deaf:2181")
				before := total(s)
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(got) > 0 {
					t.Fatalf("ended before anything happened: %v", <-got)
				}
				if n := total(s) - before; n > 600 {
					t.Errorf("%d requests in an hour of waiting", n)
				}
				go func() { // some come in together with the deaf one only
					if err := c.after(ctx, w, other); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}()
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				select {
				case err := <-got:
					must(t, err)
				default:
					t.Error("not noticed in three minutes")
				}
				cancel()
				<-ended
			})
		})
	}
}

func second2[A, B any](_ A, _ B, err error) error { return err }
