package lastgood

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// world is a view that changes.
type world struct {
	keys  map[string]string
	turn  int
	hosts []string
	more  bool // a second config
}

func (w *world) view() view.View {
	tree := view.TreeOf("web", "/config/web", w.keys)
	tree.Generation = int64(w.turn)
	group := &view.Group{Name: "api", Path: "/api"}
	for _, h := range w.hosts {
		group.Members = append(group.Members, view.Member{Node: h, Host: h, Port: 80})
	}
	set := &view.Groups{Name: "all", Path: "/all", Groups: []*view.Group{group}}
	v := view.View{}.With(tree).With(group).With(set).With(&view.Leader{Name: "l", ID: strconv.Itoa(w.turn), Mine: true})
	if w.more {
		v = v.With(view.TreeOf("more", "/config/more", w.keys))
	}
	return v
}

// key is the value of a key of the config web.
func key(g *View, path string) string {
	tree, _ := g.Tree("web")
	k, _ := tree.Get(path)
	return string(k.Value)
}

// same reports whether two views hold the same, but for who leads.
func same(a, b view.View) bool {
	as, bs := keptSources(a), keptSources(b)
	for i, s := range as {
		if len(as) != len(bs) || bs[i] != s || !a.Get(s).Equal(b.Get(s)) {
			return false
		}
	}
	return len(as) == len(bs)
}

func load(t *testing.T, state string) *View {
	t.Helper()
	g, err := Load(state)
	if err != nil || g == nil {
		t.Fatalf("got %v, %v", g, err)
	}
	return g
}

// TestKeeper_Seeds keeps views that change at random, with a new process now and
// then, and with changes cut off or damaged at any byte: what is read is the newest
// view, or one that was kept before.
func TestKeeper_Seeds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 24))
			state := t.TempDir()
			w := &world{keys: map[string]string{"bin": "\xff\x00", "empty": ""}, hosts: []string{"a"}}
			k := NewKeeper(state)
			var past []view.View
			for w.turn = range 40 {
				for range 1 + r.IntN(3) {
					switch key := fmt.Sprintf("dir/k%d", r.IntN(300)); r.IntN(8) {
					case 0:
						delete(w.keys, key)
					case 1:
						w.hosts = []string{"h" + strconv.Itoa(r.IntN(9)), "a"}
					case 2:
						w.more = r.IntN(4) == 0
					case 3:
						for i := range 200 {
							w.keys[fmt.Sprintf("dir/k%d", i)] = fmt.Sprint(r.IntN(1e9))
						}
					default:
						w.keys[key] = fmt.Sprint(r.IntN(1e9))
					}
				}
				v := w.view()
				if err := k.Save(v); err != nil {
					t.Fatal(err)
				}
				past = append(past, v)
				if got := load(t, state).View; !same(got, v) {
					t.Fatalf("turn %d: got %+v, want %+v", w.turn, got, v)
				}
				switch r.IntN(8) {
				case 0:
					k = NewKeeper(state)
				case 1:
					if !damage(t, r, Files(state)[0]) {
						k = NewKeeper(state)
					}
					got := load(t, state).View
					if !wasKept(past, got) {
						t.Fatalf("turn %d: after damage %+v, which was never kept", w.turn, got)
					}
				}
			}
			if n := len(Files(state)); n > filesKept {
				t.Errorf("%d files are kept", n)
			}
		})
	}
}

// damage does to a file what a power loss or a bad disk does: it ends early, ends in
// zeros, or one bit of it differs. The first view stays sound, so that there is one. It
// reports whether the process that wrote the file finds that out.
func damage(t *testing.T, r *rand.Rand, name string) bool {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, err := openSealed(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) == 0 {
		return true
	}
	at := len(data) - 1 - r.IntN(len(rest))
	shorter := false
	switch r.IntN(3) {
	case 0:
		data, shorter = data[:at], true
	case 1:
		clear(data[at:])
	default:
		data[at] ^= 1 << r.IntN(8)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return shorter
}

func wasKept(past []view.View, got view.View) bool {
	for _, v := range past {
		if same(v, got) {
			return true
		}
	}
	return false
}

// TestKeeper_BytesOfAChange is what a version costs: what has changed, in the file
// that is there, which grows within a bound.
func TestKeeper_BytesOfAChange(t *testing.T) { //nolint:paralleltest // it counts allocations
	state := t.TempDir()
	w := &world{keys: map[string]string{}}
	for i := range 1000 {
		w.keys[fmt.Sprintf("key-%05d", i)] = fmt.Sprintf("value-%010d", i)
	}
	tree := view.TreeOf("web", "/config/web", w.keys)
	k := NewKeeper(state)
	save := func(i int) int64 {
		t.Helper()
		edit := tree.Keys().Edit()
		edit.Set("key-00500", view.Key{Value: []byte(strconv.Itoa(i))})
		tree = view.NewTree(view.Tree{Name: tree.Name, Path: tree.Path, Generation: int64(i), Layout: "versioned", Digest: "sha256:" + fmt.Sprintf("%064d", i)}, edit.Done())
		if err := k.Save(view.View{}.With(tree)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(Files(state)[0])
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	first := save(0)
	largest, was := first, first
	for i := 1; i <= 300; i++ {
		size := save(i)
		if grown := size - was; size > first && grown > 500 {
			t.Fatalf("change %d took %d bytes of a view of %d", i, grown, first)
		}
		largest, was = max(largest, size), size
	}
	if n := len(Files(state)); largest > first+max(first, changesAtLeast) || n < 2 || n > filesKept {
		t.Errorf("%d files, the largest of %d bytes; a view has %d", n, largest, first)
	}
	g := load(t, state)
	if tree, _ := g.Tree("web"); key(g, "key-00500") != "300" || tree.Generation != 300 || tree.Len() != 1000 {
		t.Errorf("read version %d with %d keys", tree.Generation, tree.Len())
	}
	allocs := testing.AllocsPerRun(5, func() { save(2000) })
	if allocs > 100 {
		t.Errorf("%.0f allocations for a change of one key of 1,000", allocs)
	}
}

// TestLoad_PassesOverDamage damages whole files: the newest sound one counts.
func TestLoad_PassesOverDamage(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if g, err := Load(state); g != nil || err != nil {
		t.Fatalf("got %v, %v from an empty directory", g, err)
	}
	w := &world{keys: map[string]string{}, hosts: []string{"a"}}
	for i := range 7 {
		w.keys["n"] = strconv.Itoa(i)
		if err := NewKeeper(state).Save(w.view()); err != nil { // a process each
			t.Fatal(err)
		}
	}
	names := Files(state)
	if len(names) != filesKept || filepath.Base(names[0]) != "view-000000007" {
		t.Fatalf("got %q", names)
	}
	newest := func() string { return key(load(t, state), "n") }
	if got := newest(); got != "6" {
		t.Errorf("got %s, want 6", got)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-5] ^= 1
	if err := os.WriteFile(names[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := newest(); got != "5" {
		t.Errorf("got %s, want 5", got)
	}
	for _, f := range names {
		if err := os.Truncate(f, 20); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := Load(state); g != nil || err == nil {
		t.Errorf("got %v, %v from damaged files only", g, err)
	}
}
