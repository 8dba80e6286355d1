package session

import "sync"

// Bell waits for many watches at once: one that joined it is handed to the bell
// when it fires, by the goroutine that read the event. So what the session
// received before the reply of a read is with the bell when that read returns,
// and 40,000 watches need no goroutine to wait for them.
//
// Its methods may be called from any goroutine.
type Bell struct {
	c    chan struct{} // size 1: something rang
	once bool          // the C of one watch: closed when it fires

	mu   sync.Mutex // guards rung
	rung []Rung
}

// Rung is a watch that has fired.
type Rung struct {
	Watch    *Watch
	Children bool // it was the list of children, not the data
}

// NewBell returns a bell that no watch has joined.
func NewBell() *Bell { return &Bell{c: make(chan struct{}, 1)} }

// C receives after something rang, once for all that rang until then.
func (b *Bell) C() <-chan struct{} { return b.c }

// Ring makes C receive without a watch.
func (b *Bell) Ring() {
	select {
	case b.c <- struct{}{}:
	default:
	}
}

// Take returns what fired since the last call, in order.
func (b *Bell) Take() []Rung {
	b.mu.Lock()
	defer b.mu.Unlock()
	rung := b.rung
	b.rung = nil
	return rung
}

// add hands over a watch of which what has happened, besides w.fired; the lock of
// its book is held.
func (b *Bell) add(w *Watch, what kinds) {
	if b.once {
		if w.fired == 0 {
			close(b.c)
		}
		return
	}
	b.mu.Lock()
	if what&^watchChild.set() != 0 {
		b.rung = append(b.rung, Rung{Watch: w})
	}
	if what.has(watchChild) {
		b.rung = append(b.rung, Rung{Watch: w, Children: true})
	}
	b.mu.Unlock()
	b.Ring()
}

// Join hands the watch to b when it fires; at once if it has fired. A watch
// joins one bell, once, and not after C.
func (w *Watch) Join(b *Bell) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.bell = b
	if w.fired != 0 {
		b.add(w, w.fired)
	}
}

// Fired reports whether something that is watched has happened.
func (w *Watch) Fired() bool {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.fired != 0
}

// Path returns what is watched.
func (w *Watch) Path() string { return strip(w.book.chroot, w.path) }

// Gone reports that the watch fired because the znode was deleted. Who watches
// the list of children too needs no read to learn it: the server tells of the
// list after it.
func (w *Watch) Gone() bool {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.gone
}
