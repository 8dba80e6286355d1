package session_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// server starts a ZooKeeper in memory; a program names its ensemble instead.
func server() (session.Config, func()) {
	srv := memzk.New(memzk.Options{})
	return session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial}, srv.Close
}

// open returns a session with a ZooKeeper in memory, and a function that ends both.
func open() (*session.Session, func()) {
	cfg, stop := server()
	s, err := session.Dial(context.Background(), cfg)
	if err != nil {
		panic(err)
	}
	return s, func() {
		_ = s.Close()
		stop()
	}
}

func ExampleDial() {
	cfg, stop := server() // session.Config{Servers: []string{"zk1:2181", "zk2:2181"}}
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	if err := s.CreateParents(ctx, "/app/settings/color"); err != nil {
		fmt.Println(err)
		return
	}
	if _, _, err := s.Create(ctx, "/app/settings/color", []byte("green"), session.Persistent); err != nil {
		fmt.Println(err)
		return
	}
	data, stat, err := s.Get(ctx, "/app/settings/color")
	fmt.Println(string(data), stat.Version, err)
	// Output: green 0 <nil>
}

// A watch says "read again": the loop reads, uses, and waits.
func ExampleSession_GetW() {
	cfg, stop := server()
	defer stop()
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	if _, _, err := s.Create(ctx, "/color", []byte("green"), session.Persistent); err != nil {
		fmt.Println(err)
		return
	}

	for {
		data, stat, watch, err := s.GetW(ctx, "/color")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(data))
		if string(data) == "red" {
			return
		}
		if _, err := s.Set(ctx, "/color", []byte("red"), stat.Version); err != nil {
			fmt.Println(err)
			return
		}
		select {
		case <-watch.C():
		case <-s.Done():
			fmt.Println(context.Cause(s.Context()))
			return
		}
	}
	// Output:
	// green
	// red
}

// A manager starts a new session when one has ended. What lives in a session is made
// again in the next.
func ExampleManager() {
	cfg, stop := server()
	defer stop()
	m, err := session.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()

	s, err := m.Session(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, stat, err := s.Create(ctx, "/member", nil, session.Ephemeral)
	fmt.Println(stat.EphemeralOwner == s.ID(), err)
	cancel()
	fmt.Println(<-done)
	<-s.Done()
	fmt.Println(errors.Is(context.Cause(s.Context()), session.ErrClosed))
	// Output:
	// true <nil>
	// <nil>
	// true
}

func ExampleSession_Multi() {
	cfg, stop := server()
	defer stop()
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	_, err = s.Multi(ctx,
		session.CreateOp("/a", nil, session.Persistent),
		session.CheckOp("/b", -1),
	)
	var failed *session.MultiError
	fmt.Println(errors.As(err, &failed), errors.Is(err, session.ErrNoNode))
	fmt.Println(failed)
	// Output:
	// true true
	// operation 1 on /b: znode does not exist
}

func ExampleParseServers() {
	servers, chroot, err := session.ParseServers("zk1,zk2:2182,[::1]:2183/prod")
	fmt.Println(servers, chroot, err)
	// Output: [zk1:2181 zk2:2182 [::1]:2183] /prod <nil>
}

// A queue waits for the watches of many znodes.
func ExampleWatchQueue() {
	cfg, stop := server()
	defer stop()
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	paths := []string{"/a", "/b", "/missing"}
	for _, path := range paths[:2] {
		if _, _, err := s.Create(ctx, path, []byte("old"), session.Persistent); err != nil {
			fmt.Println(err)
			return
		}
	}
	queue := session.NewWatchQueue()
	err = s.EachManyW(ctx, paths, false, 0, func(i int, r session.WatchedResult) {
		fmt.Printf("%s: %q, missing: %t\n", paths[i], r.Data, errors.Is(r.Err, session.ErrNoNode))
		if r.Err == nil {
			r.Watch.Join(queue)
		}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := s.Multi(ctx, session.SetOp("/b", []byte("new"), 0)); err != nil {
		fmt.Println(err)
		return
	}
	again := func(event session.WatchEvent) {
		fmt.Println("read again:", event.Watch.Path(), "children:", event.Children)
	}
	<-queue.C()
	for _, event := range queue.Take() {
		again(event)
	}
	// Output:
	// /a: "old", missing: false
	// /b: "old", missing: false
	// /missing: "", missing: true
	// read again: /b children: false
}

// A policy of the context bounds how often Each and requests try again.
func ExampleWithRetry() {
	cfg, stop := server()
	defer stop()
	var policy session.RetryPolicy = session.Backoff{First: time.Millisecond, Tries: 3}
	tries := 0
	err := session.Each(session.WithRetry(context.Background(), policy), cfg, func(context.Context, *session.Session) error {
		tries++
		return session.ErrThrottled // as if the server were overloaded
	})
	fmt.Println(tries, err, session.ActionFor(err) == session.Retry)
	// Output: 3 the server is overloaded and threw the request away true
}

func ExampleParseACL() {
	cfg, stop := server()
	defer stop()
	acl, err := session.ParseACL("world:anyone:r")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(session.FormatACL(acl), acl.Perms == session.PermRead)
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	if _, _, err := s.Create(ctx, "/mine", nil, session.Persistent, acl); err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Set(ctx, "/mine", []byte("x"), -1)
	var failed *session.Error
	fmt.Println(errors.As(err, &failed), failed.Path, session.ActionFor(err) == session.GiveUp)
	// Output:
	// world:anyone:r true
	// true /mine true
}
