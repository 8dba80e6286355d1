package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

func TestVersioned_PublishAndFollow(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	first := mustPublish(t, s, path, "", map[string]string{"a": "1", "b/c": "2", "empty": ""})
	if first.Layout != config.LayoutVersioned || first.Version != 1 || first.Previous != 0 || first.Count != 3 || first.Size != 2 {
		t.Errorf("got %+v", first)
	}
	got := f.await("version 1", has(map[string]string{"a": "1", "b/c": "2", "empty": ""}))
	if got.Generation != 1 || got.Digest != first.Digest || got.Layout != config.LayoutVersioned || got.Last == 0 {
		t.Errorf("got %+v", got)
	}
	second := mustPublish(t, s, path, "", map[string]string{"a": "1", "b/c": "3"})
	if second.Version != 2 || second.Previous != 1 || len(second.Changes) != 2 {
		t.Errorf("got %+v", second)
	}
	f.await("version 2", has(map[string]string{"a": "1", "b/c": "3"}))
	again := mustPublish(t, s, path, "", map[string]string{"a": "1", "b/c": "3"})
	if !again.Unchanged || again.Version != 2 {
		t.Errorf("got %+v", again)
	}
	tree, err := config.Read(soon(t), s, path)
	must(t, err)
	if tree.Generation != 2 || tree.Previous != 1 || !has(map[string]string{"a": "1", "b/c": "3"})(tree) {
		t.Errorf("read %s", show(tree))
	}
	old, err := config.ReadVersion(soon(t), s, path, 1)
	must(t, err)
	if !has(map[string]string{"a": "1", "b/c": "2", "empty": ""})(old) {
		t.Errorf("read %s", show(old))
	}
	if _, err := config.ReadVersion(soon(t), s, path, 7); !errors.Is(err, config.ErrNoVersion) {
		t.Errorf("got %v", err)
	}
}

// One watch per tree; per version at most four requests, and kilobytes, whatever
// the size of the tree.
func TestVersioned_CostOfOneChange(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, reader, path := dial(t), dial(t), newRoot(t)
	keys := numbered(testhelp.Rounds(2000, 10_000), strings.Repeat("x", 100))
	mustPublish(t, s, path, "", keys)
	f := follow(t, reader, config.Config{Name: "c", Path: path})
	f.await("version 1", has(keys))
	before := total(reader)
	keys["dir0/key0000"] = "new"
	res := mustPublish(t, s, path, "", keys)
	f.await("version 2", has(keys))
	if got := total(reader) - before; got != 1 {
		t.Errorf("%d requests for one changed key: %v", got, reader.Requests())
	}
	data, _, err := s.Get(soon(t), trees.VersionPath(path, res.Version))
	must(t, err)
	m, err := trees.DecodeManifest(res.Version, data)
	must(t, err)
	bucket, _, err := s.Get(soon(t), trees.ObjectPath(path, m.Buckets[trees.BucketOf("dir0/key0000", m.Bits)]))
	must(t, err)
	if len(data)+len(bucket) > 20_000 {
		t.Errorf("version has %d bytes, bucket %d", len(data), len(bucket))
	}
}

func TestVersioned_SplitValue(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, path := dial(t), newRoot(t)
	big := make([]byte, 2*trees.MaxObject+17)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range big {
		big[i] = byte(rng.Uint32())
	}
	cfg := PublishConfig{Path: path, Keys: map[string][]byte{"big": big, "small": []byte("1")}}
	if _, err := Publish(soon(t), s, cfg); !errors.Is(err, config.ErrBounds) {
		t.Fatalf("got %v", err)
	}
	cfg.Force = true
	_, err := Publish(soon(t), s, cfg)
	must(t, err)
	tree, err := config.Read(soon(t), s, path)
	must(t, err)
	if k, _ := tree.Get("big"); !bytes.Equal(k.Value, big) {
		t.Errorf("read %d bytes, want %d", len(k.Value), len(big))
	}
	value, n, err := config.Lookup(soon(t), s, path, "big")
	if err != nil || n != 1 || !bytes.Equal(value, big) {
		t.Errorf("looked up %d bytes of version %d, %v", len(value), n, err)
	}
	if _, err := GC(soon(t), s, path, 1, nil); err != nil {
		t.Error(err)
	}
	if _, err := config.ReadVersion(soon(t), s, path, 1); err != nil {
		t.Errorf("after collection: %v", err)
	}
}

