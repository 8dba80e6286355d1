package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// contentOf is the content that publishing the keys would make.
func contentOf(keys map[string][]byte) *trees.Content {
	m, objects := buildVersion(keys)
	c := &trees.Content{Manifest: *m, Keys: view.KeysOf(keys)}
	for i, sum := range m.Buckets {
		list, err := trees.DecodeBucket(objects[sum], i, m.Bits)
		if err != nil {
			panic(err)
		}
		c.Lists = append(c.Lists, list)
	}
	return c
}

// TestDelta_MakesTheVersion applies differences between random trees, also such
// as change the number of buckets: the result is what publishing would make.
func TestDelta_MakesTheVersion(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for range testhelp.Rounds(60, 300) {
		keys := map[string][]byte{}
		for i := range rng.IntN(200) {
			keys[fmt.Sprintf("dir%d/k%d", i%3, i)] = []byte(fmt.Sprint(rng.IntN(3)))
		}
		old := contentOf(keys)
		next := maps.Clone(keys)
		if rng.IntN(4) == 0 { // half of the buckets, or fewer
			maps.DeleteFunc(next, func(string, []byte) bool { return rng.IntN(3) > 0 })
		}
		for range rng.IntN(20) {
			switch key := fmt.Sprintf("dir%d/k%d", rng.IntN(3), rng.IntN(300)); rng.IntN(3) {
			case 0:
				delete(next, key)
			case 1:
				next[key] = nil
			default:
				next[key] = []byte("new")
			}
		}
		want := contentOf(next)
		d := deltaOf(old.Sum, changesIn(old.Keys, want.Keys))
		got, err := old.Apply(d, 7, want.Sum)
		if err != nil {
			t.Fatal(err)
		}
		if got.Number != 7 || got.Count != want.Count || got.Size != want.Size || len(changesIn(got.Keys, want.Keys)) > 0 || fmt.Sprint(got.Lists) != fmt.Sprint(want.Lists) {
			t.Fatalf("%+v applied to %v makes %v, want %v", d, keys, got.Lists, want.Lists)
		}
		if old.Sum != contentOf(keys).Sum || fmt.Sprint(old.Lists) != fmt.Sprint(contentOf(keys).Lists) {
			t.Fatal("the content before has changed")
		}
	}
}

func TestDelta_TooLargeOrWrong(t *testing.T) {
	t.Parallel()
	old := contentOf(map[string][]byte{"a": []byte("1")})
	next := contentOf(map[string][]byte{"a": []byte("2")})
	for name, d := range map[string]*trees.Delta{
		"other value":  {Set: map[string][]byte{"a": []byte("3")}},
		"bad key":      {Set: map[string][]byte{"../a": []byte("2")}},
		"reserved key": {Set: map[string][]byte{"ready": []byte("2")}, Del: []string{"a"}},
		"bad deletion": {Del: []string{"/a"}},
		"too large":    {Set: map[string][]byte{"a": make([]byte, trees.MaxObject+1)}},
	} {
		if _, err := old.Apply(d, 2, next.Sum); err == nil {
			t.Errorf("%s is applied", name)
		}
	}
	large := contentOf(map[string][]byte{"a": make([]byte, trees.MaxDelta)})
	if d := deltaOf(old.Sum, changesIn(old.Keys, large.Keys)); d != nil {
		t.Errorf("a difference of %d bytes is carried", trees.MaxDelta)
	}
}

// TestVersioned_ReadyCarriesTheDifference is what ready says, and to whom.
func TestVersioned_ReadyCarriesTheDifference(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	first := mustPublish(t, s, path, "", map[string]string{"a": "1", "b": "1"})
	mustPublish(t, s, path, "", map[string]string{"a": "2"})
	r, st, err := trees.ReadReady(soon(t), s, path)
	must(t, err)
	if r.Delta == nil || r.Delta.From != first.Digest || string(r.Delta.Set["a"]) != "2" || fmt.Sprint(r.Delta.Del) != "[b]" {
		t.Errorf("ready carries %+v", r.Delta)
	}
	_, err = Publish(soon(t), s, PublishConfig{Path: path, Keys: map[string][]byte{"a": []byte("3")}, NoDelta: true})
	must(t, err)
	if r, _, err = trees.ReadReady(soon(t), s, path); err != nil || r.Delta != nil {
		t.Errorf("without: %+v, %v", r.Delta, err)
	}
	only, err := session.ParseACL("world:anyone:r")
	must(t, err)
	_, err = s.SetACL(soon(t), trees.ReadyPath(path), []session.ACL{only, session.OpenACL()[0]}, -1)
	must(t, err)
	mustPublish(t, s, path, "", map[string]string{"a": "4"})
	if r, _, err = trees.ReadReady(soon(t), s, path); err != nil || r.Delta != nil || st.Version < 0 {
		t.Errorf("ready has other rights than objects, and carries %+v, %v", r.Delta, err)
	}
}

