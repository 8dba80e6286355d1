package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// A move between two tables needs a lock of each, and one of the permits for moves. Its
// write fails when any of the three is lost.
func ExampleMultiHold() {
	s, end := open()
	defer end()
	ctx := context.Background()
	parts := []recipe.Acquirer{
		recipe.NewRWLock(s, recipe.LockConfig{Path: "/tables/from"}).Reader(),
		recipe.NewRWLock(s, recipe.LockConfig{Path: "/tables/to"}).Writer(),
		recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: "/permits/moves", K: 4}),
	}
	move := func(hold *recipe.MultiHold) error {
		ops := append(hold.Guards(), session.CreateOp("/moved", nil, session.Persistent))
		_, err := s.Multi(hold.Context(), ops...)
		return err
	}
	hold, err := recipe.NewMultiLock(parts...).Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("moved:", move(hold))
	fmt.Println("released:", hold.Release(ctx))
	fmt.Println("moved again:", move(hold))
	// Output:
	// moved: <nil>
	// released: <nil>
	// moved again: multi: released
}

// A path is used by one kind of recipe.
func ExampleKindError() {
	s, end := open()
	defer end()
	ctx := context.Background()
	if _, err := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: "/db", K: 2}).Acquire(ctx); err != nil {
		fmt.Println(err)
		return
	}
	_, err := recipe.NewLock(s, recipe.LockConfig{Path: "/db"}).Acquire(ctx)
	if other, ok := errors.AsType[*recipe.KindError](err); ok {
		fmt.Printf("choose another path for the %s: %s is a %s\n", other.Want, other.Path, other.Have)
	}
	// Output: choose another path for the lock: /db is a semaphore in Curator's layout
}

// A semaphore has one number of permits. A contender with another number can follow it.
func ExamplePermitsError() {
	s, end := open()
	defer end()
	ctx := context.Background()
	cfg := recipe.SemaphoreConfig{Path: "/permits/reload", K: 2}
	if _, err := recipe.NewSemaphore(s, cfg).Acquire(ctx); err != nil {
		fmt.Println(err)
		return
	}
	cfg.K = 3
	_, err := recipe.NewSemaphore(s, cfg).TryAcquire(ctx)
	if differs, ok := errors.AsType[*recipe.PermitsError](err); ok {
		fmt.Println("configured:", differs.Want, "in use:", differs.Have)
		cfg.K, err = strconv.Atoi(differs.Have)
	}
	fmt.Println(err)
	_, err = recipe.NewSemaphore(s, cfg).TryAcquire(ctx)
	fmt.Println(err)
	// Output:
	// configured: 3 in use: 2
	// <nil>
	// <nil>
}

// The holder passes the fence of its term on: what it changes must refuse a smaller one.
func ExampleLeaseTerm() {
	s, end := open()
	defer end()
	ctx := context.Background()
	lease := recipe.NewLease(s, recipe.LeaseConfig{Path: "/leases/report", Holder: "host-1", Duration: time.Hour})
	_, err := lease.Holder(ctx)
	fmt.Println("nobody yet:", errors.Is(err, session.ErrNoNode))
	var first, renewed recipe.LeaseTerm
	first, err = lease.TryAcquire(ctx)
	fmt.Println(first.Holder, time.Until(first.End) > time.Minute, err)
	renewed, err = lease.TryAcquire(ctx)
	fmt.Println(renewed.Fence > first.Fence, err)
	// Output:
	// nobody yet: true
	// host-1 true <nil>
	// true <nil>
}

// A program that is no candidate follows the leader of an election.
func ExampleParticipants_Follow() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var line *recipe.Participants
	line, err := recipe.Candidates("/elections/db", recipe.Curator, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = line.Follow(ctx, s, func(leader recipe.Leader) {
		if leader.Path == "" {
			fmt.Println("no leader")
			_, err := line.Join(ctx, s, []byte("host-1")) // as another process does
			fmt.Println("joined:", err)
			return
		}
		fmt.Printf("leader: %s, term: %t\n", leader.Data, leader.Stat.Czxid > 0)
		cancel()
	})
	fmt.Println(err)
	// Output:
	// no leader
	// joined: <nil>
	// leader: host-1, term: true
	// <nil>
}

// The sequence of a contender is its place in the line.
func ExampleSequence() {
	s, end := open()
	defer end()
	ctx := context.Background()
	line, err := recipe.Candidates("/elections/db", recipe.Curator, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var last recipe.Sequence
	for _, id := range []string{"a", "b", "c"} {
		one, err := line.Join(ctx, s, []byte(id))
		if err != nil {
			fmt.Println(err)
			return
		}
		last = one.Sequence()
	}
	var all []recipe.Contender
	all, err = recipe.Contenders(ctx, s, "/elections/db")
	for _, c := range all {
		if c.Sequence.Before(last) {
			fmt.Printf("%s is ahead of us, and leads: %t\n", c.Data, c.Holder)
		}
	}
	fmt.Println(err)
	// Output:
	// a is ahead of us, and leads: true
	// b is ahead of us, and leads: false
	// <nil>
}
