package session

import (
	"hash/maphash"
	"iter"
)

// watchTable finds the watches of a path: an open hash table of the first watch of
// each, which holds the path. It takes 8 bytes a place where a map would take 40.
type watchTable struct {
	seed  maphash.Seed
	slots []*Watch // a power of two of them, at least a quarter empty
	used  int
}

const minSlots = 16

func newWatchTable() watchTable {
	return watchTable{seed: maphash.MakeSeed(), slots: make([]*Watch, minSlots)}
}

// place returns the place of a path's watches, or the place where to add them.
func (t *watchTable) place(path string) int {
	mask := len(t.slots) - 1
	i := t.home(path)
	for t.slots[i] != nil && t.slots[i].path != path {
		i = (i + 1) & mask
	}
	return i
}

// home returns the place where a search for a path begins.
func (t *watchTable) home(path string) int {
	return int(maphash.String(t.seed, path) & uint64(len(t.slots)-1))
}

// get returns the first watch of a path; the others follow it.
func (t *watchTable) get(path string) *Watch { return t.slots[t.place(path)] }

// add adds a watch. All watches of a path share one copy of it.
func (t *watchTable) add(w *Watch) {
	i := t.place(w.path)
	if first := t.slots[i]; first != nil {
		w.path, w.next = first.path, first
	} else {
		t.used++
	}
	t.slots[i] = w
	if t.used > len(t.slots)/4*3 {
		t.resize(2 * len(t.slots))
	}
}

// remove removes a watch that is in the table.
func (t *watchTable) remove(w *Watch) {
	i := t.place(w.path)
	for p := &t.slots[i]; *p != nil; p = &(*p).next {
		if *p == w {
			*p, w.next = w.next, nil
			break
		}
	}
	if t.slots[i] != nil {
		return
	}
	t.used--
	t.close(i)
	if len(t.slots) > minSlots && t.used < len(t.slots)/8 {
		t.resize(len(t.slots) / 2)
	}
}

// close moves entries back into a place that has become empty, because a search ends at
// the first empty place.
func (t *watchTable) close(hole int) {
	mask := len(t.slots) - 1
	for i := (hole + 1) & mask; t.slots[i] != nil; i = (i + 1) & mask {
		// It may move if its home is not between the hole and where it is.
		if home := t.home(t.slots[i].path); (i-home)&mask >= (i-hole)&mask {
			t.slots[hole], t.slots[i] = t.slots[i], nil
			hole = i
		}
	}
}

// reserve makes room for n more paths at once.
func (t *watchTable) reserve(n int) {
	size := len(t.slots)
	for t.used+n > size/4*3 {
		size *= 2
	}
	if size > len(t.slots) {
		t.resize(size)
	}
}

func (t *watchTable) resize(n int) {
	old := t.slots
	t.slots = make([]*Watch, n)
	for _, w := range old {
		if w != nil {
			t.slots[t.place(w.path)] = w
		}
	}
}

// all yields the first watch of each path.
func (t *watchTable) all() iter.Seq[*Watch] {
	return func(yield func(*Watch) bool) {
		for _, w := range t.slots {
			if w != nil && !yield(w) {
				return
			}
		}
	}
}
