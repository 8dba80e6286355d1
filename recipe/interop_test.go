package recipe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// inTurn holds with the peer first and then with ours, and the other way round.
// contenders is the directory in which they stand in line.
func inTurn(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, kind, path, contenders string, acquire func(context.Context) (*Hold, error)) {
	t.Helper()
	p.Tell(t, "acquire %s %s", kind, path)
	p.Expect(ctx, t, "held "+kind)
	got := make(chan *Hold, 1)
	go func() {
		h, err := acquire(ctx)
		if err != nil {
			t.Errorf("acquire: %v", err)
		}
		got <- h
	}()
	peers.AwaitChildren(ctx, t, s, contenders, 2)
	select {
	case <-got:
		t.Fatalf("%s: ours is held while the peer's is", kind)
	default:
	}
	p.Tell(t, "release %s", kind)
	h := <-got
	p.Expect(ctx, t, "released "+kind)
	if h == nil {
		t.FailNow()
	}

	p.Tell(t, "acquire %s %s", kind, path)
	peers.AwaitChildren(ctx, t, s, contenders, 2)
	if kind == "writelock" {
		// ZooKeeper's WriteLock waits for ever when its predecessor leaves
		// between its list and its watch.
		awaitWatched(ctx, t, h.Path())
	}
	p.Silent(t)
	must(t, h.Release(ctx))
	p.Expect(ctx, t, "held "+kind)
	p.Tell(t, "release %s", kind)
	p.Expect(ctx, t, "released "+kind)
}

// awaitWatched waits until somebody watches a znode on the shared server.
func awaitWatched(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		paths, err := zktest.FourLetterWord(ctx, zktest.Shared(t).Addr(), "wchp")
		must(t, err)
		if strings.Contains(paths, path+"\n") {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("nobody watches %s", path)
		}
	}
}

// together reads with the peer at the same time, and lets a writer of ours wait
// for both.
func together(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, path string, rw *RWLock) {
	t.Helper()
	p.Tell(t, "acquire read %s", path)
	p.Expect(ctx, t, "held read")
	r, err := rw.RLock(ctx)
	must(t, err)
	got := make(chan *Hold, 1)
	go func() {
		h, err := rw.Lock(ctx)
		if err != nil {
			t.Errorf("write lock: %v", err)
		}
		got <- h
	}()
	peers.AwaitChildren(ctx, t, s, path, 3)
	must(t, r.Release(ctx))
	select {
	case <-got:
		t.Fatal("ours writes while the peer reads")
	default:
	}
	p.Tell(t, "release read")
	h := <-got
	p.Expect(ctx, t, "released read")
	if h != nil {
		must(t, h.Release(ctx))
	}
}

// gates waits for each other's barriers.
func gates(ctx context.Context, t *testing.T, p *peers.Peer, b *Barrier, path string) {
	t.Helper()
	p.Tell(t, "gate close %s", path)
	p.Expect(ctx, t, "gate close")
	passed := make(chan error, 1)
	go func() { passed <- b.Wait(ctx) }()
	awaitWatched(ctx, t, path)
	if len(passed) > 0 {
		t.Fatal("ours passed a barrier that the peer has closed")
	}
	p.Tell(t, "gate open %s", path)
	p.Expect(ctx, t, "gate open")
	must(t, <-passed)

	must(t, b.Close(ctx))
	p.Tell(t, "acquire barrier %s", path)
	awaitWatched(ctx, t, path)
	p.Silent(t)
	must(t, b.Open(ctx))
	p.Expect(ctx, t, "held barrier")
}

// counts adds in turn with the peer.
func counts(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, kind, path, dialect string) {
	t.Helper()
	c := NewCounter(s, CounterConfig{Path: path, Dialect: dialect})
	for want := int64(258); want < 4*258; want += 2 * 258 {
		if got, err := c.Add(ctx, 258); got != want || err != nil {
			t.Errorf("%s: ours added: got %d, %v, want %d", kind, got, err, want)
		}
		p.Tell(t, "count %s %s 258", kind, path)
		p.Expect(ctx, t, fmt.Sprintf("count %d", want+258))
	}
	if got, err := c.Value(ctx); got != 4*258 || err != nil {
		t.Errorf("%s: got %d, %v, want %d", kind, got, err, 4*258)
	}
}

