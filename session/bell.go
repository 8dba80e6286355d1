package session

import "sync"

// Bell waits for many watches at once: one that joined it is handed to the bell
// when it fires, by the goroutine that read the event. So what the session
// received before the reply of a read is with the bell when that read returns,
// and 40,000 watches need no goroutine to wait for them.
//
// Its methods may be called from any goroutine.
type Bell struct {
	c chan struct{} // size 1: something rang

	mu   sync.Mutex // guards rung
	rung []*Watch
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

// Take returns the watches that fired since the last call, in order.
func (b *Bell) Take() []*Watch {
	b.mu.Lock()
	defer b.mu.Unlock()
	rung := b.rung
	b.rung = nil
	return rung
}

func (b *Bell) add(w *Watch) {
	b.mu.Lock()
	b.rung = append(b.rung, w)
	b.mu.Unlock()
	b.Ring()
}

// Join hands the watch to b when it fires; at once if it has fired. A watch
// joins one bell, once.
func (w *Watch) Join(b *Bell) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.bell = b
	if w.fired {
		b.add(w)
	}
}

// Fired reports whether C is closed.
func (w *Watch) Fired() bool {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.fired
}

// Path returns what is watched, and whether it is the list of its children.
func (w *Watch) Path() (string, bool) { return strip(w.book.chroot, w.path), w.kind == watchChild }
