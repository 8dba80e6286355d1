package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The chunks below a path hold what Walk finds there, whatever was edited.
func TestTree_Chunks(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	keys := &Keys{}
	for range 30 {
		e := keys.Edit()
		for range r.IntN(200) {
			path := fmt.Sprintf("d%d/e%d/k%d", r.IntN(3), r.IntN(3), r.IntN(100))
			switch r.IntN(4) {
			case 0:
				e.Delete(path)
			case 1:
				e.Set(path[:2+3*r.IntN(2)], Key{}) // "d1", or "d1/e1"
			default:
				e.Set(path, Key{Value: []byte(fmt.Sprint(r.IntN(9)))})
			}
		}
		keys = e.Done()
		tree := NewTree(Tree{}, keys)
		for _, path := range []string{"", "d0", "d1", "d2", "d1/e", "d1/e0", "d2/e2", "d2/e2/k9", "a", "z", "d1/e1/k5/x"} {
			var got, want []string
			tree.Walk(path, func(p string, k Key) bool {
				if p != path {
					want = append(want, p+"="+string(k.Value))
				}
				return true
			})
			for c := range tree.Chunks(path) {
				before := len(got)
				for p, k := range c.Keys() {
					got = append(got, p+"="+string(k.Value))
				}
				if n := len(got) - before; n == 0 || n > maxChunk {
					t.Fatalf("below %q: a chunk of %d keys", path, n)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("below %q: got %d keys %q\nwant %d keys %q", path, len(got), got, len(want), want)
			}
		}
	}
}

// A change of one key leaves all chunks but its own equal.
func TestTree_ChunksShared(t *testing.T) {
	t.Parallel()
	e := (*Keys)(nil).Edit()
	for i := range 2000 {
		e.Set(fmt.Sprintf("d/k%04d", i), Key{Value: []byte("v")})
	}
	old := NewTree(Tree{}, e.Done())
	e = old.Keys().Edit()
	e.Set("d/k1000", Key{Value: []byte("w")})
	next := NewTree(Tree{}, e.Done())
	for _, path := range []string{"", "d"} {
		a, b := slices.Collect(old.Chunks(path)), slices.Collect(next.Chunks(path))
		differ := 0
		for i := range a {
			if a[i] != b[i] {
				differ++
			}
		}
		if len(a) != len(b) || len(a) < 10 || differ != 1 {
			t.Errorf("below %q: %d and %d chunks, of which %d differ", path, len(a), len(b), differ)
		}
	}
}
