package recipe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/session"
)

// misuses are the first steps of each recipe, below /r.
func misuses() []scenario {
	return append(scenarios(), []scenario{
		{"rwlock", func(ctx context.Context, s *session.Session) error {
			h, err := NewRWLock(s, LockConfig{Path: "/r/rw"}).RLock(ctx)
			if err != nil {
				return err
			}
			return h.Release(ctx)
		}},
		{"revoke", func(ctx context.Context, s *session.Session) error {
			l := NewLock(s, LockConfig{Path: "/r/revocable", Revocable: true})
			h, err := l.Acquire(ctx)
			if err != nil {
				return err
			}
			return errors.Join(l.Revoke(ctx), h.Release(ctx))
		}},
		{"multi", func(ctx context.Context, s *session.Session) error {
			h, err := NewMultiLock(NewLock(s, LockConfig{Path: "/r/m1"}), NewLock(s, LockConfig{Path: "/r/m2"})).Acquire(ctx)
			if err != nil {
				return err
			}
			return h.Release(ctx)
		}},
		{"barrier", func(ctx context.Context, s *session.Session) error { return NewBarrier(s, "/r/b").Close(ctx) }},
		{"group", func(ctx context.Context, s *session.Session) error {
			joined, leave := context.WithCancel(ctx)
			defer leave()
			time.AfterFunc(time.Second, leave)
			return NewGroup(s, "/r/group", nil).Join(joined, "me", nil)
		}},
	}...)
}

// A recipe that is used after its session has ended says so, whichever it is.
func TestMisuse_AfterTheSessionsEnd(t *testing.T) {
	for _, sc := range misuses() {
		t.Run(sc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				closed, expired := w.dial("closed"), w.dial("expired")
				must(t, closed.Close())
				if err := sc.run(t.Context(), closed); !errors.Is(err, session.ErrClosed) {
					t.Errorf("closed: got %v, want ErrClosed", err)
				}
				w.ExpireSession(expired.ID())
				<-expired.Done()
				if err := sc.run(t.Context(), expired); !errors.Is(err, session.ErrExpired) {
					t.Errorf("expired: got %v, want ErrExpired", err)
				}
				if w.Exists("/r") {
					t.Error("something was created")
				}
			})
		})
	}
}

// A create that the ACL refuses ends with that error, and leaves nothing behind.
func TestMisuse_RefusedACL(t *testing.T) {
	for _, sc := range misuses() {
		t.Run(sc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				must(t, w.CreateWith("/r", nil, jute.FlagPersistent, []jute.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}}))
				if err := sc.run(t.Context(), w.dial("a")); !errors.Is(err, session.ErrNoAuth) {
					t.Errorf("got %v, want ErrNoAuth", err)
				}
				for path := range w.Tree() {
					if strings.HasPrefix(path, "/r/") {
						t.Errorf("left behind: %s", path)
					}
				}
			})
		})
	}
}

// Recipes ignore children that belong to no recipe's layout, and leave them alone.
func TestMisuse_ForeignChildren(t *testing.T) {
	foreign := []string{
		"/r/lock/backup", "/r/lock/0000000000", "/r/lock/x-lock-", "/r/rw/x", "/r/sem/locks/x", "/r/sem/leases/lease-", "/r/sem/other",
		"/r/q/x", "/r/q/qn-", "/r/q/qn-x", "/r/pq/entries/x", "/r/pq/entries/entry-5-0000000000", "/r/pq/taken/x", "/r/group/x",
		"/r/m1/x", "/r/revocable/x",
	}
	for _, sc := range misuses() {
		t.Run(sc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				for _, path := range foreign {
					for i := 1; i < len(path); i++ {
						if path[i] == '/' && !w.Exists(path[:i]) {
							must(t, w.Create(path[:i], nil))
						}
					}
					must(t, w.Create(path, []byte("foreign")))
				}
				// The counts of queues are of all children.
				if err := sc.run(t.Context(), w.dial("a")); err != nil && !strings.Contains(err.Error(), "left ") {
					t.Errorf("beside foreign children: %v", err)
				}
				for _, path := range foreign {
					if node, err := w.Get(path); err != nil || string(node.Data) != "foreign" {
						t.Errorf("%s: got %q, %v, want it untouched", path, node.Data, err)
					}
				}
			})
		})
	}
}

