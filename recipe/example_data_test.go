package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// A site that cannot take part votes to abort. Then the decision is the same for all.
func ExampleDecision() {
	s, end := open()
	defer end()
	ctx := context.Background()
	x := recipe.NewTxn(s, "/txn/migrate-8")
	_ = x.Propose(ctx, recipe.Proposal{Sites: []string{"east", "west"}, Deadline: time.Now().Add(time.Minute)})
	finish := func(site string, d recipe.Decision) {
		switch d {
		case recipe.Commit:
			fmt.Println(site, "applies its prepared work")
		case recipe.Abort:
			fmt.Println(site, "throws its prepared work away")
		case recipe.Undecided:
			fmt.Println(site, "keeps its prepared work, and waits")
		}
	}
	d, _ := x.Vote(ctx, "east", recipe.Commit)
	finish("east", d)
	_, _ = x.Vote(ctx, "west", recipe.Abort)
	_, _ = x.Coordinate(ctx)      // usually in the process that proposed
	d, err := x.AwaitOrAbort(ctx) // needs no coordinator after the deadline
	finish("east", d)
	fmt.Println(err)
	// Output:
	// east keeps its prepared work, and waits
	// east throws its prepared work away
	// <nil>
}

// An operator looks into a queue.
func ExampleItem() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewPriorityQueue(s, recipe.PriorityQueueConfig{Path: "/queues/jobs", Reserve: true})
	_ = q.Put(ctx, []byte("can wait"), recipe.DefaultPriority)
	_ = q.Put(ctx, []byte("urgent"), 1)
	if _, err := q.Reserve(ctx); err != nil {
		fmt.Println(err)
		return
	}
	show := func(i recipe.Item) {
		fmt.Printf("priority %d, %d bytes, reserved %t, tries %d\n", i.Priority, i.Size, i.Reserved, i.Attempts)
	}
	items, err := q.Items(ctx, 100)
	for _, item := range items {
		show(item)
	}
	fmt.Println(err)
	// Output:
	// priority 1, 6 bytes, reserved true, tries 1
	// priority 100, 8 bytes, reserved false, tries 0
	// <nil>
}

// A worker returns a job that failed, and gets it again before the jobs behind it.
func ExampleReservation() {
	s, end := open()
	defer end()
	ctx := context.Background()
	q := recipe.NewQueue(s, recipe.QueueConfig{Path: "/queues/mail"})
	_ = q.Put(ctx, []byte("to a"))
	_ = q.Put(ctx, []byte("to b"))
	send := func(r *recipe.Reservation) error {
		fmt.Printf("%s, try %d\n", r.Body(), r.Attempts())
		if r.Attempts() == 1 {
			return r.Return(context.WithoutCancel(ctx)) // the mail server does not answer
		}
		return r.Ack(ctx, session.CreateOp("/sent-"+r.Name(), r.Body(), session.Persistent))
	}
	for {
		r, err := q.TryReserve(ctx)
		if errors.Is(err, recipe.ErrEmpty) {
			return
		}
		if err == nil {
			err = send(r)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// to a, try 1
	// to a, try 2
	// to b, try 1
	// to b, try 2
}

// A program learns which znodes came, changed and went.
func ExampleTreeChange() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	_, _, _ = s.Create(ctx, "/jobs", nil, session.Persistent)
	describe := func(c recipe.TreeChange) string {
		switch {
		case c.Old == nil:
			return "came"
		case c.New == nil:
			return "went"
		case c.Old.Czxid != c.New.Czxid:
			return "is another one"
		}
		return fmt.Sprintf("changed from %q to %q", c.Old.Data, c.New.Data)
	}
	others := []func(){ // as another client does, one after each update
		func() { _, _, _ = s.Create(ctx, "/jobs/1", []byte("new"), session.Persistent) },
		func() { _, _ = s.Set(ctx, "/jobs/1", []byte("done"), -1) },
		func() { _ = s.Delete(ctx, "/jobs/1", -1) },
		cancel,
	}
	err := recipe.NewTree(recipe.TreeConfig{Path: "/jobs"}).Run(ctx, s, func(u recipe.TreeUpdate) {
		for _, c := range u.Changes {
			if strings.HasPrefix(c.Path, "/jobs/") {
				fmt.Println(c.Path, describe(c))
			}
		}
		others[0]()
		others = others[1:]
	})
	fmt.Println(err)
	// Output:
	// /jobs/1 came
	// /jobs/1 changed from "new" to "done"
	// /jobs/1 went
	// <nil>
}

// The copy is walked without a request.
func ExampleTreeNode() {
	s, end := open()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	for _, path := range []string{"/site", "/site/color", "/site/sizes", "/site/sizes/logo"} {
		_, _, _ = s.Create(ctx, path, []byte("data"), session.Persistent)
	}
	tree := recipe.NewTree(recipe.TreeConfig{Path: "/site"})
	fmt.Println(tree.Run(ctx, s, func(recipe.TreeUpdate) { cancel() }))
	var walk func(n *recipe.TreeNode)
	walk = func(n *recipe.TreeNode) {
		fmt.Printf("%s: %s, version %d\n", n.Path, n.Data, n.Version)
		for _, name := range n.Children {
			if next, ok := tree.Get(n.Path + "/" + name); ok {
				walk(next)
			}
		}
	}
	if top, ok := tree.Get("/site"); ok {
		walk(top)
	}
	// Output:
	// <nil>
	// /site: data, version 0
	// /site/color: data, version 0
	// /site/sizes: data, version 0
	// /site/sizes/logo: data, version 0
}

// A form shows a value, and saves it if nobody else has saved it since.
func ExampleVersioned() {
	s, end := open()
	defer end()
	ctx := context.Background()
	v := recipe.NewValue[[]string](s, "/admins")
	var shown recipe.Versioned[[]string]
	shown, err := v.Get(ctx)
	fmt.Println(shown.Exists, shown.Data, err)
	saved, err := v.CompareAndSet(ctx, shown, append(shown.Data, "ann"))
	fmt.Println("ann is added:", saved, err)
	saved, err = v.CompareAndSet(ctx, shown, append(shown.Data, "bob"))
	fmt.Println("bob is added:", saved, err)
	shown, err = v.Get(ctx)
	fmt.Println(shown.Exists, shown.Data, err)
	// Output:
	// false [] <nil>
	// ann is added: true <nil>
	// bob is added: false <nil>
	// true [ann] <nil>
}
