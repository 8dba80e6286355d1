package view

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// model is what Keys should hold.
type model map[string]string

func (m model) check(t *testing.T, k *Keys) {
	t.Helper()
	want := slices.Sorted(maps.Keys(m))
	var got []string
	for path, key := range k.All() {
		got = append(got, path)
		if string(key.Value) != m[path] {
			t.Fatalf("%s: got %q, want %q", path, key.Value, m[path])
		}
		if one, ok := k.Get(path); !ok || !bytes.Equal(one.Value, key.Value) {
			t.Fatalf("%s is not found", path)
		}
	}
	if !slices.Equal(got, want) || k.Len() != len(want) {
		t.Fatalf("got %d keys (Len %d), want %d", len(got), k.Len(), len(want))
	}
	for _, c := range k.chunks {
		if len(c.entries) == 0 || len(c.entries) > maxChunk {
			t.Fatalf("chunk of %d", len(c.entries))
		}
	}
}

// Random edits: Keys holds what a map holds, former versions do not change, and Diff
// returns exactly the difference.
func TestKeys_AgainstMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		keys := &Keys{}
		now := model{}
		for range 8 {
			old, was := keys, maps.Clone(now)
			e := keys.Edit()
			for range r.IntN(400) {
				path := fmt.Sprintf("d%d/k%03d", r.IntN(4), r.IntN(300))
				if r.IntN(3) == 0 {
					e.Delete(path)
					delete(now, path)
				} else {
					now[path] = fmt.Sprint(r.IntN(50))
					e.Set(path, Key{Value: []byte(now[path])})
				}
			}
			keys = e.Done()
			now.check(t, keys)
			was.check(t, old)
			diffed(t, was, now, old, keys)
		}
	}
}

func diffed(t *testing.T, was, now model, old, keys *Keys) {
	t.Helper()
	var got, want []string
	old.Diff(keys, func(path string, a, b *Key) { got = append(got, line(path, a, b)) })
	all := maps.Clone(was)
	maps.Copy(all, now)
	same := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		a, oka := was[path]
		b, okb := now[path]
		if oka != okb || a != b {
			want = append(want, line(path, ptr(a, oka), ptr(b, okb)))
			top, _, _ := strings.Cut(path, "/")
			same[top] = true
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got differences %q\nwant %q", got, want)
	}
	x, y := NewTree(Tree{}, old), NewTree(Tree{}, keys)
	for i := range 5 {
		top := fmt.Sprintf("d%d", i)
		if got := x.SharesBelow(y, top); got == same[top] {
			t.Fatalf("below %s: shares %v", top, got)
		}
	}
	if got := x.SameKeys(y); got != (len(want) == 0) {
		t.Fatalf("same keys: %v", got)
	}
}

func ptr(v string, ok bool) *Key {
	if !ok {
		return nil
	}
	return &Key{Value: []byte(v)}
}

func line(path string, a, b *Key) string {
	s := path
	for _, k := range []*Key{a, b} {
		if k == nil {
			s += " none"
		} else {
			s += " " + string(k.Value)
		}
	}
	return s
}

// An edit copies what it touches, and keys that are set in order lie close.
func TestKeys_Shares(t *testing.T) {
	t.Parallel()
	values := map[string][]byte{}
	for i := range 10000 {
		values[fmt.Sprintf("key-%05d", i)] = []byte("v")
	}
	keys := KeysOf(values)
	if got, want := len(keys.chunks), 10000/maxChunk+1; got != want {
		t.Errorf("got %d chunks, want %d", got, want)
	}
	e := keys.Edit()
	e.Set("key-05000", Key{Value: []byte("w")})
	next, shared := e.Done(), 0
	for i, c := range next.chunks {
		if c == keys.chunks[i] {
			shared++
		}
	}
	if shared != len(keys.chunks)-1 {
		t.Errorf("%d of %d chunks are shared", shared, len(keys.chunks))
	}
	if got := keys.Edit().Done(); got != keys {
		t.Error("an edit without a change made new keys")
	}
}

// What a change of one key of 10,000 costs does not grow with the tree.
func TestKeys_Allocations(t *testing.T) {
	values := map[string][]byte{}
	for i := range 10000 {
		values[fmt.Sprintf("key-%05d", i)] = []byte("v")
	}
	old := NewTree(Tree{}, KeysOf(values))
	value := []byte("w")
	got := testing.AllocsPerRun(100, func() {
		e := old.Keys().Edit()
		e.Set("key-05000", Key{Value: value})
		if next := NewTree(Tree{}, e.Done()); next.SameKeys(old) || next.SharesBelow(old, "") {
			t.Error("the change is not seen")
		}
		n := 0
		old.Walk("", func(string, Key) bool { n++; return true })
	})
	if got > 15 {
		t.Errorf("a change and a walk make %v allocations, at most 15 are wanted", got)
	}
}

func TestTree_WalkPrefix(t *testing.T) {
	t.Parallel()
	tree := TreeOf("web", "/web", map[string]string{"a": "", "a/b": "", "a/b/c": "", "a/bc": "", "a-": "", "b": ""})
	for prefix, want := range map[string]string{"": "a a- a/b a/b/c a/bc b", "a": "a a/b a/b/c a/bc", "a/b": "a/b a/b/c", "c": "", "a/bc": "a/bc"} {
		var got []string
		tree.Walk(prefix, func(p string, _ Key) bool { got = append(got, p); return true })
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, want %q", prefix, got, want)
		}
	}
}