// The znodes of a recipe are deleted by an operator, or reaped as a container is,
// between two uses: the next use makes them again. Sequences start again at 0,
// fences do not.
func TestMisuse_ParentsVanishBetweenUses(t *testing.T) {
	for _, sc := range misuses() {
		t.Run(sc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				s := w.dial("a")
				for use := range 3 {
					if err := sc.run(t.Context(), s); err != nil {
						t.Fatalf("use %d: %v", use, err)
					}
					removeTree(t, w, "/r")
				}
			})
		})
	}
	bubble(t, func(t *testing.T, w *world) {
		lock := NewLock(w.dial("a"), LockConfig{Path: "/r/lock"})
		fence := int64(0)
		for range 3 {
			h, err := lock.Acquire(t.Context())
			must(t, err)
			if h.Fence() <= fence || !strings.HasSuffix(h.Path(), "-0000000000") {
				t.Errorf("fence %d after %d at %s, want it to grow while the sequence starts again", h.Fence(), fence, h.Path())
			}
			fence = h.Fence()
			must(t, h.Release(t.Context()))
			removeTree(t, w, "/r")
		}
	})
}

// removeTree deletes a subtree, the children first.
func removeTree(t *testing.T, w *world, root string) {
	t.Helper()
	for w.Exists(root) {
		for path := range w.Tree() {
			if path == root || strings.HasPrefix(path, root+"/") {
				if names, err := w.Children(path); err == nil && len(names) == 0 {
					must(t, w.Delete(path))
				}
			}
		}
	}
}

// All znodes vanish while recipes wait. A recipe that held a place reports its loss;
// one that waits for something to come goes on waiting.
func TestMisuse_ParentsVanishWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		h, err := NewLock(s, LockConfig{Path: "/r/lock"}).Acquire(t.Context())
		must(t, err)
		waits := map[string]chan error{}
		wait := func(name string, fn func() error) {
			done := make(chan error, 1)
			waits[name] = done
			go func() { done <- fn() }()
		}
		wait("lock", func() error {
			_, err := NewLock(s, LockConfig{Path: "/r/lock"}).Acquire(t.Context())
			return err
		})
		wait("double", func() error {
			_, err := NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/r/d", N: 2}).Enter(t.Context())
			return err
		})
		q := NewQueue(s, QueueConfig{Path: "/r/q"})
		must(t, q.Put(t.Context(), []byte("x")))
		_, err = q.Take(t.Context())
		must(t, err)
		wait("queue", func() error {
			_, err := q.Take(t.Context())
			return err
		})
		must(t, NewBarrier(s, "/r/b").Close(t.Context()))
		wait("barrier", func() error { return NewBarrier(s, "/r/b").Wait(t.Context()) })
		synctest.Wait()
		removeTree(t, w, "/r")
		// The holder's znode may vanish first: the lock is the waiter's then.
		if err := <-waits["lock"]; err != nil && !errors.Is(err, ErrLost) {
			t.Errorf("lock: got %v, want ErrLost", err)
		}
		must(t, <-waits["barrier"])
		time.Sleep(memTimeout)
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("the holder: got %v, want ErrLost", err)
		}
		must(t, q.Put(t.Context(), []byte("y")))
		must(t, <-waits["queue"])
		select {
		case err := <-waits["double"]:
			if !errors.Is(err, ErrLost) {
				t.Errorf("double barrier: got %v, want ErrLost", err)
			}
		default:
			t.Error("double barrier: it waits for ever without its member")
		}
	})
}