// Two publishers at once: both succeed, in some order. With a version check one fails.
func TestVersioned_TwoPublishers(t *testing.T) {
	t.Parallel()
	path := newRoot(t)
	mustPublish(t, dial(t), path, "", map[string]string{"a": "0"})
	check := int64(1)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		s := dial(t)
		wg.Go(func() {
			_, errs[i] = Publish(t.Context(), s, PublishConfig{Path: path, Check: &check, Keys: bytesOf(map[string]string{"a": fmt.Sprint(i + 1)})})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, ErrConflict):
			t.Errorf("got %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d publishers won: %v", won, errs)
	}
}

func TestVersioned_HistoryRollbackAndDiff(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, "", map[string]string{"a": "1\n", "b": "x"})
	mustPublish(t, s, path, "", map[string]string{"a": "2\n", "c": "y"})
	prepared, err := Prepare(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "3\n", "c": "y"}), Message: "proposed"})
	must(t, err)
	res, err := Rollback(soon(t), s, PublishConfig{Path: path, Message: "back", Author: "me"}, 0)
	must(t, err)
	if prepared.Version != 3 || res.Version != 4 {
		t.Errorf("prepared %d, rolled back as %d", prepared.Version, res.Version)
	}
	history, err := config.History(soon(t), s, path)
	must(t, err)
	if len(history) != 4 {
		t.Fatalf("got %+v", history)
	}
	if v := history[0]; v.Number != 4 || v.RollbackOf != 1 || !v.Active || v.Message != "back" || v.Author != "me" || v.Parent != 2 || v.Digest != history[3].Digest {
		t.Errorf("got %+v", v)
	}
	if v := history[1]; v.Used || v.Active || v.Message != "proposed" {
		t.Errorf("got %+v", v)
	}
	if v := history[2]; !v.Used || v.Active || v.Time.IsZero() {
		t.Errorf("got %+v", v)
	}
	one, err := config.ReadVersion(soon(t), s, path, 1)
	must(t, err)
	two, err := config.ReadVersion(soon(t), s, path, 2)
	must(t, err)
	want := "--- v1/a\n+++ v2/a\n@@ -1,1 +1,1 @@\n-1\n+2\n--- v1/b\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n" +
		"--- /dev/null\n+++ v2/c\n@@ -0,0 +1,1 @@\n+y\n"
	if got := config.Unified(config.Diff(one, two), "v1", "v2"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	ready, st, err := trees.ReadReady(soon(t), s, path)
	must(t, err)
	_, err = s.Set(soon(t), trees.ReadyPath(path), trees.Ready{Version: prepared.Version, Digest: prepared.Digest, Previous: ready.Version, Rollout: "r-1"}.Encode(), st.Version)
	must(t, err)
	tree, err := config.Read(soon(t), s, path)
	must(t, err)
	if tree.Generation != 3 || tree.Rollout != "r-1" || tree.Previous != 4 {
		t.Errorf("got %+v", tree)
	}
}

func TestVersioned_FreezeGuardsEveryFlip(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			mustPublish(t, s, path, layout, map[string]string{"a": "1"})
			mustPublish(t, s, path, layout, map[string]string{"a": "2"})
			must(t, Freeze(soon(t), s, path, "ann", "holiday"))
			cfg := PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "3"})}
			var frozen *FrozenError
			if _, err := Publish(soon(t), s, cfg); !errors.As(err, &frozen) || frozen.Reason != "holiday" || !errors.Is(err, ErrFrozen) {
				t.Errorf("got %v", err)
			}
			// A freeze that comes between the look and the flip.
			was, err := Unfreeze(soon(t), s, path, "bob")
			if !was || err != nil {
				t.Errorf("got %v, %v", was, err)
			}
			cfg.step = func(name string) error {
				if name == "flip" || name == "all" {
					write(t, s, path+"/freeze", "just now")
				}
				return nil
			}
			if _, err := Publish(soon(t), s, cfg); !errors.As(err, &frozen) || frozen.Reason != "just now" {
				t.Errorf("got %v", err)
			}
			if layout == config.LayoutVersioned {
				if _, err := Rollback(soon(t), s, PublishConfig{Path: path}, 0); !errors.Is(err, ErrFrozen) {
					t.Errorf("got %v", err)
				}
			}
			tree, err := config.Read(soon(t), s, path)
			must(t, err)
			if !has(map[string]string{"a": "2"})(tree) {
				t.Errorf("changed to %s", show(tree))
			}
		})
	}
}

