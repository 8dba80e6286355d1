package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A host that votes on a version reads what changed, not the tree; it does not read
// it again when it is decided, nor in the next session.
func TestWatcher_ReadVersionReadsDifferences(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		desk, host := join(t, z), join(t, z)
		keys := numbered(3000, "a value of some length")
		publish := PublishConfig{Path: "/c", Layout: config.LayoutVersioned, Keys: bytesOf(keys), Author: "me", Host: "here"}
		_, err := Publish(t.Context(), desk, publish)
		must(t, err)
		f := follow(t, host, config.Config{Name: "c", Path: "/c"})
		f.await("version 1", has(keys))

		keys["dir0/key0000"] = "new"
		publish.Keys = bytesOf(keys)
		ahead, err := Prepare(t.Context(), desk, publish)
		must(t, err)
		before := total(host)
		tree, err := f.w.ReadVersion(t.Context(), host, ahead.Version)
		must(t, err)
		if !has(keys)(tree) || tree.Name != "c" || tree.Generation != ahead.Version || tree.Previous != 1 {
			t.Errorf("read %s", show(tree))
		}
		if got := total(host) - before; got > 3 {
			t.Errorf("%d requests to read one changed key ahead, want its version, a bucket and a value: %v", got, host.Requests())
		}

		before = total(host)
		_, st, err := trees.ReadReady(t.Context(), desk, "/c")
		must(t, err)
		_, err = desk.Set(t.Context(), trees.ReadyPath("/c"), trees.Ready{Version: ahead.Version, Digest: ahead.Digest, Previous: 1}.Encode(), st.Version)
		must(t, err)
		f.await("version 2", has(keys))
		if got := total(host) - before; got > 1 {
			t.Errorf("%d requests for a version that was read ahead, want ready: %v", got, host.Requests())
		}
		must(t, f.stop())
		must(t, host.Close())

		next := join(t, z)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.w.Run(ctx, next, f.up) }()
		after(time.Minute)
		if got := total(next); got > 5 {
			t.Errorf("%d requests in the next session, want sync, ready twice, the version, and a watch on it: %v", got, next.Requests())
		}
		cancel()
		must(t, <-ended)
		must(t, next.Close())
		must(t, desk.Close())
	})
}

// With a splay the hosts of a fleet read a version one after the other, and the
// first one at once.
func TestWatcher_SplaySpreadsReads(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		const hosts, splay = 20, 10 * time.Second
		desk := join(t, z)
		publish := PublishConfig{Path: "/c", Layout: config.LayoutVersioned, Keys: bytesOf(map[string]string{"a": "1"}), Author: "me", Host: "here"}
		_, err := Publish(t.Context(), desk, publish)
		must(t, err)
		began := time.Now()
		var sessions []*session.Session
		var followers []*follower
		for range hosts {
			sessions = append(sessions, join(t, z))
			followers = append(followers, follow(t, sessions[len(sessions)-1], config.Config{Name: "c", Path: "/c", Splay: splay}))
		}
		for _, f := range followers {
			f.await("version 1", has(map[string]string{"a": "1"}))
		}
		if took := time.Since(began); took >= time.Second {
			t.Errorf("the first version came after %s, want it at once", took)
		}
		publish.Keys = bytesOf(map[string]string{"a": "2"})
		_, err = Publish(t.Context(), desk, publish)
		must(t, err)
		published := time.Now()
		for _, f := range followers {
			f.await("version 2", has(map[string]string{"a": "2"}))
		}
		if took := time.Since(published); took < time.Second || took > splay+time.Second {
			t.Errorf("the last of %d hosts had the version after %s, want it spread over %s", hosts, took, splay)
		}
		for i, f := range followers {
			must(t, f.stop())
			must(t, sessions[i].Close())
		}
		must(t, desk.Close())
	})
}
