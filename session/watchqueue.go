package session

import "sync"

// WatchQueue is for internal use and may change. It waits for many watches at once. The
// goroutine that reads an event adds each joined watch that fires to the queue. So when a
// read returns, the queue has all events that came before its reply. And 40,000 watches
// need no goroutines to wait for them.
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
	Children bool   // the list of children changed, not the data
}

// NewWatchQueue is for internal use. It returns a queue that no watch has joined.
func NewWatchQueue() *WatchQueue { return &WatchQueue{c: make(chan struct{}, 1)} }

// C receives after one or more watches have fired, once for all of them.
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

// add adds a watch for the kinds in what, which have happened in addition to w.fired. The
// lock of its book is held.
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

// Join is for internal use. It adds the watch to b when the watch fires, or at once if it
// has fired. A watch joins only one queue, once, and not after C.
func (w *Watch) Join(b *WatchQueue) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	w.queue = b
	if w.fired != 0 {
		b.add(w, w.fired)
	}
}

// Fired reports whether the watch has fired.
func (w *Watch) Fired() bool {
	if w == nil {
		return false
	}
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.fired != 0
}

// Path returns the watched path.
func (w *Watch) Path() string { return strip(w.book.chroot, w.path) }

// Gone is for internal use. It reports that the watch fired because the znode was
// deleted. So a watcher of the children too needs no read to learn it: the server sends
// the event of the list later.
func (w *Watch) Gone() bool {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	return w.gone
}