func TestVersioned_Convert(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	keys := map[string]string{"a": "1", "b/c": "2", "b/d": "3"}
	mustPublish(t, s, path, config.LayoutFlat, keys)
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("the flat tree", has(keys))
	res, err := Convert(soon(t), s, PublishConfig{Path: path, Message: "go on"}, false)
	must(t, err)
	got := f.await("the versioned tree", func(v *view.Tree) bool { return v.Layout == config.LayoutVersioned })
	if got.Generation != res.Version || !has(keys)(got) {
		t.Errorf("got %s", show(got))
	}
	if _, ok, err := s.Exists(soon(t), path+"/b"); ok || err != nil {
		t.Errorf("flat keys are left, %v", err)
	}
	for _, tree := range f.all() {
		if !has(keys)(tree) {
			t.Errorf("passed on %s", show(tree))
		}
	}
	if _, err := Convert(soon(t), s, PublishConfig{Path: path}, false); !errors.Is(err, ErrUnchanged) {
		t.Errorf("got %v", err)
	}
}

func TestVersioned_GC(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for i := range 8 {
		mustPublish(t, s, path, "", map[string]string{"a": fmt.Sprint(i), "same": "same"})
	}
	sub := NewSubscriber(SubscriberConfig{Path: path, ID: "agent-1"})
	sub.Report(2, StateFailed, errors.New("refused"))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx, s) }()
	defer func() {
		cancel()
		must(t, <-done)
		list, err := Subscribers(t.Context(), s, path)
		if err != nil || len(list) != 0 {
			t.Errorf("subscriber left %+v, %v", list, err)
		}
	}()
	eventually(t, "the subscription", func() bool {
		list, err := Subscribers(t.Context(), s, path)
		must(t, err)
		return len(list) == 1 && list[0] == Subscription{ID: "agent-1", Version: 2, State: StateFailed, Error: "refused"}
	})
	write(t, s, path+"/rollouts/r-0000000000", `{"version":3,"previous":1}`)
	write(t, s, path+"/rollouts/current", "r-0000000000")
	write(t, s, path+"/objects/00/"+strings.Repeat("00", 32), "left by a publisher that died")
	got, err := GC(soon(t), s, path, 1, nil)
	must(t, err)
	if fmt.Sprint(got.Versions) != "[4 5 6]" {
		t.Errorf("collected %+v", got)
	}
	for _, n := range []int64{1, 2, 3, 7, 8} {
		if _, err := config.ReadVersion(soon(t), s, path, n); err != nil {
			t.Errorf("version %d: %v", n, err)
		}
	}
	if got.Objects != 3*2+1 { // For each version a bucket and a value.
		t.Errorf("collected %d objects", got.Objects)
	}
	must(t, s.Delete(soon(t), currentPath(path), -1))
	mustPublish(t, s, path, "", map[string]string{"a": "3", "same": "same"})
}

func TestVersioned_LiesAreRefused(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, "", map[string]string{"a": "1"})
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("version 1", has(map[string]string{"a": "1"}))
	value := trees.ObjectPath(path, trees.DigestOf([]byte("2")))
	p, err := Prepare(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "2"})})
	must(t, err)
	write(t, s, value, "a lie")
	ready, st, err := trees.ReadReady(soon(t), s, path)
	must(t, err)
	_, err = s.Set(soon(t), trees.ReadyPath(path), trees.Ready{Version: p.Version, Digest: p.Digest, Previous: ready.Version}.Encode(), st.Version)
	must(t, err)
	f.awaitStatus("the wrong digest", func(st config.Status) bool { return errors.Is(st.Err, config.ErrDigest) })
	if len(f.all()) != 1 {
		t.Errorf("passed on %s", show(f.last()))
	}
	write(t, s, path+"/ready", "{\"zkagent\":9}")
	f.awaitStatus("the unknown format", func(st config.Status) bool { return errors.Is(st.Err, config.ErrFormat) })
	// The next publisher repairs the object.
	write(t, s, path+"/ready", string(ready.Encode()))
	mustPublish(t, s, path, "", map[string]string{"a": "2", "b": "2"})
	f.await("the repaired version", has(map[string]string{"a": "2", "b": "2"}))
	f.awaitStatus("no error", func(st config.Status) bool { return st.Err == nil })
}

