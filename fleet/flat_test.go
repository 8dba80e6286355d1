package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func TestWatcher_ReadyAbsentAtStart(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	f := follow(t, s, config.Config{Name: "c", Path: path})
	f.awaitStatus("the wait for ready", func(st config.Status) bool { return st.Waiting == "for "+path+"/ready, which does not exist" })
	write(t, s, path+"/a", "1")
	write(t, s, path+"/b/c", "2")
	if f.last() != nil {
		t.Fatalf("passed on without ready: %s", show(f.last()))
	}
	write(t, s, path+"/ready", "")
	got := f.await("the tree", has(map[string]string{"a": "1", "b/c": "2"}))
	if got.Name != "c" || got.Path != path || got.Layout != config.LayoutFlat || got.Generation == 0 || got.Last < got.Generation {
		t.Errorf("got %+v", got)
	}
	must(t, f.stop())
}

func TestWatcher_ReadyStandsKeyChanges(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"a": "1", "d/b": "2"})
	f := follow(t, s, config.Config{Name: "c", Path: path})
	first := f.await("the tree", has(map[string]string{"a": "1", "d/b": "2"}))
	write(t, s, path+"/a", "3")
	got := f.await("the change", has(map[string]string{"a": "3", "d/b": "2"}))
	if got.Generation != first.Generation || got.Last <= first.Last {
		t.Errorf("generation %d after %d, last %d after %d", got.Generation, first.Generation, got.Last, first.Last)
	}
	write(t, s, path+"/a/below", "4") // The first child of a leaf.
	f.await("the key below a key", has(map[string]string{"a": "3", "a/below": "4", "d/b": "2"}))
	must(t, s.Delete(t.Context(), path+"/d/b", -1))
	f.await("an empty key", has(map[string]string{"a": "3", "a/below": "4", "d": ""}))
	must(t, s.Delete(t.Context(), path+"/d", -1))
	f.await("no key", has(map[string]string{"a": "3", "a/below": "4"}))
}

func TestWatcher_WriterDiesBetweenDeleteAndCreate(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	before := map[string]string{"a": "1", "b": "1"}
	mustPublish(t, s, path, config.LayoutFlat, before)
	f := follow(t, s, config.Config{Name: "c", Path: path})
	f.await("the tree", has(before))
	must(t, s.Delete(t.Context(), path+"/ready", -1))
	write(t, s, path+"/a", "2")
	f.awaitStatus("the wait for ready", func(st config.Status) bool { return st.Waiting != "" })
	if got := f.all(); len(got) != 1 {
		t.Fatalf("passed on %s while ready was absent", show(f.last()))
	}
	write(t, s, path+"/b", "2")
	write(t, s, path+"/ready", "")
	f.await("the next generation", has(map[string]string{"a": "2", "b": "2"}))
	if got := f.all(); len(got) != 2 {
		t.Errorf("passed on %d trees, want 2", len(got))
	}
}

// A writer changes 50 keys one by one under the ready rule, again and again;
// readers never see two values at once.
func TestWatcher_NeverAMix(t *testing.T) {
	t.Parallel()
	path := newRoot(t)
	writer := dial(t)
	mustPublish(t, writer, path, config.LayoutFlat, numbered(50, "0"))
	var followers []*follower
	for range 3 {
		followers = append(followers, follow(t, dial(t), config.Config{Name: "c", Path: path}))
	}
	rounds := testhelp.Rounds(5, 15)
	for round := 1; round <= rounds; round++ {
		ctx := t.Context()
		must(t, writer.Delete(ctx, path+"/ready", -1))
		for key := range numbered(50, "") {
			_, err := writer.Set(ctx, path+"/"+key, fmt.Append(nil, round), -1)
			must(t, err)
		}
		_, _, err := writer.Create(ctx, path+"/ready", nil, session.Persistent)
		must(t, err)
	}
	for _, f := range followers {
		f.await("the last round", has(numbered(50, fmt.Sprint(rounds))))
		seen := map[int64]bool{}
		for _, tree := range f.all() {
			if seen[tree.Generation] {
				t.Errorf("generation %d was passed on twice", tree.Generation)
			}
			seen[tree.Generation] = true
			checkWhole(t, tree, 50)
		}
	}
}