// Bodies over the limit and priorities out of range are refused before anything
// is sent.
func TestMisuse_RefusedBeforeItIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		before := total(s)
		large := make([]byte, maxBody+1)
		for name, c := range map[string]struct{ got, want error }{
			"fifo":      {NewQueue(s, QueueConfig{Path: "/q"}).Put(t.Context(), large), ErrTooLarge},
			"priority":  {NewPriorityQueue(s, PriorityQueueConfig{Path: "/q"}).Put(t.Context(), large, 1), ErrTooLarge},
			"range":     {NewPriorityQueue(s, PriorityQueueConfig{Path: "/q"}).Put(t.Context(), nil, -1), ErrPriority},
			"no sites":  {NewTxn(s, "/t").Propose(t.Context(), Proposal{}), ErrFormat},
			"no path":   {second(NewLock(s, LockConfig{Path: "lock"}).Acquire(t.Context())), session.ErrBadPath},
			"dialect":   {second(NewLock(s, LockConfig{Path: "/l", Dialect: "x"}).Acquire(t.Context())), ErrDialect},
			"nobody":    {second(NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/d"}).Enter(t.Context())), ErrFormat},
			"permits":   {second(NewSemaphore(s, SemaphoreConfig{Path: "/s"}).Acquire(t.Context())), ErrFormat},
			"take over": {second(NewPriorityQueue(s, PriorityQueueConfig{Path: "/q"}).TakeOver(t.Context(), "x")), ErrDialect},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: got %v, want %v", name, c.got, c.want)
			}
		}
		if sent := total(s) - before; sent != 0 {
			t.Errorf("%d requests were sent", sent)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// A config that cannot work is an error of the first call. It panics nowhere, creates
// nothing, and gives nobody a lease that is over.
func TestMisuse_Configs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		lease := func(cfg LeaseConfig) error {
			cfg.Path = "/r/lease"
			_, err := NewLease(s, cfg).TryAcquire(ctx)
			return err
		}
		work := func(context.Context, string, *Hold) {}
		join := func(id string) error { return NewGroup(s, "/r/g", nil).Join(ctx, id, nil) }
		begun := time.Now()
		for field, err := range map[string]error{
			"Work":            NewPartitioner(PartitionerConfig{Path: "/r/p", ID: "a", Shards: []string{"1"}}).Run(ctx, s),
			"ID or shard":     NewPartitioner(PartitionerConfig{Path: "/r/p", Shards: []string{"1"}, Work: work}).Run(ctx, s),
			`shard "a/b"`:     NewPartitioner(PartitionerConfig{Path: "/r/p", ID: "a", Shards: []string{"a/b"}, Work: work}).Run(ctx, s),
			"Duration 0s":     lease(LeaseConfig{Holder: "a"}),
			"Duration 1ms":    lease(LeaseConfig{Holder: "a", Duration: time.Millisecond}),
			"Holder":          lease(LeaseConfig{Duration: time.Minute}),
			"K is 0":          second(NewSemaphore(s, SemaphoreConfig{Path: "/r/s"}).Acquire(ctx)),
			"0 permits":       second(NewSemaphore(s, SemaphoreConfig{Path: "/r/s", K: 1}).AcquireN(ctx, 0)),
			"N is 0":          second(NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/r/d"}).Enter(ctx)),
			`ID "a/b"`:        second(NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/r/d", N: 1, ID: "a/b"}).Enter(ctx)),
			`id ""`:           join(""),
			`id "a/b"`:        join("a/b"),
			"no locks":        second(NewMultiLock().Acquire(ctx)),
			"or one is nil":   second(NewMultiLock(NewLock(s, LockConfig{Path: "/r/l"}), nil).Acquire(ctx)),
			"one is nil":      second(NewMultiLock((*Lock)(nil), NewLock(s, LockConfig{Path: "/r/l"})).Acquire(ctx)),
			"is nil":          second(NewMultiLock(NewLock(s, LockConfig{Path: "/r/l"}), (*Semaphore)(nil)).TryAcquire(ctx)),
			"unknown dialect": second(NewLock(s, LockConfig{Path: "/r/l", Dialect: "x"}).Acquire(ctx)),
		} {
			if err == nil || errors.Is(err, ErrInTheWay) || !strings.Contains(err.Error(), field) || time.Since(begun) > 0 {
				t.Errorf("got %v after %s, want an error that says %q", err, time.Since(begun), field)
			}
		}
		if w.Exists("/r") {
			t.Error("something was created")
		}
	})
}
