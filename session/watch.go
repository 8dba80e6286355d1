package session

import (
	"math/bits"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/jute"
)

// watchKind is the table of the server that a watch is in, told apart as setWatches
// wants it.
type watchKind uint8

const (
	watchData   watchKind = iota // of a znode that exists
	watchExists                  // of a path without a znode
	watchChild
)

// kinds is a set of kinds.
type kinds uint8

func (k watchKind) set() kinds { return 1 << k }

func (k kinds) has(o watchKind) bool { return k&o.set() != 0 }

func (k kinds) len() int { return bits.OnesCount8(uint8(k)) }

// Watch waits for one change. It is not a source of data: when it has fired, what
// was read with it may have changed, and is to be read again.
//
// The order of ZooKeeper is kept: an event that arrived before the reply of a read
// has fired its watch before that read returns.
//
// A process may hold a hundred thousand of them, so a Watch is small: what GetManyW
// watches of one znode, data and children, is one of them.
type Watch struct {
	book  *watchBook
	path  string // the server's
	next  *Watch // of the same path; guarded by book.mu, as all that follows
	bell  *Bell  // who is told; nil: nobody yet
	live  kinds  // what is waited for
	armed bool   // the server's reply has come
	fired kinds  // what of it has happened
	gone  bool   // the event said that the znode was deleted
}

// C is closed when the read is to be repeated. It is not closed when the session
// ends: select on Session.Done too. A watch that joined a bell has no C.
func (w *Watch) C() <-chan struct{} {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	if w.bell == nil {
		w.bell = &Bell{c: make(chan struct{}), once: true}
		if w.fired != 0 {
			close(w.bell.c)
		}
	}
	return w.bell.c
}

// Stop forgets the watch; C stays open if it is. It may be called more than once,
// and on nil.
func (w *Watch) Stop() {
	if w != nil {
		w.book.drop(w, watchData.set()|watchExists.set()|watchChild.set())
	}
}

// StopOne forgets the children, or the data, of a watch that may be for both. It
// may be called on nil.
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
	met    *Metrics
	chroot string

	mu sync.Mutex // guards what follows and the state of every Watch
	t  watchTable
	n  int // kinds waited for, of all watches
}

func newWatchBook(met *Metrics) *watchBook { return &watchBook{met: met, t: newWatchTable()} }

// begin enters a watch before its request is sent. From here on events close it,
// even those that come before the reply: whether the request armed the watch before
// or after such an event cannot be told, and reading once too often is harmless.
func (b *watchBook) begin(path string, of ...watchKind) *Watch {
	w := &Watch{book: b, path: path}
	for _, k := range of {
		w.live |= k.set()
	}
	b.mu.Lock()
	b.t.add(w)
	b.count(w.live.len())
	b.mu.Unlock()
	return w
}

// count notes how many kinds have come or gone. b.mu is held.
func (b *watchBook) count(delta int) {
	b.n += delta
	b.met.watching(delta)
}

// settle notes the reply to w's request: armed, or not there to be armed.
func (b *watchBook) settle(w *Watch, code int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case code == jute.ErrCodeOK:
		w.armed = true
		if w.live.has(watchExists) {
			w.live = watchData.set()
		}
	case code == jute.ErrCodeNoNode && w.live.has(watchExists):
		w.armed = true
	}
}

func (b *watchBook) drop(w *Watch, gone kinds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.live&gone == 0 {
		return
	}
	b.count(-(w.live & gone).len())
	if w.live &^= gone; w.live == 0 {
		b.t.remove(w)
	}
}

// fire tells the watches that an event of the server is for.
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
}

// doubt fires the watches of paths that could not be set again.
func (b *watchBook) doubt(paths []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range paths {
		b.close(p, 1<<watchData|1<<watchExists|1<<watchChild, false)
	}
}

// close fires the watches on path that wait for some of hit. b.mu is held.
func (b *watchBook) close(path string, hit kinds, gone bool) {
	var next *Watch
	for w := b.t.get(path); w != nil; w = next {
		next = w.next
		what := w.live & hit
		if what == 0 {
			continue
		}
		b.count(-what.len())
		if gone {
			w.gone = true
		}
		if w.bell != nil {
			w.bell.add(w, what)
		}
		w.fired |= what
		if w.live &^= hit; w.live == 0 {
			b.t.remove(w)
		}
	}
}

// end forgets all watches without firing them: the session has ended, which is not
// an event.
func (b *watchBook) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.t.all() {
		for ; w != nil; w = w.next {
			w.live = 0
		}
	}
	b.count(-b.n)
	b.t = newWatchTable()
}

// len returns the number of watches that are waited for, one for each kind.
func (b *watchBook) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// setWatchesSize bounds one setWatches request. Servers refuse requests over
// jute.maxbuffer, 1 MB unless configured smaller.
const setWatchesSize = 128 << 10

// renew returns the requests that set all armed watches on a new connection. zxid
// is what this session had seen when it connected: the server fires at once what
// changed since. Every request carries that one value. The client library takes the
// newest zxid at the moment it builds each packet, and so loses events that a reply
// in between overtakes.
func (b *watchBook) renew(zxid int64) []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls []*call
	var batch watchBatch
	for w := range b.t.all() {
		if len(w.path)+batch.size > setWatchesSize {
			calls = append(calls, b.setWatches(zxid, batch))
			batch = watchBatch{}
		}
		batch.add(w)
	}
	if batch.size > 0 {
		calls = append(calls, b.setWatches(zxid, batch))
	}
	return calls
}

type watchBatch struct {
	paths [3][]string // by watchKind
	size  int
}

// add adds what the watches of one path have armed.
func (t *watchBatch) add(w *Watch) {
	path, armed := w.path, kinds(0)
	for ; w != nil; w = w.next {
		if w.armed {
			armed |= w.live
		}
	}
	for k := range watchChild + 1 {
		if armed.has(k) {
			t.put(k, path)
		}
	}
}

func (t *watchBatch) put(kind watchKind, path string) {
	t.paths[kind] = append(t.paths[kind], path)
	t.size += 4 + len(path)
}

func (b *watchBook) setWatches(zxid int64, t watchBatch) *call {
	return &call{
		op:   jute.OpSetWatches,
		done: make(chan struct{}),
		frame: newFrame(jute.OpSetWatches, t.size+20, func(e *jute.Encoder) {
			e.Int64(zxid)
			for _, paths := range t.paths {
				e.Strings(paths)
			}
		}),
		after: func(code int32) {
			if code != jute.ErrCodeOK {
				b.doubt(slices.Concat(t.paths[:]...))
			}
		},
	}
}
