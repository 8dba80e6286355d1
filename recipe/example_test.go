package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// open returns a session with a ZooKeeper in memory, and what ends both.
func open() (*session.Session, func()) {
	server := memzk.New(memzk.Options{})
	s, err := session.Dial(context.Background(), session.Config{
		Servers: []string{"memory:2181"}, Timeout: 10 * time.Second, Dial: server.Dial,
	})
	if err != nil {
		panic(err)
	}
	return s, func() {
		_ = s.Close()
		server.Close()
	}
}

func ExampleLock() {
	s, end := open()
	defer end()
	ctx := context.Background()
	lock := recipe.NewLock(s, recipe.LockConfig{Path: "/locks/deploy", Data: []byte("host-1")})
	hold, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = lock.TryAcquire(ctx)
	fmt.Println("held by another:", errors.Is(err, recipe.ErrHeld))
	// What needs the lock runs under hold.Context() and hands hold.Fence() on.
	fmt.Println("fenced:", hold.Fence() > 0, "released:", hold.Release(ctx))
	fmt.Println(context.Cause(hold.Context()))
	// Output:
	// held by another: true
	// fenced: true released: <nil>
	// released
}

func ExampleRWLock() {
	s, end := open()
	defer end()
	ctx := context.Background()
	l := recipe.NewRWLock(s, recipe.LockConfig{Path: "/locks/table"})
	one, _ := l.RLock(ctx)
	two, _ := l.RLock(ctx)
	_, err := l.Lock(one.Context())
	fmt.Println(errors.Is(err, recipe.ErrUpgrade))
	_ = one.Release(ctx)
	_ = two.Release(ctx)
	w, _ := l.Lock(ctx)
	r, err := l.Downgrade(ctx, w)
	fmt.Println(err, w.Err() != nil)
	_ = r.Release(ctx)
	// Output:
	// true
	// <nil> true
}

func ExampleLock_Revoke() {
	s, end := open()
	defer end()
	ctx := context.Background()
	lock := recipe.NewLock(s, recipe.LockConfig{Path: "/locks/batch", Revocable: true})
	hold, _ := lock.Acquire(ctx)
	_ = lock.Revoke(ctx)
	<-hold.Revoked()
	fmt.Println("asked to give back, still held:", hold.Err() == nil)
	_ = hold.Release(ctx)
	// Output: asked to give back, still held: true
}

func ExampleMultiLock() {
	s, end := open()
	defer end()
	ctx := context.Background()
	both := recipe.NewMultiLock(
		recipe.NewLock(s, recipe.LockConfig{Path: "/locks/b"}),
		recipe.NewLock(s, recipe.LockConfig{Path: "/locks/a"}))
	hold, err := both.Acquire(ctx)
	fmt.Println(err, len(hold.Fences()))
	fmt.Println(hold.Release(ctx))
	// Output:
	// <nil> 2
	// <nil>
}

func ExampleSemaphore() {
	s, end := open()
	defer end()
	ctx := context.Background()
	sem := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: "/permits/reload", K: 2})
	one, _ := sem.Acquire(ctx)
	two, _ := sem.Acquire(ctx)
	_, err := sem.TryAcquire(ctx)
	fmt.Println(errors.Is(err, recipe.ErrHeld))
	_ = one.Release(ctx)
	_ = two.Release(ctx)
	_, err = recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: "/permits/reload", K: 3}).Acquire(ctx)
	fmt.Println(err)
	// Output:
	// true
	// semaphore /permits/reload: this contender says 3 permits, /permits/reload says "2"
}

func ExampleBarrier() {
	s, end := open()
	defer end()
	ctx := context.Background()
	b := recipe.NewBarrier(s, "/barriers/maintenance")
	_ = b.Close(ctx)
	passed := make(chan error)
	go func() { passed <- b.Wait(ctx) }()
	_ = b.Open(ctx)
	fmt.Println(<-passed)
	// Output: <nil>
}

func ExampleDoubleBarrier() {
	s, end := open()
	defer end()
	ctx := context.Background()
	done := make(chan error)
	for range 3 {
		go func() {
			b := recipe.NewDoubleBarrier(s, recipe.DoubleBarrierConfig{Path: "/barriers/round-1", N: 3})
			inside, err := b.Enter(ctx) // all three begin together
			if err == nil {
				err = b.Leave(ctx, inside) // and end together
			}
			done <- err
		}()
	}
	fmt.Println(<-done, <-done, <-done)
	// Output: <nil> <nil> <nil>
}