// checkWhole checks that all keys have one value.
func checkWhole(t testing.TB, tree *view.Tree, keys int) {
	t.Helper()
	values := map[string]int{}
	tree.Walk("", func(_ string, k view.Key) bool {
		values[string(k.Value)]++
		return true
	})
	if len(values) != 1 || tree.Len() != keys {
		t.Errorf("generation %d is a mix: %v", tree.Generation, values)
	}
}

// 1,000 sets as fast as they go, 20 times: the end is exact each time.
func TestWatcher_BurstEndsExact(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	path := newRoot(t)
	writer := dial(t)
	mustPublish(t, writer, path, config.LayoutFlat, numbered(100, "start"))
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("the start", has(numbered(100, "start")))
	names := make([]string, 0, 100)
	for key := range numbered(100, "") {
		names = append(names, key)
	}
	for round := range testhelp.Rounds(2, 20) {
		want := map[string]string{}
		var wg sync.WaitGroup
		for lane := range 10 {
			for i := lane * 10; i < lane*10+10; i++ {
				want[names[i]] = fmt.Sprintf("%d.9", round)
			}
			wg.Go(func() {
				for n := range 100 {
					if _, err := writer.Set(t.Context(), path+"/"+names[lane*10+n%10], fmt.Appendf(nil, "%d.%d", round, n/10), -1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		f.await(fmt.Sprintf("the end of round %d", round), has(want))
	}
}

// One request per changed key and at most three more per generation, whatever
// the size of the tree.
func TestWatcher_CountsRequests(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			path, writer, reader := newRoot(t), dial(t), dial(t)
			keys := numbered(size, "0")
			mustPublish(t, writer, path, config.LayoutFlat, keys)
			f := follow(t, reader, config.Config{Name: "c", Path: path})
			f.await("the start", has(keys))
			set := func(key, value string) {
				t.Helper()
				_, err := writer.Set(t.Context(), path+"/"+key, []byte(value), -1)
				must(t, err)
				keys[key] = value
			}
			steady := func(want uint64, what string, change func()) {
				t.Helper()
				before := total(reader)
				change()
				f.await(what, has(keys))
				if got := total(reader) - before; got > want {
					t.Errorf("%s: %d requests, at most %d are wanted: %v", what, got, want, reader.Requests())
				}
			}
			steady(1, "one key while ready stands", func() { set("dir0/key0000", "1") })
			steady(3+5, "a generation in one multi", func() {
				for i := range 5 {
					keys[fmt.Sprintf("dir%d/key%04d", i, i)] = "2"
				}
				mustPublish(t, writer, path, config.LayoutFlat, keys)
			})
			generation := f.last().Generation
			steady(3+5, "a generation step by step", func() {
				must(t, writer.Delete(t.Context(), path+"/ready", -1))
				f.awaitStatus("the wait for ready", func(st config.Status) bool { return st.Waiting != "" })
				for i := range 5 {
					set(fmt.Sprintf("dir%d/key%04d", i, i), "3")
				}
				write(t, writer, path+"/ready", "")
			})
			f.await("the generation", func(t *view.Tree) bool { return t.Generation > generation })
		})
	}
}

// total counts the requests of a session, without pings.
func total(s *session.Session) uint64 {
	var n uint64
	for op, count := range s.Requests() {
		if op != "ping" {
			n += count
		}
	}
	return n
}

func TestWatcher_RootVanishesAndComesBack(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"a": "1"})
	f := follow(t, s, config.Config{Name: "c", Path: path})
	f.await("the tree", has(map[string]string{"a": "1"}))
	for _, p := range []string{"/ready", "/a", ""} {
		must(t, s.Delete(t.Context(), path+p, -1))
	}
	f.awaitStatus("the wait for ready", func(st config.Status) bool { return st.Waiting != "" })
	if len(f.all()) != 1 {
		t.Errorf("passed on %s", show(f.last()))
	}
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"b/c": "2"})
	f.await("the new tree", has(map[string]string{"b/c": "2"}))
}

