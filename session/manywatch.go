package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/jute"
)

// Reading many znodes with watches, with two requests for a few hundred znodes.
//
// multiRead cannot set watches, but setWatches can. It is for a client that connects
// again, and fires at once for all changes since the zxid in the request. So: (1) a
// small read, unless there was one just now; its reply contains a zxid that the server has
// applied. (2) multiRead, and
// after it on the same connection setWatches for the same paths, with the latest zxid
// known before (2). Every change after that zxid fires a watch, whether multiRead saw
// the change or not. So no change is lost; at worst the caller reads once too often.

// WatchedResult is for internal use: the result of EachManyW for one path.
type WatchedResult struct {
	Result

	Watch *Watch // of the data; nil with an error
	// Kids says that the watch is for the children too. It is false if the caller did
	// not ask for that, or if EachManyW had to read one by one.
	Kids bool
}

// ErrNotRead is for internal use: EachManyW left a path out because of its limit.
var ErrNotRead = errors.New("not read, the limit of bytes was reached")

// watchedRead is one call of EachManyW.
type watchedRead struct {
	s     *Session
	paths []string
	kids  bool
	out   []WatchedResult
	limit int64

	mu   sync.Mutex // guards data, and orders the calls of took
	data int64
}

// EachManyW is for internal use. It reads many znodes like GetMany, and watches their
// data. With kids it also watches the lists of their children, from the moment of the
// read: if the Stat shows no children, the caller need not list them. If the server does
// not support that, it reads one by one and does not watch the children. When the data
// exceeds limit bytes, it leaves out the rest with ErrNotRead; 0: unlimited.
//
// It calls took for each result, by the index of its path, while the server reads the
// next, and not twice at the same time. When the error is not nil, some results are
// missing. What took has got is its caller's, also then.
func (s *Session) EachManyW(ctx context.Context, paths []string, kids bool, limit int64, took func(int, WatchedResult)) error {
	if len(paths) > 1 && !s.zxidIsFresh() && !s.able().refuses(bulkWatches) && !s.watches.isCovered(full(s.cfg.Chroot, paths[0])) {
		if _, _, err := s.Exists(ctx, paths[0]); err != nil && (ctx.Err() != nil || s.ctx.Err() != nil) {
			return fmt.Errorf("read many: %w", err)
		}
	}
	w := &watchedRead{s: s, paths: paths, kids: kids, out: make([]WatchedResult, len(paths)), limit: limit}
	err := s.many(ctx, paths, reader{
		op: jute.OpGetData, ask: w.ask, single: w.single,
		decode: func(i int, d *jute.Decoder) {
			w.out[i].Err = nil
			_ = d.Get(&w.out[i].Data, &w.out[i].Stat)
		},
		failed: func(i int, err error) { w.out[i].Result = Result{Err: err} },
		took: func(ids []int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, i := range ids {
				w.data += int64(len(w.out[i].Data))
				took(i, w.out[i])
				w.out[i] = WatchedResult{}
			}
		},
	})
	for i := range w.out {
		w.out[i].stop() // what took has not got
	}
	return err
}

func (r *WatchedResult) stop() {
	r.Watch.Stop()
	r.Watch, r.Kids = nil, false
}

func (w *watchedRead) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limit > 0 && w.data > w.limit
}

func (w *watchedRead) single(ctx context.Context, i int) (int, error) {
	r := &w.out[i]
	if w.full() {
		r.Err = ErrNotRead
		return 0, nil
	}
	r.Data, r.Stat, r.Watch, r.Err = w.s.GetW(ctx, w.paths[i])
	return len(r.Data) + jute.StatSize, r.Err
}

// ask reads and watches some of the paths.
func (w *watchedRead) ask(ctx context.Context, r *request, ids []int) error {
	if w.full() {
		for _, i := range ids {
			w.out[i].Err = ErrNotRead
		}
		return nil
	}
	for losses := 0; ; losses++ {
		w.s.calm(ctx, losses)
		if able := w.s.able(); able.refuses(jute.OpMultiRead) || able.refuses(bulkWatches) {
			return r.fail(ErrUnimplemented)
		}
		switch err := w.once(ctx, r, ids); {
		case errors.Is(err, errLost):
		case errors.Is(err, ErrThrottled) && losses < maxThrottled:
			_ = w.s.Sleep(ctx, minBackoff<<losses)
		default:
			return err
		}
	}
}

// once sends the two requests on one connection and waits for both replies. On errLost
// the caller sends them again.
func (w *watchedRead) once(ctx context.Context, r *request, ids []int) error {
	end := w.s.trace(ctx, r)
	conn, err := w.s.connection(ctx, false)
	if err != nil {
		err = r.fail(err)
		end(err)
		return err
	}
	zxid := w.s.zxid.Load() // What its server has applied, or it has ended.
	watches, calls := w.begin(conn, ids, r.frame, zxid)
	calls[len(calls)-1].after = func(code int32) {
		if code == jute.ErrCodeOK {
			w.s.watches.settleAll(conn, watches, zxid)
		}
	}
	err = errLost
	if !slices.ContainsFunc(calls, func(c *call) bool { return !conn.send(c) }) {
		err = r.finishBoth(ctx, conn, calls)
	}
	for _, i := range ids {
		if err != nil || w.out[i].Err != nil {
			w.out[i].stop()
		}
	}
	end(err)
	return err
}

// begin registers the watches of paths that are read over conn. It returns the requests:
// multiRead, and setWatches unless a recursive watch covers all paths.
func (w *watchedRead) begin(conn *wire, ids []int, read []byte, zxid int64) ([]*Watch, []*call) {
	var batch watchBatch
	of := watchData.set()
	if w.kids {
		of |= watchChild.set()
	}
	watches := make([]*Watch, len(ids))
	for n, i := range ids {
		path, ask := full(w.s.cfg.Chroot, w.paths[i]), false
		watches[n], ask = w.s.watches.begin(conn, path, of)
		w.out[i].Watch, w.out[i].Kids = watches[n], w.kids
		if ask {
			batch.put(of, path)
		}
	}
	calls := []*call{{op: jute.OpMultiRead, frame: read, done: make(chan struct{})}}
	if batch.size() > 0 {
		calls = append(calls, w.s.watches.setWatches(zxid, &batch))
	}
	return watches, calls
}

// finishBoth waits for the replies to a multiRead and the setWatches behind it.
func (r *request) finishBoth(ctx context.Context, w *wire, calls []*call) error {
	for _, c := range calls {
		select {
		case <-c.done:
		case <-ctx.Done():
			return r.fail(context.Cause(ctx))
		}
	}
	if calls[0].err != nil {
		return r.fail(calls[0].err)
	}
	if _, err := r.finish(calls[0]); err != nil {
		return err
	}
	for _, set := range calls[1:] {
		if set.err != nil {
			return r.fail(set.err)
		}
		switch err := codeError(set.code); {
		case err == nil:
		case errors.Is(err, ErrThrottled):
			return r.fail(fmt.Errorf("set watches: %w", err))
		default:
			// Whatever the reason of the refusal, read one by one.
			w.able.refuse(bulkWatches)
			return r.fail(fmt.Errorf("set watches: %w: %w", ErrUnimplemented, err))
		}
	}
	return nil
}

// settleAll notes that watches were armed over the connection from, after zxid.
func (b *watchBook) settleAll(from *wire, watches []*Watch, zxid int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range watches {
		w.armed = true
	}
	b.settled(from, zxid, watches...)
}
