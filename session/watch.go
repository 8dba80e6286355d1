package session

import (
	"context"
	"iter"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// watchKind is the server's table that holds a watch, as setWatches distinguishes them.
type watchKind uint8

const (
	watchData   watchKind = iota // of a znode that exists
	watchExists                  // of a path without a znode
	watchChild
)

type kinds uint8

func (k watchKind) set() kinds { return 1 << k }

const everyKind kinds = 1<<watchData | 1<<watchExists | 1<<watchChild

func (k kinds) has(o watchKind) bool { return k&o.set() != 0 }

func (k kinds) len() int { return bits.OnesCount8(uint8(k)) }

// Watch waits for one change. It has no data: when it fires, the data may have changed,
// so read again.
//
// A Watch keeps the order of ZooKeeper: an event that arrived before the reply of a read
// has fired its watch before that read returns.
//
// A process may hold a hundred thousand watches, so a Watch is small. EachManyW uses one
// Watch for both the data and the children of a znode.
type Watch struct {
	book  *watchBook
	path  string      // the server's
	next  *Watch      // of the same path; guarded by book.mu, as all that follows
	queue *WatchQueue // gets the event; nil: not joined yet
	live  kinds       // what is waited for
	soft  kinds       // the part of it that a cover watches
	armed bool        // the server's reply has come
	fired kinds       // the part of it that has happened
	gone  bool        // the event said that the znode was deleted
}

// RecheckAfter returns how long to wait for an event before looking again: a random time
// of 30 to 60 s. An event is only a hint: from 3.8.4 on servers withhold events of znodes
// that the client may not read.
func RecheckAfter() time.Duration {
	return recheckFirst + rand.N(recheckLast-recheckFirst) // #nosec G404 -- it spreads load
}

const (
	recheckFirst = 30 * time.Second
	recheckLast  = time.Minute
)

// Wait returns nil when it is time to read again: the watch has fired, or RecheckAfter
// has passed. It returns the cause when ctx or the session ends first. It always stops
// the watch.
func (w *Watch) Wait(ctx context.Context) error {
	_, err := w.WaitFor(ctx, RecheckAfter())
	w.Stop()
	return err
}

// WaitFor waits until the watch fires, but no longer than d; 0: unlimited. It
// reports whether the watch has fired, and does not stop it.
func (w *Watch) WaitFor(ctx context.Context, d time.Duration) (bool, error) {
	var tick <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-w.C():
		return true, nil
	case <-tick:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-w.book.ctx.Done():
		return false, context.Cause(w.book.ctx)
	}
}

// WaitAny returns nil when it is time to read again: one of the watches has fired, or
// RecheckAfter has passed. It returns the cause when ctx or the session ends first. It
// ignores nil watches. The caller must stop the watches.
func (s *Session) WaitAny(ctx context.Context, watches ...*Watch) error {
	again := time.NewTimer(RecheckAfter())
	defer again.Stop()
	cases := []reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(s.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(again.C)},
	}
	for _, w := range watches {
		if w != nil {
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.C())})
		}
	}
	switch n, _, _ := reflect.Select(cases); n {
	case 0:
		return context.Cause(ctx)
	case 1:
		return context.Cause(s.ctx)
	}
	return nil
}

// Sleep waits for d. It returns the cause when ctx or the session ends first.
func (s *Session) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// C is closed when the data may have changed: read again. The end of the session does not
// close it: use Wait, or select on Session.Done as well. A watch that joined a queue has
// no C. It may be called on nil, and then never receives.
func (w *Watch) C() <-chan struct{} {
	if w == nil {
		return nil
	}
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	if w.queue == nil {
		w.queue = &WatchQueue{c: make(chan struct{}), once: true}
		if w.fired != 0 {
			close(w.queue.c)
		}
	}
	return w.queue.c
}

// Stop forgets the watch. It does not close C. It may be called more than once, and on
// nil.
func (w *Watch) Stop() {
	if w != nil {
		w.book.drop(w, everyKind)
	}
}

// StopOne forgets the children, or the data, of a watch of EachManyW that may be for
// both. It may be called on nil.
func (w *Watch) StopOne(children bool) {
	switch {
	case w == nil:
	case children:
		w.book.drop(w, watchChild.set())
	default:
		w.book.drop(w, watchData.set()|watchExists.set())
	}
}

// watchBook holds the watches of a session. The server has at most one per path and
// kind; all waiters share it.
type watchBook struct {
	met    Metrics
	chroot string
	ctx    context.Context // the session's

	mu sync.Mutex // guards the fields below and the state of every Watch
	t  watchTable
	n  int // kinds waited for, of all watches

	limit  int               // bytes of a request that sets watches, for the present connection
	covers []*RecursiveWatch // of the present connection, or one that has ended
}

