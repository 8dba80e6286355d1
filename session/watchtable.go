package session

import "iter"

// watchTable has the first watch of each path. Watch.next leads to the path's others.
type watchTable map[string]*Watch

// at yields the watches of a path. The caller may remove the one that it got.
func (t watchTable) at(path string) iter.Seq[*Watch] {
	return func(yield func(*Watch) bool) {
		for w := t[path]; w != nil; {
			next := w.next
			if !yield(w) {
				return
			}
			w = next
		}
	}
}

// add adds a watch. All watches of a path share one copy of it.
func (t watchTable) add(w *Watch) {
	if first := t[w.path]; first != nil {
		w.path, w.next, first.next = first.path, first.next, w
		return
	}
	t[w.path] = w
}

func (t watchTable) remove(w *Watch) {
	switch first := t[w.path]; {
	case first != w:
		for first.next != w {
			first = first.next
		}
		first.next = w.next
	case w.next == nil:
		delete(t, w.path)
	default:
		t[w.path] = w.next
	}
	w.next = nil
}
