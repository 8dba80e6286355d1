package mirror

import (
	"reflect"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/session"
)

// fanWidth is how many watches one goroutine waits for. A goroutine of its own
// for each of 20,000 watches would cost 50 MB; a select over all of them would
// cost each event a walk over the tree.
const fanWidth = 64

// mark names what is to be read again: the data of a znode, or its children.
type mark struct {
	rel  string
	kids bool
}

// fan waits for many watches and collects the marks of those that fired.
type fan struct {
	signal chan struct{} // size 1: something was marked
	done   chan struct{} // closed by stop
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	marks map[mark]struct{}
	rows  []*row
	open  []*row // rows with a free slot
}

// row is the share of one goroutine.
type row struct {
	wake  chan struct{} // size 1: slots changed
	slots []slot        // guarded by fan.mu
}

type slot struct {
	w *session.Watch
	m mark
}

func newFan() *fan {
	return &fan{signal: make(chan struct{}, 1), done: make(chan struct{}), marks: map[mark]struct{}{}}
}

// stop ends all goroutines and waits for them.
func (f *fan) stop() {
	close(f.done)
	f.wg.Wait()
}

// mark notes that something is to be read again.
func (f *fan) mark(m mark) {
	f.mu.Lock()
	f.marks[m] = struct{}{}
	f.mu.Unlock()
	notify(f.signal)
}

// take returns what was marked since the last call.
func (f *fan) take() map[mark]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	marks := f.marks
	f.marks = map[mark]struct{}{}
	return marks
}

// add waits for w.
func (f *fan) add(w *session.Watch, m mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.open) == 0 {
		r := &row{wake: make(chan struct{}, 1)}
		f.rows = append(f.rows, r)
		f.open = append(f.open, r)
		f.wg.Go(func() { f.run(r) })
	}
	r := f.open[len(f.open)-1]
	r.slots = append(r.slots, slot{w, m})
	if len(r.slots) == fanWidth {
		f.open = f.open[:len(f.open)-1]
	}
	notify(r.wake)
}

// forget stops waiting for w, which the caller has stopped.
func (f *fan) forget(watches map[*session.Watch]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rows {
		was := len(r.slots)
		for i, s := range slices.Backward(r.slots) {
			if _, ok := watches[s.w]; ok {
				f.remove(r, i)
			}
		}
		if len(r.slots) != was {
			notify(r.wake)
		}
	}
}

// remove takes a slot out of its row. f.mu is held.
func (f *fan) remove(r *row, i int) {
	last := len(r.slots) - 1
	if len(r.slots) == fanWidth {
		f.open = append(f.open, r)
	}
	r.slots[i] = r.slots[last]
	r.slots[last] = slot{}
	r.slots = r.slots[:last]
}

// run is the goroutine of a row.
func (f *fan) run(r *row) {
	cases := make([]reflect.SelectCase, 0, fanWidth+2)
	for {
		cases = append(cases[:0], receive(f.done), receive(r.wake))
		f.mu.Lock()
		for i := range r.slots {
			cases = append(cases, receive(r.slots[i].w.C()))
		}
		f.mu.Unlock()
		if chosen, _, _ := reflect.Select(cases); chosen == 0 {
			return
		}
		f.collect(r)
	}
}

// collect marks and removes everything of a row that has fired.
func (f *fan) collect(r *row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	marked := false
	for i, s := range slices.Backward(r.slots) {
		if Fired(s.w) {
			f.marks[s.m] = struct{}{}
			f.remove(r, i)
			marked = true
		}
	}
	if marked {
		notify(f.signal)
	}
}

// sweep collects all rows at once. The goroutines may be late; after a sweep
// every event that arrived before it is marked.
func (f *fan) sweep() {
	f.mu.Lock()
	rows := f.rows
	f.mu.Unlock()
	for _, r := range rows {
		f.collect(r)
	}
}

// Fired reports whether the watch has fired. What the session received before
// the reply of a read has closed its watch when that read returns.
func Fired(w *session.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func receive[T any](c <-chan T) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// notify puts a token into a channel of size 1, if there is none.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