func ExampleQueue() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewQueue(s, recipe.QueueConfig{Path: "/queues/mail", MaxLen: 100})
	_ = q.Put(ctx, []byte("first"))
	_ = q.Put(ctx, []byte("second"))
	body, _ := q.Take(ctx) // at most once
	fmt.Printf("%s\n", body)
	r, _ := q.Reserve(ctx) // at least once
	// The result of the work is stored in the transaction that removes the item.
	err := r.Ack(ctx, session.CreateOp("/result", []byte("sent"), session.Persistent))
	fmt.Printf("%s %v\n", r.Body(), err)
	_, err = q.TryTake(ctx)
	fmt.Println(errors.Is(err, recipe.ErrEmpty))
	// Output:
	// first
	// second <nil>
	// true
}

func ExamplePriorityQueue() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewPriorityQueue(s, recipe.PriorityQueueConfig{Path: "/queues/jobs"})
	_ = q.Put(ctx, []byte("can wait"), recipe.DefaultPriority)
	_ = q.Put(ctx, []byte("urgent"), 1)
	body, _ := q.Take(ctx)
	fmt.Printf("%s\n", body)
	// Output: urgent
}

func ExampleTxn() {
	s, end := open()
	defer end()
	ctx := context.Background()
	x := recipe.NewTxn(s, "/txn/migrate-7")
	_ = x.Propose(ctx, recipe.Proposal{Sites: []string{"east", "west"}, Deadline: time.Now().Add(time.Minute)})
	for _, site := range []string{"east", "west"} {
		// Each site votes after its prepare record is durable.
		if _, err := x.Vote(ctx, site, recipe.Commit); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(x.Coordinate(ctx))
	fmt.Println(x.Await(ctx))
	fmt.Println(x.Abort(ctx)) // too late
	// Output:
	// commit <nil>
	// commit <nil>
	// commit <nil>
}

func ExampleCounter() {
	s, end := open()
	defer end()
	ctx := context.Background()
	c := recipe.NewCounter(s, recipe.CounterConfig{Path: "/counters/builds"})
	_, _ = c.Add(ctx, 40)
	fmt.Println(c.Add(ctx, 2))
	// Output: 42 <nil>
}

func ExampleNode() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	n := recipe.NewNode(recipe.NodeConfig{Path: "/members/host-1", Data: []byte("up")})
	done := make(chan error)
	go func() { done <- n.Run(ctx, s) }()
	<-n.Created()
	data, _, _ := s.Get(ctx, "/members/host-1")
	fmt.Printf("%s\n", data)
	cancel()
	fmt.Println(<-done)
	// Output:
	// up
	// <nil>
}

func ExampleGroup() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	g := recipe.NewGroup(s, "/members", nil)
	left := make(chan error)
	go func() { left <- g.Join(ctx, "host-1", []byte("10.0.0.1")) }()
	_ = g.Follow(ctx, func(members []recipe.Member) {
		for _, m := range members {
			fmt.Printf("%s is %s\n", m.ID, m.Data)
			cancel()
		}
	})
	fmt.Println(<-left)
	// Output:
	// host-1 is 10.0.0.1
	// <nil>
}

func ExampleDelayQueue() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewDelayQueue(s, recipe.QueueConfig{Path: "/queues/reminders"})
	_ = q.Put(ctx, []byte("tomorrow"), time.Now().Add(24*time.Hour))
	_ = q.Put(ctx, []byte("now"), time.Now())
	body, _ := q.Take(ctx)
	_, err := q.TryTake(ctx)
	fmt.Println(string(body), errors.Is(err, recipe.ErrEmpty))
	// Output: now true
}

func ExampleIDQueue() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewIDQueue(s, recipe.QueueConfig{Path: "/queues/mails"})
	_ = q.Put(ctx, "user-1", []byte("hello"))
	_ = q.Put(ctx, "user-2", []byte("hello, too"))
	removed, _ := q.Remove(ctx, "user-1")
	body, _ := q.Take(ctx)
	fmt.Println(removed, string(body))
	// Output: 1 hello, too
}

