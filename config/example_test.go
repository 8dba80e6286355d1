package config_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

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

// connect opens a session with a ZooKeeper in memory, and publishes versions of a config there.
func connect(versions ...map[string][]byte) (*session.Session, func()) {
	server := memzk.New(memzk.Options{})
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	for i, keys := range versions {
		site := fleet.PublishConfig{Path: "/config/site", Author: "me", Message: fmt.Sprint("change ", i+1), Keys: keys}
		if _, err := fleet.Publish(ctx, s, site); err != nil {
			panic(err)
		}
	}
	return s, func() { _ = s.Close(); server.Close() }
}

// Two versions of a config are compared, as a whole and key by key.
func ExampleChange() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue"), "size": []byte("7")}, map[string][]byte{"color": []byte("green"), "size": []byte("7")})
	defer closeAll()
	ctx := context.Background()
	before, err := config.ReadVersion(ctx, s, "/config/site", 1)
	if err != nil {
		panic(err)
	}
	now, err := config.Read(ctx, s, "/config/site")
	if err != nil {
		panic(err)
	}
	for _, change := range config.Diff(before, now) {
		fmt.Printf("%s %s: %s -> %s\n", change.Key, change.Kind, change.Old, change.New)
		fmt.Print(change.Unified("1", "2"))
	}
	// Output:
	// color changed: blue -> green
	// --- 1/color
	// +++ 2/color
	// @@ -1,1 +1,1 @@
	// -blue
	// +green
}

// A program shows who set a key, and why. The oldest kept version that has the value stands for one that is gone.
func ExampleOrigin() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue"), "size": []byte("7")}, map[string][]byte{"color": []byte("green"), "size": []byte("7")})
	defer closeAll()
	origins, err := config.Origins(context.Background(), s, "/config/site", 2, []string{"color", "size", "shape"})
	if err != nil {
		panic(err)
	}
	explain := func(key string, o config.Origin) {
		switch v := o.Version; {
		case o.Before > 0:
			fmt.Println(key, "was set by a version up to", o.Before)
		case v.Number == 0:
			fmt.Println(key, "never existed")
		default:
			fmt.Printf("%s: version %d, %s: %s\n", key, v.Number, v.Author, v.Message)
		}
	}
	for _, key := range []string{"color", "size", "shape"} {
		explain(key, origins[key])
	}
	// Output:
	// color: version 2, me: change 2
	// size: version 1, me: change 1
	// shape never existed
}

// The history of a config finds the version to look at, or to go back to.
func ExampleVersion() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue")}, map[string][]byte{"color": []byte("green")}, map[string][]byte{"color": []byte("red")})
	defer closeAll()
	ctx := context.Background()
	versions, err := config.History(ctx, s, "/config/site")
	if err != nil {
		panic(err)
	}
	var wanted config.Version
	for _, v := range versions {
		if v.Used && !v.Active { // the oldest one: they come latest first
			wanted = v
		}
	}
	tree, err := config.ReadVersion(ctx, s, "/config/site", wanted.Number)
	if err != nil {
		panic(err)
	}
	color, _ := tree.Get("color")
	fmt.Printf("version %d of %d by %s: %s\n", wanted.Number, len(versions), wanted.Author, color.Value)
	// Output: version 1 of 3 by me: blue
}

// A watcher says which event it waits for, and which tree is in use meanwhile.
func ExampleWatcher() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue")})
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	w := config.NewWatcher(config.Config{Name: "site", Path: "/config/site", Layout: config.LayoutVersioned})
	show := func(status config.Status) {
		fmt.Printf("following %t, generation %d, keys %d, waits for %q\n", status.Following, status.Generation, status.Keys, status.Waiting)
	}
	show(w.Status())
	err := w.Run(ctx, s, func(view.Update) {
		show(w.Status())
		stop()
	})
	show(w.Status())
	fmt.Println("ended:", err)
	// Output:
	// following false, generation 0, keys 0, waits for "a session"
	// following true, generation 1, keys 1, waits for ""
	// following false, generation 1, keys 1, waits for "a session"
	// ended: <nil>
}

// A problem that a person can fix does not end a watcher: the status has it, and the last good tree stays in use.
func ExampleStatus() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue")})
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	w := config.NewWatcher(config.Config{
		Name: "site", Path: "/config/site", MaxBytes: 2,
		Problem: func(error) { stop() },
	})
	err := w.Run(ctx, s, func(view.Update) {})
	status := w.Status()
	fmt.Println(status.Name, status.Keys, "keys, ended:", err)
	fmt.Println("too large:", errors.Is(status.Err, config.ErrBounds))
	// Output:
	// site 0 keys, ended: <nil>
	// too large: true
}

// A program that has one session, and no manager, follows a config until that session ends.
func ExampleSessions() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue")})
	defer closeAll()
	err := config.Follow(context.Background(), config.In(s), config.Config{Name: "site", Path: "/config/site"}, func(tree *view.Tree) {
		color, _ := tree.Get("color")
		fmt.Printf("version %s: %s\n", tree.Version(), color.Value)
		_ = s.Close()
	})
	fmt.Println("ended:", err)
	// Output:
	// version 1: blue
	// ended: session closed
}

// Prometheus reads which version each host follows, and whether it can use it.
func ExampleMetrics() {
	s, closeAll := connect(map[string][]byte{"color": []byte("blue")})
	defer closeAll()
	metrics := prometheus.NewRegistry()
	ctx, stop := context.WithCancel(context.Background())
	w := config.NewWatcher(config.Config{Name: "site", Path: "/config/site", Metrics: config.NewMetrics(metrics)})
	if err := w.Run(ctx, s, func(view.Update) { stop() }); err != nil {
		panic(err)
	}
	families, err := metrics.Gather()
	for _, family := range families {
		if !strings.HasSuffix(family.GetName(), "_timestamp_seconds") {
			fmt.Println(family.GetName(), family.GetMetric()[0].GetGauge().GetValue(), err)
		}
	}
	// Output:
	// zkagent_tree_failed 0 <nil>
	// zkagent_tree_generation 1 <nil>
	// zkagent_tree_keys 1 <nil>
}