func TestPlan(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	p, err := NewPlan(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "1"})})
	must(t, err)
	if p.From != 0 || p.Next != 1 || p.Layout != config.LayoutVersioned || p.Refused != nil || len(p.Changes) != 1 || p.Subscribers == nil {
		t.Errorf("got %+v", p)
	}
	res := mustPublish(t, s, path, "", map[string]string{"a": "1"})
	if res.Version != p.Next || res.Digest != p.Digest {
		t.Errorf("planned %+v, got %+v", p, res)
	}
	must(t, Freeze(soon(t), s, path, "ann", "why"))
	check := int64(7)
	p, err = NewPlan(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(numbered(6, "1")), Check: &check})
	must(t, err)
	if !errors.Is(p.Refused, ErrConflict) || !errors.Is(p.Refused, ErrFrozen) || p.Next != 2 || p.From != 1 {
		t.Errorf("got %+v: %v", p, p.Refused)
	}
}

func TestPublish_Bounds(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, path := dial(t), newRoot(t)
	cases := map[string]map[string][]byte{
		"reserved":  {"ready": nil},
		"reserved2": {"objects/x": nil},
		"dots":      {"a/../b": nil},
		"control":   {"a\x01": nil},
		"huge":      {"a": make([]byte, config.MaxValue+1)},
	}
	for name, keys := range cases {
		if _, err := Publish(soon(t), s, PublishConfig{Path: path, Keys: keys}); err == nil {
			t.Errorf("%s was published", name)
		}
	}
	if _, ok, err := s.Exists(soon(t), path); ok || err != nil {
		t.Errorf("a refused publish wrote something, %v", err)
	}
	mustPublish(t, s, path, "", numbered(10, "1"))
	for _, keys := range []map[string]string{numbered(51, "1"), numbered(1, "1"), {"a": strings.Repeat("x", 100_000)}} {
		cfg := PublishConfig{Path: path, Keys: bytesOf(keys)}
		if _, err := Publish(soon(t), s, cfg); !errors.Is(err, config.ErrBounds) {
			t.Errorf("%d keys: got %v", len(keys), err)
		}
		cfg.Force = true
		_, err := Publish(soon(t), s, cfg)
		must(t, err)
		mustPublish(t, s, path, "", numbered(10, "1"))
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	schema := []byte(`{"type":"object","required":["web"],"properties":{"web":{"type":"object","properties":{
		"port":{"type":"integer","minimum":1,"maximum":65535},"name":{"type":"string"}},"additionalProperties":false}}}`)
	good := map[string]string{"web/port": "80", "web/name": "x", config.SchemaKey: string(schema)}
	if err := config.CheckSchema(nil, view.TreeOf("", "", good)); err != nil {
		t.Error(err)
	}
	for _, bad := range []map[string]string{{"web/port": "0"}, {"web/port": "http"}, {"web/prot": "80"}, {"other": "1"}} {
		if err := config.CheckSchema(schema, view.TreeOf("", "", bad)); !errors.Is(err, config.ErrSchema) {
			t.Errorf("%v: got %v", bad, err)
		}
		s, path := dial(t), newRoot(t)
		keys := bytesOf(bad)
		maps.Copy(keys, map[string][]byte{config.SchemaKey: schema})
		if _, err := Publish(soon(t), s, PublishConfig{Path: path, Keys: keys}); !errors.Is(err, config.ErrSchema) {
			t.Errorf("%v: got %v", bad, err)
		}
	}
	if err := config.CheckSchema([]byte(`{"$ref":"http://example.com/x"}`), view.TreeOf("", "", good)); err == nil {
		t.Error("a reference to another document was followed")
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			if _, _, err := config.Lookup(soon(t), s, path, "a"); !errors.Is(err, config.ErrNotReady) {
				t.Errorf("got %v", err)
			}
			res := mustPublish(t, s, path, layout, map[string]string{"a/b": "1"})
			value, n, err := config.Lookup(soon(t), s, path, "a/b")
			if err != nil || string(value) != "1" || n != res.Generation {
				t.Errorf("got %q, %d, %v", value, n, err)
			}
			for _, key := range []string{"a", "c"} {
				if _, _, err := config.Lookup(soon(t), s, path, key); !errors.Is(err, config.ErrNoKey) {
					t.Errorf("%s: got %v", key, err)
				}
			}
		})
	}
}

