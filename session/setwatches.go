package session

import (
	"slices"

	"github.com/zkagent/zkagent/internal/jute"
)

// setWatchesSize bounds one setWatches request. Servers refuse requests over
// jute.maxbuffer, 1 MB unless configured smaller.
const setWatchesSize = 128 << 10

// renew sends the requests that set all armed watches on a new connection, each as soon
// as it is made, until send returns false. zxid is the newest that this session had seen
// when it connected: the server fires at once for all later changes. Every request
// carries that same value. The client library takes the newest zxid when it builds each
// packet, and so loses events between that zxid and the one at the connect.
func (b *watchBook) renew(zxid int64, send func(*call) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.covers {
		c.live = false
	}
	b.covers = nil
	return b.set(zxid, b.t.paths(), everyKind, send)
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
			batch.reset()
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

// reset empties the batch, and keeps its memory for the next one.
func (t *watchBatch) reset() {
	for k := range t.paths {
		t.n[k] = 0
		t.paths[k].Reset()
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