func TestInterop_Kazoo(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	p := peers.Kazoo(t, zktest.Shared(t).Addr())
	lock := func(name string) *Lock { return NewLock(s, LockConfig{Path: root + name, Dialect: Kazoo}) }
	rw := func(name string) *RWLock { return NewRWLock(s, LockConfig{Path: root + name, Dialect: Kazoo}) }
	sem := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 1, Dialect: Kazoo})

	inTurn(ctx, t, s, p, "lock", root+"/lock", root+"/lock", lock("/lock").Acquire)
	inTurn(ctx, t, s, p, "write", root+"/rw", root+"/rw", rw("/rw").RLock)
	inTurn(ctx, t, s, p, "read", root+"/rw2", root+"/rw2", rw("/rw2").Lock)
	inTurn(ctx, t, s, p, "write", root+"/rw3", root+"/rw3", rw("/rw3").Lock)
	together(ctx, t, s, p, root+"/rw4", rw("/rw4"))
	gates(ctx, t, p, NewBarrier(s, root+"/barrier"), root+"/barrier")
	counts(ctx, t, s, p, "text", root+"/text", CounterText)
	counts(ctx, t, s, p, "shared", root+"/shared", CounterShared)
	doubleBarrier(ctx, t, s, p, root+"/double")
	semaphoreInTurn(ctx, t, s, p, root+"/sem", root+"/sem-__lock__", sem)

	for _, reserve := range []bool{false, true} {
		kind := map[bool]string{false: "queue", true: "locking"}[reserve]
		q := NewPriorityQueue(s, PriorityQueueConfig{Path: root + "/" + kind, Reserve: reserve})
		must(t, q.Put(ctx, []byte("late"), 200))
		must(t, q.Put(ctx, []byte("early"), 5))
		for _, want := range []string{"early", "late"} {
			p.Tell(t, "get %s %s/%s", kind, root, kind)
			p.Expect(ctx, t, "got "+want)
		}
		p.Tell(t, "put %s %s/%s b 9", kind, root, kind)
		p.Expect(ctx, t, "put")
		p.Tell(t, "put %s %s/%s a 8", kind, root, kind)
		p.Expect(ctx, t, "put")
		for _, want := range []string{"a", "b"} {
			body, err := q.Take(ctx)
			must(t, err)
			if string(body) != want {
				t.Errorf("%s: took %q, want %q", kind, body, want)
			}
		}
	}
}

func TestInterop_Curator(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	p := peers.Curator(t, zktest.Shared(t).Addr(), peers.Quick)
	lock := func(name string) *Lock { return NewLock(s, LockConfig{Path: root + name}) }
	rw := func(name string) *RWLock { return NewRWLock(s, LockConfig{Path: root + name}) }
	sem := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 1})

	inTurn(ctx, t, s, p, "lock", root+"/lock", root+"/lock", lock("/lock").Acquire)
	inTurn(ctx, t, s, p, "write", root+"/rw", root+"/rw", rw("/rw").RLock)
	inTurn(ctx, t, s, p, "read", root+"/rw2", root+"/rw2", rw("/rw2").Lock)
	inTurn(ctx, t, s, p, "write", root+"/rw3", root+"/rw3", rw("/rw3").Lock)
	together(ctx, t, s, p, root+"/rw4", rw("/rw4"))
	gates(ctx, t, p, NewBarrier(s, root+"/barrier"), root+"/barrier")
	counts(ctx, t, s, p, "long", root+"/long", CounterLong)
	counts(ctx, t, s, p, "shared", root+"/shared", CounterShared)
	groupWith(ctx, t, s, p, root+"/group")
	inTurn(ctx, t, s, p, "writelock", root+"/writelock", root+"/writelock", lock("/writelock").Acquire)
	doubleBarrier(ctx, t, s, p, root+"/double")
	semaphoreInTurn(ctx, t, s, p, root+"/sem", root+"/sem/leases", sem)

	for _, kind := range []string{"simple", "zookeeper"} {
		q := NewQueue(s, QueueConfig{Path: root + "/" + kind})
		must(t, q.Put(ctx, []byte("one")))
		must(t, q.Put(ctx, []byte("two")))
		for _, want := range []string{"one", "two"} {
			p.Tell(t, "get %s %s/%s", kind, root, kind)
			p.Expect(ctx, t, "got "+want)
		}
		p.Tell(t, "put %s %s/%s three", kind, root, kind)
		p.Expect(ctx, t, "put")
		body, err := q.Take(ctx)
		must(t, err)
		if string(body) != "three" {
			t.Errorf("%s: took %q, want three", kind, body)
		}
	}
}

