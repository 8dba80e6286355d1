package fleet

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// Random publishes, rollbacks and unused proposals: the origin of each key is the
// version that gave it its value, among the versions that were in use.
func TestOrigins_AgainstModel(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, path := dial(t), newRoot(t)
	r := rand.New(rand.NewPCG(5, 5))
	keys := numbered(200, "v")
	set := map[string]int64{}
	for n := range 12 {
		before := maps.Clone(keys)
		for range 1 + r.IntN(3) {
			k := fmt.Sprintf("k%d", r.IntN(6))
			if r.IntN(4) == 0 {
				delete(keys, k)
			} else {
				keys[k] = fmt.Sprint(r.IntN(3))
			}
		}
		res := mustPublish(t, s, path, "", keys)
		if res.Unchanged {
			continue
		}
		for k := range union(before, keys) {
			if v, ok := keys[k]; n == 0 || v != before[k] || ok != (before[k] != "") {
				set[k] = res.Version
			}
		}
		origins, err := config.Origins(soon(t), s, path, res.Version, []string{"k0", "k1", "k2", "k3", "k4", "k5", "dir0/key0000"})
		must(t, err)
		for k, o := range origins {
			want := set[k]
			if keys[k] != "" {
				want = max(want, 1)
			}
			if o.Version.Number != want || o.Before != 0 || want > 0 && o.Version.Author == "" {
				t.Fatalf("version %d: %s is of %+v, want version %d", res.Version, k, o, want)
			}
		}
	}
	if _, err := config.Origins(soon(t), s, path, 99, []string{"k0"}); !errors.Is(err, config.ErrNoVersion) {
		t.Errorf("got %v", err)
	}
}

func union(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// A key that was set before the oldest version that is kept has no author any more.
// The versions are read once: three requests, whatever the number of keys.
func TestOrigins_BeforeWhatIsKept(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for i := range 5 {
		mustPublish(t, s, path, "", map[string]string{"old": "1", "new": fmt.Sprint(i)})
	}
	must(t, s.Delete(soon(t), trees.VersionPath(path, 1), -1))
	must(t, s.Delete(soon(t), trees.VersionPath(path, 2), -1))
	keys := []string{"old", "new"}
	for i := range 3000 {
		keys = append(keys, fmt.Sprint("none", i))
	}
	before := total(s)
	got, err := config.Origins(soon(t), s, path, 5, keys)
	must(t, err)
	if got["old"].Before != 3 || got["new"].Version.Number != 5 {
		t.Errorf("got %+v", got)
	}
	if n := total(s) - before; n > 3 {
		t.Errorf("%d requests", n)
	}
}

// A key of a flat tree knows the zxid and the time of its change.
func TestFlat_TimeOfAKey(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"a": "1"})
	f.await("the key", has(map[string]string{"a": "1"}))
	_, st, err := s.Get(soon(t), path+"/a")
	must(t, err)
	got := f.await("the key", func(tree *view.Tree) bool { k, ok := tree.Get("a"); return ok && k.Mtime > 0 })
	if k, _ := got.Get("a"); k.Mtime != st.Mtime || k.Mzxid != st.Mzxid {
		t.Errorf("got %+v, want %+v", k, st)
	}
	tree, err := config.Read(soon(t), s, path)
	must(t, err)
	if k, _ := tree.Get("a"); k.Mtime != st.Mtime {
		t.Errorf("got %+v, want %+v", k, st)
	}
}

// The version of a dry run is prepared while the tree is frozen, is no part of the
// history, and does not count among those that garbage collection keeps.
func TestGC_DryVersionsDoNotCount(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for i := range 3 {
		mustPublish(t, s, path, "", map[string]string{"k": fmt.Sprint(i)})
	}
	must(t, Freeze(soon(t), s, path, "ann", "sales day"))
	dry, err := Prepare(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"k": "dry"}), Dry: true})
	must(t, err)
	history, err := config.History(soon(t), s, path)
	must(t, err)
	if len(history) != 3 {
		t.Errorf("got %+v", history)
	}
	got, err := GC(soon(t), s, path, 3, nil)
	must(t, err)
	if len(got.Versions) != 1 || got.Versions[0] != dry.Version {
		t.Errorf("got %+v, want v%d alone", got, dry.Version)
	}
}