func TestPublish_LargerThanMultiLimit(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, path := dial(t), newRoot(t)
	keys := map[string]string{}
	for i := range 30 {
		keys[fmt.Sprintf("big/%d", i)] = strings.Repeat(fmt.Sprint(i%10), 100_000)
	}
	mustPublish(t, s, path, config.LayoutFlat, keys)
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("the tree", has(keys))
	for i := range 30 {
		keys[fmt.Sprintf("big/%d", i)] = strings.Repeat("z", 100_000)
	}
	mustPublish(t, s, path, config.LayoutFlat, keys)
	f.await("the next tree", has(keys))
	if got := len(f.all()); got != 2 {
		t.Errorf("passed on %d trees, want 2", got)
	}
}

// A publisher that dies at any step leaves a whole tree in use, and the next one
// comes through.
func TestPublish_DiesAtEachStep(t *testing.T) {
	t.Parallel()
	died := errors.New("died")
	big := func(v string) map[string]string {
		m := map[string]string{}
		for i := range 8 {
			m[fmt.Sprintf("k%d", i)] = v + strings.Repeat("-", 200_000)
		}
		return m
	}
	steps := map[string][]string{config.LayoutFlat: {"all", "begin", "keys", "keys2", "ready"}, config.LayoutVersioned: {"objects", "version", "flip"}}
	for layout, names := range steps {
		for _, name := range names {
			t.Run(layout+"/"+name, func(t *testing.T) {
				t.Parallel()
				path, victim, next := newRoot(t), dial(t), dial(t)
				before, after := big("1"), big("2")
				if name == "all" {
					before, after = map[string]string{"a": "1"}, map[string]string{"a": "2"}
				}
				mustPublish(t, next, path, layout, before)
				f := follow(t, dial(t), config.Config{Name: "c", Path: path})
				f.await("the first tree", has(before))
				cfg := PublishConfig{Path: path, Keys: bytesOf(after)}
				calls := map[string]int{}
				cfg.step = func(at string) error {
					if calls[at]++; at == name || calls[at] == 2 && at+"2" == name {
						_ = victim.Close()
						return died
					}
					return nil
				}
				if _, err := Publish(soon(t), victim, cfg); !errors.Is(err, died) {
					t.Fatalf("got %v", err)
				}
				cfg.step = nil
				_, err := Publish(soon(t), next, cfg)
				if name == "keys" || name == "keys2" || name == "ready" {
					if !errors.Is(err, ErrUnfinished) || !strings.Contains(err.Error(), "To finish, ") {
						t.Fatalf("got %v", err)
					}
					f.awaitStatus("the wait for ready", func(st config.Status) bool { return st.Waiting != "" })
					if len(f.all()) != 1 {
						t.Errorf("passed on %s", show(f.last()))
					}
					cfg.Finish = true
					_, err = Publish(soon(t), next, cfg)
				}
				must(t, err)
				f.await("the second tree", has(after))
				for _, tree := range f.all() {
					if !has(before)(tree) && !has(after)(tree) {
						t.Errorf("passed on a mix: %s", show(tree))
					}
				}
			})
		}
	}
}

func TestFinish(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	write(t, s, path+"/a", "1")
	if _, err := Publish(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "2"})}); !errors.Is(err, ErrUnfinished) {
		t.Errorf("got %v", err)
	}
	res, err := Finish(soon(t), s, PublishConfig{Path: path})
	if err != nil || res.Count != 1 || res.Generation == 0 {
		t.Errorf("got %+v, %v", res, err)
	}
	if _, err := Finish(soon(t), s, PublishConfig{Path: path}); !errors.Is(err, ErrUnchanged) {
		t.Errorf("got %v", err)
	}
	tree, err := config.Read(soon(t), s, path)
	if err != nil || !has(map[string]string{"a": "1"})(tree) {
		t.Errorf("got %s, %v", show(tree), err)
	}
}

func TestSubscriber_ComesBackAfterDelete(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	sub := NewSubscriber(SubscriberConfig{Path: path, ID: "a"})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx, s) }()
	t.Cleanup(func() { cancel(); <-done })
	version := func() int64 {
		list, err := Subscribers(t.Context(), s, path)
		must(t, err)
		if len(list) != 1 {
			return -1
		}
		return list[0].Version
	}
	eventually(t, "the subscription", func() bool { return version() == 0 })
	sub.Report(5, StateOK, nil)
	eventually(t, "the report", func() bool { return version() == 5 })
	must(t, s.Delete(t.Context(), SubscriptionPath(path, "a"), -1))
	eventually(t, "its return", func() bool { return version() == 5 })
}
