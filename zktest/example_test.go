package zktest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/zktest"
)

// exampleT takes the place of the *testing.T, which an example does not have.
type exampleT struct {
	testing.TB

	cleanups []func()
}

func (t *exampleT) Helper()                   {}
func (t *exampleT) Context() context.Context  { return context.Background() }
func (t *exampleT) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (t *exampleT) Cleanup(f func())          { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// A test of two programs that share a lock: when the session of one expires, the other one continues. Inside a bubble of
// testing/synctest, Partition and a wait do the same in virtual time.
func ExampleServer() {
	t := &exampleT{} // in a test, its *testing.T
	defer t.end()

	zk := zktest.NewServer(t)
	a, b := zk.Session(t, "a"), zk.Session(t, "b")
	hold, err := recipe.NewLock(a, recipe.LockConfig{Path: "/locks/x"}).Acquire(t.Context())
	if err != nil {
		t.Fatalf("a: %v", err)
	}
	contender := "/locks/x/" + zk.List("/locks/x")[0]
	fmt.Println("a holds the lock:", zk.Owner(contender) == a.ID())
	zk.Expire(a)
	next, err := recipe.NewLock(b, recipe.LockConfig{Path: "/locks/x"}).Acquire(t.Context())
	if err != nil {
		t.Fatalf("b: %v", err)
	}
	<-hold.Context().Done()
	fmt.Println("a:", context.Cause(hold.Context()))
	fmt.Println("b has a larger fence:", next.Fence() > hold.Fence())
	// Output:
	// a holds the lock: true
	// a: session expired: the server says so
	// b has a larger fence: true
}

// The reply to a write is lost. The client cannot know that the server has applied it.
func ExampleOp() {
	t := &exampleT{} // in a test, its *testing.T
	defer t.end()

	zk := zktest.NewServer(t)
	s := zk.Session(t, "a")
	zk.Put(t, "/counter", "1")
	lost := zk.LoseReply(zktest.Set, 1, true)
	_, err := s.Set(t.Context(), "/counter", []byte("2"), -1)
	<-lost
	data, ok := zk.Data("/counter")
	fmt.Println("unknown:", errors.Is(err, session.ErrUnknown))
	fmt.Println("counter:", data, ok)
	// Output:
	// unknown: true
	// counter: 2 true
}

// An ensemble of three servers serves while two are alive.
func ExampleOptions() {
	t := &exampleT{} // in a test, its *testing.T
	defer t.end()

	zk := zktest.NewServer(t, zktest.Options{Servers: 3, Version: "3.9", Users: map[string]string{"app": "secret"}})
	s := zk.Session(t, "a")
	fmt.Println("leader:", zk.Leader())
	zk.Kill("zk1")
	fmt.Println("leader:", zk.Leader())
	err := s.CreateParents(t.Context(), "/config/app")
	fmt.Println("written:", err, zk.List("/"))
	zk.Kill("zk2")
	fmt.Printf("leader: %q\n", zk.Leader())
	// Output:
	// leader: zk1
	// leader: zk2
	// written: <nil> [config zookeeper]
	// leader: ""
}