func ExampleTree() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	_, _, _ = s.Create(ctx, "/jobs", nil, session.Persistent)
	_, _, _ = s.Create(ctx, "/jobs/one", []byte("queued"), session.Persistent)
	jobs := recipe.NewTree(recipe.TreeConfig{Path: "/jobs"})
	err := jobs.Run(ctx, s, func(u recipe.TreeUpdate) {
		for _, c := range u.Changes {
			fmt.Printf("%s is new: %v, version %d: %q\n", c.Path, c.Old == nil, c.New.Version, c.New.Data)
		}
		if !u.First {
			cancel()
			return
		}
		_, _ = s.Set(ctx, "/jobs/one", []byte("done"), -1)
	})
	one, _ := jobs.Get("/jobs/one")
	fmt.Println(err, jobs.Len(), string(one.Data))
	// Output:
	// /jobs is new: true, version 0: ""
	// /jobs/one is new: true, version 0: "queued"
	// /jobs/one is new: false, version 1: "done"
	// <nil> 2 done
}

func ExamplePartitioner() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	worked := make(chan string, 2)
	worker := recipe.NewPartitioner(recipe.PartitionerConfig{
		Path: "/indexers", ID: "host-1", Shards: []string{"orders", "users"}, Settle: time.Millisecond,
		Work: func(ctx context.Context, shard string, hold *recipe.Hold) {
			_, err := s.Multi(ctx, hold.Guard(), session.CreateOp("/done-"+shard, nil, session.Persistent))
			worked <- fmt.Sprint(shard, " ", err)
			<-ctx.Done() // another member gets the shard, or we end
		},
	})
	done := make(chan error)
	go func() { done <- worker.Run(ctx, s) }()
	lines := []string{<-worked, <-worked}
	slices.Sort(lines)
	fmt.Println(lines)
	cancel()
	fmt.Println(<-done)
	// Output:
	// [orders <nil> users <nil>]
	// <nil>
}

func ExampleLease() {
	s, end := open()
	defer end()
	ctx := context.Background()
	// A cron job that runs on each host, and works on one: the same for as long as it lives.
	job := func(host string) *recipe.Lease {
		return recipe.NewLease(s, recipe.LeaseConfig{Path: "/leases/cleanup", Holder: host, Duration: 70 * time.Minute})
	}
	_, err := job("host-1").TryAcquire(ctx)
	fmt.Println("host-1:", err)
	term, err := job("host-2").TryAcquire(ctx)
	fmt.Println("host-2:", errors.Is(err, recipe.ErrHeld), "by", term.Holder)
	// Output:
	// host-1: <nil>
	// host-2: true by host-1
}

func ExampleValue() {
	s, end := open()
	defer end()
	ctx := context.Background()
	type limits struct{ Requests, Burst int }
	v := recipe.NewValue[limits](s, "/limits") // kept as JSON; a Value[[]byte] keeps bytes
	_, _ = v.Update(ctx, func(limits) (limits, error) { return limits{100, 10}, nil })
	now, err := v.Update(ctx, func(old limits) (limits, error) {
		old.Burst *= 2 // runs again when another client was first
		return old, nil
	})
	fmt.Println(now, err)
	// Output: {100 20} <nil>
}

// Two candidates stand in an election step by step. Package election does that in one call.
func ExampleCandidates() {
	s, end := open()
	defer end()
	ctx := context.Background()
	line, err := recipe.Candidates("/elections/db", recipe.Curator, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var stand [2]*recipe.Participant
	for i, id := range []string{"a", "b"} {
		if stand[i], err = line.Join(ctx, s, []byte(id)); err != nil {
			fmt.Println(err)
			return
		}
	}
	first, err := stand[1].First(ctx)
	fmt.Println("b leads:", first, err)
	fmt.Println("a leaves:", stand[0].Leave(ctx))
	fmt.Println("b waits:", stand[1].Wait(ctx))
	hold, err := stand[1].Hold(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	var contenders []recipe.Contender
	contenders, err = recipe.Contenders(ctx, s, "/elections/db")
	fmt.Printf("%s holds: %t %v\n", contenders[0].Data, contenders[0].Holder, err)
	_ = hold.Release(ctx)
	// Output:
	// b leads: false <nil>
	// a leaves: <nil>
	// b waits: <nil>
	// b holds: true <nil>
}

func ExampleParseSequence() {
	first, _ := recipe.ParseSequence("task-0000000007", "task-")
	last, _ := recipe.ParseSequence("task--2147483648", "task-") // the numbers have wrapped
	_, ok := recipe.ParseSequence("other-0000000007", "task-")
	fmt.Println(first.Before(last), ok)
	// Output: true false
}