func TestWatcher_NoAuthOnOneKey(t *testing.T) {
	t.Parallel()
	path := newRoot(t)
	owner := dial(t, func(c *session.Config) {
		c.Auth = []session.Auth{{Scheme: "digest", Data: []byte("owner:secret")}}
		c.ACL = []session.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	})
	mustPublish(t, owner, path, config.LayoutFlat, map[string]string{"a": "1", "b": "1"})
	closed, err := session.ParseACL("auth::cdrwa")
	must(t, err)
	must(t, owner.Delete(t.Context(), path+"/ready", -1))
	_, _, err = owner.Create(t.Context(), path+"/closed", []byte("x"), session.Persistent, closed)
	must(t, err)
	write(t, owner, path+"/ready", "")
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.awaitStatus("the refusal", func(st config.Status) bool { return st.Err != nil && st.Waiting != "" })
	if f.last() != nil {
		t.Errorf("passed on a tree without one of its keys: %s", show(f.last()))
	}
	must(t, owner.Delete(t.Context(), path+"/closed", -1))
	f.await("the readable tree", has(map[string]string{"a": "1", "b": "1"}))
	f.awaitStatus("the end of the refusal", func(st config.Status) bool { return st.Err == nil && st.Waiting == "" })
}

func TestWatcher_Plain(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	f := follow(t, s, config.Config{Name: "c", Path: path, Layout: config.LayoutPlain})
	f.awaitStatus("the wait for the root", func(st config.Status) bool { return st.Waiting == "for "+path+", which does not exist" })
	write(t, s, path+"/a/b", "1")
	f.await("the tree", has(map[string]string{"a/b": "1"}))
	write(t, s, path+"/a/b", "2")
	write(t, s, path+"/ready", "")
	f.await("the change", has(map[string]string{"a/b": "2"}))
	must(t, s.Delete(t.Context(), path+"/ready", -1))
	must(t, s.Delete(t.Context(), path+"/a/b", -1))
	must(t, s.Delete(t.Context(), path+"/a", -1))
	f.await("an empty tree", has(nil))
	must(t, s.Delete(t.Context(), path, -1))
	f.awaitStatus("the wait for the root", func(st config.Status) bool { return st.Waiting != "" })
	write(t, s, path+"/c", "3")
	f.await("the tree that came back", has(map[string]string{"c": "3"}))
}

// With leaves, a znode with children is no key, also when it has data, and while it has
// them only.
func TestWatcher_Leaves(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	f := follow(t, s, config.Config{Name: "c", Path: path, Layout: config.LayoutLeaves})
	write(t, s, path+"/a", "inner")
	f.await("a leaf", has(map[string]string{"a": "inner"}))
	write(t, s, path+"/a/b", "1")
	f.await("the key below", has(map[string]string{"a/b": "1"}))
	must(t, s.Delete(t.Context(), path+"/a/b", -1))
	f.await("the leaf again", has(map[string]string{"a": "inner"}))
}

// A watcher that runs in one session after another passes on only differences.
func TestWatcher_NextSession(t *testing.T) {
	t.Parallel()
	path, writer := newRoot(t), dial(t)
	mustPublish(t, writer, path, config.LayoutFlat, map[string]string{"a": "1"})
	f := &follower{t: t, news: make(chan struct{}), w: config.NewWatcher(config.Config{Name: "c", Path: path})}
	run := func(until func()) error {
		s := dial(t)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- f.w.Run(ctx, s, f.up) }()
		until()
		must(t, s.Close())
		return <-done
	}
	err := run(func() { f.await("the tree", has(map[string]string{"a": "1"})) })
	if err == nil {
		t.Error("the end of the session was not reported")
	}
	_ = run(func() {
		f.awaitStatus("the second session", func(st config.Status) bool { return st.Following && st.Waiting == "" })
	})
	if got := len(f.all()); got != 1 {
		t.Errorf("passed on %d trees, want 1", got)
	}
	write(t, writer, path+"/a", "2")
	_ = run(func() { f.await("the change", has(map[string]string{"a": "2"})) })
	if got := len(f.all()); got != 2 {
		t.Errorf("passed on %d trees, want 2", got)
	}
	if st := f.w.Status(); st.Waiting != "a session" || time.Since(st.Since) > within {
		t.Errorf("status %+v", st)
	}
}