// begin registers a watch before its request is sent. From then on events fire it, even
// events before the reply. The request may have armed the watch before or after such an
// event: we cannot know, and reading once too often is harmless.
//
// It reports whether to ask the server for a watch. That is not necessary if a cover of
// the connection to replaces it. A cover never replaces a watch on a list alone.
func (b *watchBook) begin(to *wire, path string, of kinds) (*Watch, bool) {
	w := &Watch{book: b, path: path, live: of}
	b.mu.Lock()
	defer b.mu.Unlock()
	if of != watchChild.set() && b.coverOf(to, path) != nil {
		w.soft = of
	}
	b.t.add(w)
	b.count(of.len())
	return w, w.soft == 0
}

// count notes how many kinds have come or gone. b.mu is held.
func (b *watchBook) count(delta int) {
	b.n += delta
	b.met.Watches(delta)
}

// settle notes the reply to w's request: the server has armed the watch, or the znode
// does not exist. The reply came over the connection from. Its server had applied zxid
// before.
func (b *watchBook) settle(from *wire, w *Watch, code int32, zxid int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case code == jute.ErrCodeOK:
		w.armed = true
		if w.live.has(watchExists) {
			w.live = watchData.set()
			if w.soft != 0 {
				w.soft = w.live
			}
		}
	case code == jute.ErrCodeNoNode && w.live.has(watchExists):
		w.armed = true
	}
	b.settled(from, zxid, w)
}

// settled checks watches that were armed over the connection from, after zxid. Their
// cover may have ended meanwhile, or they may have replaced a cover. b.mu is held.
func (b *watchBook) settled(from *wire, zxid int64, watches ...*Watch) {
	var bare []string
	for _, w := range watches {
		if w.live == 0 || !w.armed {
			continue
		}
		if w.soft != 0 {
			if b.coverOf(from, w.path) == nil {
				bare = append(bare, w.path)
			}
			continue
		}
		if c := b.coverAt(from, w.path); c != nil && c.live && w.live&^watchChild.set() != 0 {
			b.uncover(c, zxid)
		}
	}
	b.set(zxid, bare, everyKind, from.send)
}

func (b *watchBook) drop(w *Watch, gone kinds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.live&gone == 0 {
		return
	}
	b.count(-(w.live & gone).len())
	w.soft &^= gone
	if w.live &^= gone; w.live == 0 {
		b.t.remove(w)
	}
}

func (b *watchBook) fire(event int32, path string) {
	const data, child = 1<<watchData | 1<<watchExists, 1 << watchChild
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event {
	case jute.EventCreated, jute.EventDataChanged:
		b.close(path, data, false)
	case jute.EventChildrenChanged:
		b.close(path, child, false)
	case jute.EventDeleted:
		b.close(path, data|child, true)
	}
	if len(b.covers) == 0 || event != jute.EventCreated && event != jute.EventDeleted {
		return
	}
	// Watches on the parent's list may have no server watch of their own.
	parent := path[:max(strings.LastIndexByte(path, '/'), 1)]
	for w := range b.t.at(parent) {
		if w.soft.has(watchChild) {
			b.close(parent, watchChild.set(), false)
			return
		}
	}
}

// close fires the watches on path that wait for some of hit. b.mu is held.
func (b *watchBook) close(path string, hit kinds, gone bool) {
	for w := range b.t.at(path) {
		what := w.live & hit
		if what == 0 {
			continue
		}
		b.count(-what.len())
		if gone {
			w.gone = true
		}
		if w.queue != nil {
			w.queue.add(w, what)
		}
		w.fired |= what
		w.soft &^= hit
		if w.live &^= hit; w.live == 0 {
			b.t.remove(w)
		}
	}
}

// end forgets all watches without firing them, because the end of the session is not an
// event.
func (b *watchBook) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.t {
		for ; w != nil; w = w.next {
			w.live = 0
		}
	}
	b.count(-b.n)
	b.t = watchTable{}
}

// len returns the number of watches that are waited for, one for each kind.
func (b *watchBook) len() int { return locked(&b.mu, &b.n) }

// WatchQueue waits for many watches at once: 40,000 watches need no goroutines to wait
// for them. The goroutine that reads an event adds each joined watch that fires to the
// queue. So when a read returns, the queue has all events that came before its reply.
//
// Its methods may be called from any goroutine.
type WatchQueue struct {
	c    chan struct{} // size 1: something rang
	once bool          // the C of one watch: closed when it fires

	mu   sync.Mutex // guards rung
	rung []WatchEvent
}

// WatchEvent is a watch that has fired.
type WatchEvent struct {
	Watch    *Watch // that fired
	Children bool   // the list of children changed, not the data
}

// NewWatchQueue returns a queue that no watch has joined.
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

// Take returns the events since the last call, in order.
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

// Join adds the watch to b when the watch fires, or at once if it
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
	return w != nil && locked(&w.book.mu, &w.fired) != 0
}

// Path returns the watched path.
func (w *Watch) Path() string { return strip(w.book.chroot, w.path) }

// Gone reports that the watch fired because the znode was deleted. So a watcher of the children too needs no read to learn it: the server sends
// the event of the list later.
func (w *Watch) Gone() bool { return locked(&w.book.mu, &w.gone) }

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
