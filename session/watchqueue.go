package session

import "sync"

// WatchQueue is for internal use and may change. It waits for many watches at once:
// the goroutine that reads an event hands the queue each watch that joined it and
// fired. So what the session received before the reply of a read is with the queue
// when that read returns, and 40,000 watches need no goroutine to wait for them.
//
// Its methods may be called from any goroutine.
type WatchQueue struct {
	c    chan struct{} // size 1: something rang
	once bool          // the C of one watch: closed when it fires

	mu   sync.Mutex // guards rung
	rung []WatchEvent
}

// WatchEvent is for internal use and may change: a watch that has fired.
type WatchEvent struct {
	Watch    *Watch // that fired
	Children bool   // it was the list of children, not the data
}

// NewWatchQueue is for internal use. It returns a queue that no watch has joined.
func NewWatchQueue() *WatchQueue { return &WatchQueue{c: make(chan struct{}, 1)} }

// C receives after something rang, once for all that rang until then.
func (b *WatchQueue) C() <-chan struct{} { return b.c }

// Wake makes C receive without a watch.
func (b *WatchQueue) Wake() {
	select {
	case b.c <- struct{}{}:
	default:
	}
}

// Take returns what fired since the last call, in order.
func (b *WatchQueue) Take() []WatchEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	rung := b.rung
	b.rung = nil
	return rung
}

// add hands over a watch of which what has happened, besides w.fired; the lock of
// its book is held.
func (b *WatchQueue) add(w *Watch, what kinds) {
	if b.once {
		if w.fired == 0 {
			close(b.c)
		}
		return
	}
	b.mu.Lock()
	if what&^watchChild.set() != 0 {
		b.rung = append(b.rung, WatchEvent{Watch: w})
	}
	if what.has(watchChild) {
		b.rung = append(b.rung, WatchEvent{Watch: w, Children: true})
	}
	b.mu.Unlock()
	b.Wake()
}

// Join is for internal use. It hands the watch to b when it fires; at once if it has fired. A watch
// joins one queue, once, and not after C.
func (w *Watch) Join(b *WatchQueue) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.queue = b
	if w.fired != 0 {
		b.add(w, w.fired)
	}
}

// Fired reports whether something that is watched has happened.
func (w *Watch) Fired() bool {
	if w == nil {
		return false
	}
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.fired != 0
}

// Path returns what is watched.
func (w *Watch) Path() string { return strip(w.book.chroot, w.path) }

// Gone is for internal use. It reports that the watch fired because the znode was deleted. Who watches
// the list of children too needs no read to learn it: the server tells of the
// list after it.
func (w *Watch) Gone() bool {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.gone
}