// groupWith sees the peer come and go.
func groupWith(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, path string) {
	t.Helper()
	g := NewGroup(s, path, nil)
	p.Tell(t, "acquire member %s", path)
	p.Expect(ctx, t, "held member")
	members, err := g.Members(ctx)
	must(t, err)
	if len(members) != 1 || members[0].ID != "curator" {
		t.Errorf("members: got %v, want the peer", members)
	}
	p.Tell(t, "release member")
	p.Expect(ctx, t, "released member")
	peers.AwaitChildren(ctx, t, s, path, 0)
}

// doubleBarrier enters and leaves together with the peer, in both orders.
func doubleBarrier(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, path string) {
	t.Helper()
	for round, oursFirst := range []bool{true, false} {
		path := fmt.Sprintf("%s/%d", path, round)
		d := NewDoubleBarrier(s, DoubleBarrierConfig{Path: path, N: 2, ID: []string{"", "host-1"}[round]})
		entered, left := make(chan *Hold, 1), make(chan error, 1)
		enter := func() {
			h, err := d.Enter(ctx)
			if err != nil {
				t.Errorf("enter: %v", err)
			}
			entered <- h
		}
		leave := func(h *Hold) { left <- d.Leave(ctx, h) }
		if oursFirst {
			go enter()
			peers.AwaitChildren(ctx, t, s, path, 1)
		}
		p.Tell(t, "acquire double %s", path)
		if !oursFirst {
			peers.AwaitChildren(ctx, t, s, path, 1)
			p.Silent(t)
			go enter()
		}
		h := <-entered
		p.Expect(ctx, t, "held double")
		if h == nil {
			t.FailNow()
		}
		if oursFirst {
			go leave(h)
			p.Tell(t, "release double")
		} else {
			p.Tell(t, "release double")
			go leave(h)
		}
		must(t, <-left)
		p.Expect(ctx, t, "released double")
	}
}

// semaphoreInTurn is inTurn for semaphores, whose waiters do not all stand in
// one directory.
func semaphoreInTurn(ctx context.Context, t *testing.T, s *session.Session, p *peers.Peer, path, waiters string, sem *Semaphore) {
	t.Helper()
	n := map[bool]int{true: 1, false: 2}[strings.HasSuffix(waiters, "__lock__")]
	h, err := sem.Acquire(ctx)
	must(t, err)
	p.Tell(t, "acquire semaphore %s", path)
	peers.AwaitChildren(ctx, t, s, waiters, n)
	p.Silent(t)
	must(t, h.Release(ctx))
	p.Expect(ctx, t, "held semaphore")
	if _, err := sem.TryAcquire(ctx); !errors.Is(err, ErrHeld) {
		t.Errorf("the peer has the permit: got %v, want ErrHeld", err)
	}
	p.Tell(t, "release semaphore")
	p.Expect(ctx, t, "released semaphore")
	h, err = sem.TryAcquire(ctx)
	must(t, err)
	must(t, h.Release(ctx))
}
