package config_test

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/memzk"
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
		_, err := config.Publish(ctx, s, config.PublishConfig{
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
	_, err = config.Publish(ctx, s, config.PublishConfig{Path: "/names", Keys: map[string][]byte{"db/primary": []byte("10.0.0.7:5432")}})
	if err != nil {
		panic(err)
	}
	value, version, err := config.Lookup(ctx, s, "/names", "db/primary")
	fmt.Printf("%s (version %d), %v\n", value, version, err)
	// Output: 10.0.0.7:5432 (version 1), <nil>
}
