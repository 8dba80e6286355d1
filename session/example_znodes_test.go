package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Operations are applied all or not at all.
func ExampleOp() {
	s, end := open()
	defer end()
	ctx := context.Background()
	_, _, _ = s.Create(ctx, "/version", []byte("1"), session.Persistent)
	publish := []session.Op{
		session.CheckOp("/version", 0), // fails when somebody else has published
		session.CreateOp("/config", []byte("new"), session.Persistent),
		session.SetOp("/version", []byte("2"), -1),
	}
	show := func(r session.OpResult) { fmt.Printf("%q at version %d\n", r.Path, r.Stat.Version) }
	results, err := s.Multi(ctx, publish...)
	if err != nil {
		fmt.Println(err)
		return
	}
	show(results[1])
	show(results[2])
	_, err = s.Multi(ctx, publish...)
	fmt.Println(err)
	// Output:
	// "/config" at version 0
	// "" at version 1
	// multi: operation 0 on /version: version conflict
}

func ExampleMode() {
	s, end := open()
	defer end()
	ctx := context.Background()
	for _, mode := range []session.Mode{
		session.Ephemeral,                // goes with the session
		session.PersistentSequential,     // the server appends a number
		session.PersistentTTL(time.Hour), // goes an hour after its last change; servers have to allow it
	} {
		path, stat, err := s.Create(ctx, "/job-", nil, mode)
		fmt.Println(path, stat.EphemeralOwner == s.ID(), mode.Sequential(), mode.TTL(), err)
		if !mode.Sequential() {
			_ = s.Delete(ctx, path, stat.Version)
		}
	}
	// Output:
	// /job- true false 0s <nil>
	// /job-0000000001 false true 0s <nil>
	// /job- false false 1h0m0s <nil>
}

// A set names the version that was read, so it overwrites no change of another client.
func ExampleStat() {
	s, end := open()
	defer end()
	ctx := context.Background()
	_, _, _ = s.Create(ctx, "/limit", []byte("10"), session.Persistent)
	var read session.Stat
	_, read, err := s.Get(ctx, "/limit")
	if err != nil {
		fmt.Println(err)
		return
	}
	set, err := s.Set(ctx, "/limit", []byte("20"), read.Version)
	fmt.Println(read.Version, set.Version, set.Mzxid > read.Mzxid, set.DataLength, err)
	_, err = s.Set(ctx, "/limit", []byte("30"), read.Version)
	fmt.Println(errors.Is(err, session.ErrBadVersion), time.UnixMilli(set.Mtime).IsZero())
	// Output:
	// 0 1 true 2 <nil>
	// true false
}

func ExampleChild() {
	s, end := open()
	defer end()
	ctx := context.Background()
	for _, path := range []string{"/members", "/members/b", "/members/a"} {
		_, _, _ = s.Create(ctx, path, []byte("data of "+path), session.Persistent)
	}
	show := func(c session.Child) {
		if c.Err != nil { // such as ErrNoAuth: the other children are valid
			fmt.Println(c.Name, c.Err)
			return
		}
		fmt.Printf("%s: %s, version %d\n", c.Name, c.Data, c.Stat.Version)
	}
	children, err := s.GetChildren(ctx, "/members")
	for _, child := range children {
		show(child)
	}
	fmt.Println(err)
	// Output:
	// a: data of /members/a, version 0
	// b: data of /members/b, version 0
	// <nil>
}

// Each path has a result, in the order of the paths.
func ExampleResult() {
	s, end := open()
	defer end()
	ctx := context.Background()
	_, _, _ = s.Create(ctx, "/color", []byte("green"), session.Persistent)
	colorOr := func(r session.Result, other string) string {
		if errors.Is(r.Err, session.ErrNoNode) {
			return other
		}
		return string(r.Data)
	}
	results, err := s.GetMany(ctx, []string{"/color", "/border"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(colorOr(results[0], "white"), colorOr(results[1], "black"))
	// Output: green black
}

// ListMany hands out the lists one by one, so that they need no memory together.
func ExampleListResult() {
	s, end := open()
	defer end()
	ctx := context.Background()
	for _, path := range []string{"/api", "/api/1", "/api/2", "/web"} {
		_, _, _ = s.Create(ctx, path, nil, session.Persistent)
	}
	groups, counts := []string{"/api", "/web", "/gone"}, map[string]int{}
	err := s.ListMany(ctx, groups, func(i int, list session.ListResult) {
		if list.Err == nil {
			counts[groups[i]] = len(list.Names)
		}
	})
	fmt.Println(counts, err)
	// Output: map[/api:2 /web:0] <nil>
}

// A program waits for the first member of a group that need not exist yet.
func ExampleListing() {
	s, end := open()
	defer end()
	ctx := context.Background()
	ready := func(list session.Listing) bool { return len(list.Names) > 0 }
	for _, other := range []string{"/web", "/web/member-1", "never"} {
		list, watch, err := s.ListW(ctx, "/web")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(list.Exists, list.Names)
		if ready(list) {
			watch.Stop()
			return
		}
		_, _, _ = s.Create(ctx, other, nil, session.Persistent) // as another client does
		if err := watch.Wait(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// false []
	// true []
	// true [member-1]
}

// A program waits for the first of two changes. A watch that it does not wait for any more
// it stops.
func ExampleWatch() {
	s, end := open()
	defer end()
	ctx := context.Background()
	var watches []*session.Watch
	for _, path := range []string{"/a", "/b"} {
		_, exists, watch, err := s.ExistsW(ctx, path)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(path, exists)
		defer watch.Stop()
		watches = append(watches, watch)
	}
	_, _, _ = s.Create(ctx, "/b", nil, session.Persistent)
	fmt.Println(s.WaitAny(ctx, watches...))
	changed := slices.IndexFunc(watches, (*session.Watch).Fired)
	fmt.Println("read again:", watches[changed].Path())
	// Output:
	// /a false
	// /b false
	// <nil>
	// read again: /b
}

// One watch of the server covers a subtree. Watches below it are set as always.
func ExampleRecursiveWatch() {
	s, end := open()
	defer end()
	ctx := context.Background()
	_, _, _ = s.Create(ctx, "/app", nil, session.Persistent)
	_, _, _ = s.Create(ctx, "/app/color", nil, session.Persistent)
	var cover *session.RecursiveWatch
	cover, err := s.WatchRecursive(ctx, "/app")
	if errors.Is(err, session.ErrUnimplemented) {
		fmt.Println("before ZooKeeper 3.6: each watch is the server's own")
	}
	defer cover.Release()
	_, _, watch, err := s.GetW(ctx, "/app/color")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = s.Set(ctx, "/app/color", []byte("red"), -1)
	fmt.Println(cover.Live(), watch.Wait(ctx))
	// Output: true <nil>
}
