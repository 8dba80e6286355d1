package session

import (
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

// Watch waits for one change. It is not a source of data: when C is closed, what
// was read with it may have changed, and is to be read again.
//
// The order of ZooKeeper is kept: an event that arrived before the reply of a read
// has closed its watch before that read returns.
type Watch struct {
	book  *watchBook
	path  string // the server's
	kind  watchKind
	armed bool          // the server's reply has come; guarded by book.mu, as all that follows
	over  bool          // closed or stopped
	fired bool          // closed
	c     chan struct{} // made when somebody asks for it
	bell  *Bell         // nil: none
}

// C is closed when the read is to be repeated. It is not closed when the session
// ends: select on Session.Done too.
func (w *Watch) C() <-chan struct{} {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	if w.c == nil {
		w.c = make(chan struct{})
		if w.fired {
			close(w.c)
		}
	}
	return w.c
}

// Stop forgets the watch; C stays open if it is. It may be called more than once,
// and on nil.
func (w *Watch) Stop() {
	if w != nil {
		w.book.drop(w)
	}
}

// watchBook holds the watches of a session. The server has at most one per path and
// kind; all waiters share it.
type watchBook struct {
	met    *Metrics
	chroot string

	mu sync.Mutex // guards what follows and the state of every Watch
	m  map[string][]*Watch
}

func newWatchBook(met *Metrics) *watchBook {
	return &watchBook{met: met, m: make(map[string][]*Watch)}
}

// begin enters a watch before its request is sent. From here on events close it,
// even those that come before the reply: whether the request armed the watch before
// or after such an event cannot be told, and reading once too often is harmless.
func (b *watchBook) begin(path string, kind watchKind) *Watch {
	w := &Watch{book: b, path: path, kind: kind}
	b.mu.Lock()
	ws := b.m[path]
	if len(ws) > 0 {
		w.path = ws[0].path // one copy is enough
	}
	b.m[w.path] = append(ws, w)
	b.mu.Unlock()
	b.met.watching(1)
	return w
}

// settle notes the reply to w's request: armed, or not there to be armed.
func (b *watchBook) settle(w *Watch, code int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case code == jute.ErrCodeOK:
		w.armed = true
		if w.kind == watchExists {
			w.kind = watchData
		}
	case code == jute.ErrCodeNoNode && w.kind == watchExists:
		w.armed = true
	}
}

func (b *watchBook) drop(w *Watch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.over {
		return
	}
	w.over = true
	b.met.watching(-1)
	ws := b.m[w.path]
	i := slices.Index(ws, w)
	if i < 0 {
		return
	}
	if len(ws) == 1 {
		delete(b.m, w.path)
		return
	}
	ws[i] = ws[len(ws)-1]
	ws[len(ws)-1] = nil
	b.m[w.path] = ws[:len(ws)-1]
}

// fire closes the watches that an event of the server is for.
func (b *watchBook) fire(event int32, path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(path, func(k watchKind) bool {
		switch event {
		case jute.EventCreated, jute.EventDataChanged:
			return k != watchChild
		case jute.EventChildrenChanged:
			return k == watchChild
		case jute.EventDeleted:
			return true
		}
		return false
	})
}

// doubt closes the watches of paths that could not be set again.
func (b *watchBook) doubt(paths []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range paths {
		b.close(p, func(watchKind) bool { return true })
	}
}

// close closes the watches on path of the kinds that match. b.mu is held.
func (b *watchBook) close(path string, match func(watchKind) bool) {
	ws, keep := b.m[path], 0
	if len(ws) == 0 {
		return
	}
	for _, w := range ws {
		if !match(w.kind) {
			ws[keep] = w
			keep++
			continue
		}
		w.over, w.fired = true, true
		if w.c != nil {
			close(w.c)
		}
		if w.bell != nil {
			w.bell.add(w)
		}
	}
	b.met.watching(keep - len(ws))
	clear(ws[keep:])
	if keep == 0 {
		delete(b.m, path)
		return
	}
	b.m[path] = ws[:keep]
}

// end forgets all watches without closing them: the session has ended, which is not
// an event.
func (b *watchBook) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ws := range b.m {
		for _, w := range ws {
			w.over = true
		}
		b.met.watching(-len(ws))
	}
	clear(b.m)
}

// len returns the number of watches that are waited for.
func (b *watchBook) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, ws := range b.m {
		n += len(ws)
	}
	return n
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
	for path, ws := range b.m {
		if len(path)+batch.size > setWatchesSize {
			calls = append(calls, b.setWatches(zxid, batch))
			batch = watchBatch{}
		}
		batch.add(path, ws)
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

func (t *watchBatch) add(path string, ws []*Watch) {
	var has [3]bool
	for _, w := range ws {
		if w.armed && !has[w.kind] {
			has[w.kind] = true
			t.put(w.kind, path)
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
