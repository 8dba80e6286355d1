package session

import (
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// setWatchesSize bounds one setWatches request. Servers refuse requests over
// jute.maxbuffer, 1 MB unless configured smaller.
const setWatchesSize = 128 << 10

// renew sends the requests that set all armed watches on a new connection, each as soon
// as it is made, until send returns false. zxid is the latest that this session had seen
// when it connected: the server fires at once for all later changes. Every request
// carries that same value. The client library takes the latest zxid when it builds each
// packet, and so loses events between that zxid and the one at the connect.
func (b *watchBook) renew(zxid int64, send func(*call) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.covers {
		c.live = false
	}
	b.covers = nil
	return b.set(zxid, slices.Collect(maps.Keys(b.t)), everyKind, send)
}

// set sends the requests that set the armed watches of some paths, as of zxid, until send
// returns false. b.mu is held.
func (b *watchBook) set(zxid int64, paths []string, of kinds, send func(*call) bool) bool {
	var batch watchBatch
	for i, path := range paths {
		b.put(&batch, path, of)
		if size := batch.size(); size > setWatchesSize || size > 0 && i == len(paths)-1 {
			if !send(b.setWatches(zxid, &batch)) {
				return false
			}
			for k := range batch.paths { // keep the memory for the next one
				batch.n[k] = 0
				batch.paths[k].Reset()
			}
		}
	}
	return true
}

// put adds the armed watches of one path to the batch. It does not add a data watch at
// the path of a cover, which would replace the cover: it fires those watches instead.
// b.mu is held.
func (b *watchBook) put(batch *watchBatch, path string, of kinds) {
	const data = 1<<watchData | 1<<watchExists
	if of&data != 0 && slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.path == path }) {
		of &^= data
		b.close(path, data, false)
	}
	armed := kinds(0)
	for w := range b.t.at(path) {
		if w.armed {
			armed |= w.live & of
			w.soft &^= of
		}
	}
	batch.put(armed, path)
}

// watchBatch is the content of a setWatches: for each kind the number of paths and the
// encoded paths.
type watchBatch struct {
	n     [watchChild + 1]int32
	paths [watchChild + 1]jute.Encoder
}

func (t *watchBatch) size() int {
	size := 0
	for i := range t.paths {
		size += t.paths[i].Len()
	}
	return size
}

func (t *watchBatch) put(of kinds, path string) {
	for k := range watchChild + 1 {
		if of.has(k) {
			t.n[k]++
			t.paths[k].String(path)
		}
	}
}

// setWatches returns the request that sets the watches of a batch. If the server refuses
// it, those watches fire.
func (b *watchBook) setWatches(zxid int64, t *watchBatch) *call {
	e := jute.NewEncoder(make([]byte, 4, t.size()+32))
	e.Put(int32(0), jute.OpSetWatches, zxid)
	for k := range t.paths {
		e.Int32(t.n[k])
		e.Raw(t.paths[k].Bytes())
	}
	frame := setLength(e.Bytes())
	return &call{
		op: jute.OpSetWatches, frame: frame, done: make(chan struct{}),
		after: func(code int32) {
			if code != jute.ErrCodeOK {
				b.doubt(frame)
			}
		},
	}
}

// The methods of the watch book for covers.

// cover adds a user to the cover of a path on a connection, and makes the cover when it
// is missing. It reports whether the cover is new.
func (b *watchBook) cover(s *Session, w *wire, path string) (*RecursiveWatch, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.coverAt(w, path); c != nil {
		c.refs++
		return c, false
	}
	c := &RecursiveWatch{s: s, w: w, path: path, refs: 1}
	b.covers = append(b.covers, c)
	return c, true
}

// covered notes the server's reply. Before 3.9 the cover has replaced the watch on the
// list at the path, so covered sets that one again.
func (b *watchBook) covered(c *RecursiveWatch, zxid int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ok {
		b.uncover(c, zxid)
		return
	}
	c.live = slices.Contains(b.covers, c)
	b.set(zxid, []string{c.path}, watchChild.set(), c.w.send)
}

// coverAt returns the cover at exactly this path on w, or nil. The cover may not be live
// yet. b.mu is held.
func (b *watchBook) coverAt(w *wire, path string) *RecursiveWatch {
	for _, c := range b.covers {
		if c.w == w && c.path == path {
			return c
		}
	}
	return nil
}

// coverOf returns the cover that replaces data watches at path on w, or nil. b.mu is
// held.
func (b *watchBook) coverOf(w *wire, path string) *RecursiveWatch {
	for _, c := range b.covers {
		if c.live && c.w == w && c.over(path) {
			return c
		}
	}
	return nil
}

func (b *watchBook) isCovered(path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.covers, func(c *RecursiveWatch) bool { return c.live && c.over(path) })
}

func (c *RecursiveWatch) over(path string) bool {
	rest, ok := strings.CutPrefix(path, c.path)
	return ok && (rest == "" || rest[0] == '/' || c.path == "/")
}

// uncover ends a cover. It sets the watches that relied on it one by one, as of zxid. b.mu
// is held.
func (b *watchBook) uncover(c *RecursiveWatch, zxid int64) {
	at := slices.Index(b.covers, c)
	if at < 0 {
		return
	}
	relied := c.live
	b.covers, c.live = slices.Delete(b.covers, at, at+1), false
	if !relied {
		return
	}
	paths := slices.DeleteFunc(slices.Collect(maps.Keys(b.t)), func(path string) bool {
		return !c.over(path) || path != c.path && !b.isSoft(path) || b.coverOf(c.w, path) != nil
	})
	b.set(zxid, paths, everyKind, c.w.send)
}

// isSoft reports whether a watch of a path relies on a cover. b.mu is held.
func (b *watchBook) isSoft(path string) bool {
	for w := range b.t.at(path) {
		if w.soft != 0 {
			return true
		}
	}
	return false
}

// lists returns the requests for WatchChildren.
func (b *watchBook) lists(zxid int64, watches []*Watch) []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var paths []string
	for _, w := range watches {
		if w.soft.has(watchChild) && w.live.has(watchChild) {
			paths = append(paths, w.path)
		}
	}
	var calls []*call
	b.set(zxid, paths, watchChild.set(), func(c *call) bool {
		calls = append(calls, c)
		return true
	})
	return calls
}
