package session

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Random additions and removals beside a map of lists.
func TestWatchTable_AgainstMap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	table, want := watchTable{}, map[string]map[*Watch]bool{}
	var list []*Watch
	for i := range 20000 {
		// It grows to a few thousand and shrinks to nothing, twice.
		if grow := i/5000%2 == 0; len(list) == 0 || r.IntN(10) < 3 == !grow {
			w := &Watch{path: fmt.Sprint("/p", r.IntN(3000))}
			table.add(w)
			if want[w.path] == nil {
				want[w.path] = map[*Watch]bool{}
			}
			want[w.path][w] = true
			list = append(list, w)
			continue
		}
		k := r.IntN(len(list))
		w := list[k]
		list[k], list = list[len(list)-1], list[:len(list)-1]
		table.remove(w)
		if delete(want[w.path], w); len(want[w.path]) == 0 {
			delete(want, w.path)
		}
		if i%97 == 0 {
			same(t, table, want)
		}
	}
	same(t, table, want)
	for _, w := range list {
		table.remove(w)
	}
	if len(table) != 0 {
		t.Errorf("not empty: %v", table)
	}
}

func same(t *testing.T, table watchTable, want map[string]map[*Watch]bool) {
	t.Helper()
	for path := range table {
		n := 0
		for w := range table.at(path) {
			if !want[path][w] {
				t.Fatalf("%s: a watch that was removed", path)
			}
			n++
		}
		if n != len(want[path]) {
			t.Fatalf("%s: %d watches, want %d", path, n, len(want[path]))
		}
	}
	if len(table) != len(want) {
		t.Fatalf("%d paths, want %d", len(table), len(want))
	}
}

// One watch for data and children: each kind fires once, and may be forgotten
// without the other.
func TestWatch_DataAndChildren(t *testing.T) {
	t.Parallel()
	b := &watchBook{met: noMetrics{}, t: watchTable{}}
	queue := NewWatchQueue()
	w, _ := b.begin(nil, "/a", watchData.set()|watchChild.set())
	w.Join(queue)
	b.fire(4, "/a") // children
	b.fire(4, "/a")
	b.fire(3, "/a") // data
	if got := queue.Take(); len(got) != 2 || got[0] != (WatchEvent{w, true}) || got[1] != (WatchEvent{w, false}) {
		t.Errorf("got %v", got)
	}
	w, _ = b.begin(nil, "/a", watchData.set()|watchChild.set())
	w.StopOne(true)
	b.fire(2, "/a") // deleted
	w.Join(queue)
	if got := queue.Take(); len(got) != 1 || got[0] != (WatchEvent{w, false}) {
		t.Errorf("after a stop of the children: got %v", got)
	}
	w, _ = b.begin(nil, "/a", watchData.set()|watchChild.set())
	c := w.C()
	b.fire(2, "/a")
	if !closed(c) || b.len() != 0 {
		t.Errorf("deleted: closed %v, %d left", closed(c), b.len())
	}
}