// TestVersioned_WrongDifferenceIsNotUsed sets ready past the publisher: with a
// difference that is stale, that lies, or that leads to unknown contents.
func TestVersioned_WrongDifferenceIsNotUsed(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	keys := func(v string) map[string]string { return map[string]string{"a": v, "b": "same"} }
	mustPublish(t, s, path, "", keys("1"))
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("version 1", has(keys("1")))
	for i, change := range []func(d *trees.Delta){
		func(d *trees.Delta) { d.Set["a"] = []byte("lie") },
		func(d *trees.Delta) { d.Set["b"] = []byte("lie") },
		func(d *trees.Delta) { d.From = trees.DigestOf([]byte("other")).String() },
		func(d *trees.Delta) { d.Del = append(d.Del, "b") },
	} {
		value := fmt.Sprint(i + 2)
		r, err := Prepare(soon(t), s, PublishConfig{Path: path, Keys: map[string][]byte{"a": []byte(value), "b": []byte("same")}})
		must(t, err)
		change(r.Delta)
		_, err = s.Set(soon(t), trees.ReadyPath(path), trees.Ready{Version: r.Version, Digest: r.Digest, Delta: r.Delta}.Encode(), -1)
		must(t, err)
		f.await("version "+value, has(keys(value)))
	}
}

// TestGC_StartsOverWhenAProposalOrFlipComesBetween holds a collection before its
// first delete and refers to what it is about to take.
func TestGC_StartsOverWhenAProposalOrFlipComesBetween(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(ctx context.Context, s *session.Session, path string) error{
		"proposal": func(ctx context.Context, s *session.Session, path string) error {
			for p, data := range map[string]string{"/rollouts/r-0000000000": `{"version":1}`, "/rollouts/current": "r-0000000000"} {
				if _, _, err := s.Create(ctx, path+p, []byte(data), session.Persistent); err != nil {
					return err
				}
			}
			_, err := s.Set(ctx, trees.VersionsPath(path), nil, -1)
			return err
		},
		"flip": func(ctx context.Context, s *session.Session, path string) error {
			_, err := s.Set(ctx, trees.ReadyPath(path), trees.Ready{Version: 1, Digest: trees.DigestOf(nil).String(), Previous: 5}.Encode(), -1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			for i := range 5 {
				mustPublish(t, s, path, "", map[string]string{"a": fmt.Sprint(i)})
			}
			g := &collector{s: s, root: path, done: &Collected{}}
			_, err := g.epoch(soon(t))
			must(t, err)
			must(t, between(soon(t), s, path))
			if err = deleteAll(soon(t), s, g.guards, []string{trees.VersionPath(path, 1)}); !errors.Is(err, session.ErrBadVersion) {
				t.Fatalf("the delete says %v", err)
			}
			got, err := GC(soon(t), s, path, 1, nil)
			must(t, err)
			if _, err = config.ReadVersion(soon(t), s, path, 1); err != nil {
				t.Errorf("%v, collected %+v", err, got)
			}
		})
	}
}

// TestDelta_Allocations is what a host allocates for a version of 1,000 keys with one
// changed: one bucket and one chunk of the keys, not all of them.
func TestDelta_Allocations(t *testing.T) { //nolint:paralleltest // it counts allocations
	keys := map[string][]byte{}
	for i := range 1000 {
		keys[fmt.Sprintf("key-%05d", i)] = fmt.Appendf(nil, "value-%010d", i)
	}
	old := contentOf(keys)
	keys["key-00500"] = []byte("new")
	next := contentOf(keys)
	d := deltaOf(old.Sum, changesIn(old.Keys, next.Keys))
	const runs = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		if _, err := old.Apply(d, 2, next.Sum); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	allocs, bytes := (after.Mallocs-before.Mallocs)/runs, (after.TotalAlloc-before.TotalAlloc)/runs
	t.Logf("%d allocations, %d bytes", allocs, bytes)
	if allocs > 40 || bytes > 18<<10 {
		t.Errorf("%d allocations of %d bytes", allocs, bytes)
	}
}

func changesIn(from, to *view.Keys) []config.Change {
	return config.Diff(view.NewTree(view.Tree{}, from), view.NewTree(view.Tree{}, to))
}
