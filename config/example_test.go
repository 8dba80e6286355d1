package config_test

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A config is published, followed, and published again.
func Example() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	publish := func(timeout string) {
		_, err := fleet.Publish(ctx, s, fleet.PublishConfig{
			Path:    "/config/web",
			Keys:    map[string][]byte{"timeout": []byte(timeout), "backends/a": []byte("10.0.0.1")},
			Message: "a timeout of " + timeout,
			Author:  "me",
		})
		if err != nil {
			panic(err)
		}
	}
	publish("10s")

	watching, stop := context.WithCancel(ctx)
	w := config.NewWatcher(config.Config{Name: "web", Path: "/config/web"})
	err = w.Run(watching, s, func(u view.Update) {
		tree := u.(*view.Tree)
		timeout, _ := tree.Get("timeout")
		fmt.Printf("version %s: timeout %s, %d keys\n", tree.Version(), timeout.Value, tree.Len())
		if tree.Generation == 2 {
			stop()
			return
		}
		publish("30s")
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// version 1: timeout 10s, 2 keys
	// version 2: timeout 30s, 2 keys
}

// A program publishes and follows by itself: no agent takes part. The manager
// starts a new session whenever one has ended, and both go on in it.
func ExampleFollow() {
	server := memzk.New(memzk.Options{}) // an ensemble, in a real program
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	sessions, err := session.New(session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sessions.Run(ctx) }()

	s, err := sessions.Session(ctx)
	if err != nil {
		panic(err)
	}
	site := fleet.PublishConfig{Path: "/config/site", Author: "me", Keys: map[string][]byte{"color": []byte("blue"), "motto": []byte("hello")}}
	if _, err = fleet.Publish(ctx, s, site); err != nil {
		panic(err)
	}
	err = config.Follow(ctx, sessions, config.Config{Name: "site", Path: "/config/site"}, func(tree *view.Tree) {
		color, _ := tree.Get("color")
		fmt.Printf("version %s: %s, %d keys\n", tree.Version(), color.Value, tree.Len())
		if string(color.Value) == "green" {
			stop()
			return
		}
		// Only what is to change is named; nobody else's change is lost.
		_, err := fleet.Edit(ctx, s, fleet.PublishConfig{Path: "/config/site", Message: "spring"}, func(keys map[string][]byte) error {
			keys["color"] = []byte("green")
			return nil
		})
		if err != nil {
			panic(err)
		}
	})
	fmt.Println(err, <-ended)
	// Output:
	// version 1: blue, 2 keys
	// version 2: green, 2 keys
	// <nil> <nil>
}

// One key is read from whatever layout the tree has.
func ExampleLookup() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	_, err = fleet.Publish(ctx, s, fleet.PublishConfig{Path: "/names", Keys: map[string][]byte{"db/primary": []byte("10.0.0.7:5432")}})
	if err != nil {
		panic(err)
	}
	value, version, err := config.Lookup(ctx, s, "/names", "db/primary")
	fmt.Printf("%s (version %d), %v\n", value, version, err)
	// Output: 10.0.0.7:5432 (version 1), <nil>
}
