package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// manager runs sessions on a ZooKeeper in memory.
func manager(ctx context.Context) (*session.Manager, *memzk.Server, func()) {
	srv := memzk.New(memzk.Options{})
	m, err := session.New(session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial})
	if err != nil {
		panic(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = m.Run(run) }()
	return m, srv, func() { stop(); <-ended; srv.Close() }
}

func ExampleWhileLocked() {
	ctx := context.Background()
	m, _, end := manager(ctx)
	defer end()
	err := recipe.WhileLocked(ctx, m, recipe.LockConfig{Path: "/locks/deploy"}, func(ctx context.Context, hold *recipe.Hold) error {
		// ctx ends with the hold.
		fmt.Println("deploys under a fence:", hold.Fence() > 0)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// deploys under a fence: true
	// <nil>
}

// The lock is taken again when its znode is deleted, and when its session expires. An
// error of the work under a lock that holds is the caller's.
func TestWhileLocked(t *testing.T) {
	testhelp.InTurn(t, 2)
	m, srv, end := manager(t.Context())
	defer end()
	own := errors.New("of the work")
	var fences []int64
	err := recipe.WhileLocked(t.Context(), m, recipe.LockConfig{Path: "/locks/deploy"}, func(ctx context.Context, hold *recipe.Hold) error {
		fences = append(fences, hold.Fence())
		switch len(fences) {
		case 1:
			if err := srv.Delete(hold.Path()); err != nil {
				t.Error(err)
			}
		case 2:
			for _, id := range srv.SessionIDs() {
				srv.ExpireSession(id)
			}
		default:
			return own
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, own) || len(fences) != 3 || fences[0] >= fences[1] || fences[1] >= fences[2] {
		t.Errorf("error %v, fences %v", err, fences)
	}
	if names, err := srv.Children("/locks/deploy"); err != nil || len(names) != 0 {
		t.Errorf("left %q, %v", names, err)
	}
}

// An error of the work under a lock that holds is the caller's, also when it is the loss of
// another lock.
func TestWhileLocked_LossOfAnotherLock(t *testing.T) {
	m, _, end := manager(t.Context())
	defer end()
	times := 0
	err := recipe.WhileLocked(t.Context(), m, recipe.LockConfig{Path: "/locks/deploy"}, func(context.Context, *recipe.Hold) error {
		if times++; times > 3 {
			return nil
		}
		return fmt.Errorf("another lock: %w", recipe.ErrLost)
	})
	if !errors.Is(err, recipe.ErrLost) || times != 1 {
		t.Errorf("the work was done %d times: %v", times, err)
	}
}

// A waiter whose znode somebody deletes joins again, behind the others.
func TestWhileLocked_WaiterIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, srv, end := manager(t.Context())
		defer end()
		s, err := m.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hold, err := recipe.NewLock(s, recipe.LockConfig{Path: "/locks/deploy"}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- recipe.WhileLocked(t.Context(), m, recipe.LockConfig{Path: "/locks/deploy"}, func(context.Context, *recipe.Hold) error { return nil })
		}()
		synctest.Wait()
		names, _ := srv.Children("/locks/deploy")
		for _, name := range names {
			if path := "/locks/deploy/" + name; path != hold.Path() {
				_ = srv.Delete(path)
			}
		}
		time.Sleep(time.Minute)
		if err := hold.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

// Work that is done is not done again, even if the lock cannot be released or its session
// ends meanwhile.
func TestWhileLocked_DoneOnce(t *testing.T) {
	for name, fault := range map[string]func(*memzk.Server){
		"cut off": func(srv *memzk.Server) { srv.Partition() },
		"expired": func(srv *memzk.Server) {
			srv.Partition()
			for _, id := range srv.SessionIDs() {
				srv.ExpireSession(id)
			}
			time.AfterFunc(time.Second, func() { srv.Heal() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, srv, end := manager(t.Context())
				defer end()
				times := 0
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				err := recipe.WhileLocked(ctx, m, recipe.LockConfig{Path: "/locks/deploy"}, func(context.Context, *recipe.Hold) error {
					times++
					fault(srv)
					return nil
				})
				if err != nil || times != 1 {
					t.Errorf("the work was done %d times: %v", times, err)
				}
			})
		})
	}
}

// A full queue in a layout of Curator that we do not read is refused by name, not empty.
func TestQueue_CuratorsLayoutIsNamed(t *testing.T) {
	for name, want := range map[string]string{
		"queue-0000000000":          "DistributedQueue of Curator",
		"queue-1000000050000000000": "DistributedPriorityQueue of Curator",
		"queue-0FFFFFFFB0000000000": "DistributedPriorityQueue of Curator",
		"queue-|a|0000000000":       "DistributedIdQueue or DistributedDelayQueue of Curator",
		"qn-other":                  "",
	} {
		s, end := open()
		path := "/queues/q/" + name
		if err := s.CreateParents(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Create(t.Context(), path, nil, session.Persistent); err != nil {
			t.Fatal(err)
		}
		q := recipe.NewQueue(s, recipe.QueueConfig{Path: "/queues/q"})
		_, err := q.TryTake(t.Context())
		_, listErr := q.Items(t.Context(), 0)
		for call, err := range map[string]error{"take": err, "list": listErr, "first put": q.Put(t.Context(), nil), "put": q.Put(t.Context(), nil)} {
			kind, refused := errors.AsType[*recipe.KindError](err)
			if refused != (want != "") || refused && kind.Have != want || !refused && err != nil && !errors.Is(err, recipe.ErrEmpty) {
				t.Errorf("%s %s: %v", call, name, err)
			}
		}
		end()
	}
}
