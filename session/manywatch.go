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

// watchedPart is a part of EachManyW: the paths with these indexes.
type watchedPart struct {
	paths []string
	ids   []int
	kids  bool
	out   []WatchedResult
	seen  *sizes
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
	for _, p := range paths {
		if err := ValidatePath(p); err != nil {
			return fmt.Errorf("read many: %w", &Error{Op: jute.OpName(jute.OpMultiRead), Path: p, Err: err})
		}
	}
	if len(paths) == 0 {
		return nil
	}
	if len(paths) > 1 && !s.zxidIsFresh() && !s.able().refuses(bulkWatches) && !s.watches.isCovered(full(s.cfg.Chroot, paths[0])) {
		if _, _, err := s.Exists(ctx, paths[0]); err != nil && (ctx.Err() != nil || s.ctx.Err() != nil) {
			return fmt.Errorf("read many: %w", err)
		}
	}
	out := make([]WatchedResult, len(paths))
	var mu sync.Mutex // guards data, and orders the calls of took
	var data int64
	return s.inParts(ctx, paths, func(ctx context.Context, ids []int, seen *sizes) error {
		mu.Lock()
		full := limit > 0 && data > limit
		mu.Unlock()
		if full {
			for _, i := range ids {
				out[i].Err = ErrNotRead
			}
		} else if err := s.watchPart(ctx, watchedPart{paths: paths, ids: ids, kids: kids, out: out, seen: seen}); err != nil {
			for _, i := range ids {
				out[i].stop()
			}
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, i := range ids {
			data += int64(len(out[i].Data))
			took(i, out[i])
			out[i] = WatchedResult{}
		}
		return nil
	})
}

func (r *WatchedResult) stop() {
	r.Watch.Stop()
	r.Watch, r.Kids = nil, false
}

func (s *Session) watchPart(ctx context.Context, p watchedPart) error {
	for losses := 0; ; losses++ {
		s.calm(ctx, losses)
		if able := s.able(); len(p.paths) == 1 || able.refuses(jute.OpMultiRead) || able.refuses(bulkWatches) {
			return s.oneByOne(ctx, p.ids, s.watchedReader(p), p.seen)
		}
		err := s.watchOnce(ctx, p)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errLost):
			continue
		case errors.Is(err, ErrThrottled) && losses < maxThrottled:
			_ = s.Sleep(ctx, minBackoff<<losses)
			continue
		case errors.Is(err, ErrUnimplemented), errors.Is(err, ErrTooLarge) && len(p.ids) == 1:
			return s.oneByOne(ctx, p.ids, s.watchedReader(p), p.seen)
		case errors.Is(err, ErrTooLarge):
			mid, low, high := len(p.ids)/2, p, p
			low.ids, high.ids = p.ids[:mid], p.ids[mid:]
			if err = s.watchPart(ctx, low); err != nil {
				return err
			}
			return s.watchPart(ctx, high)
		}
		return err
	}
}

// watchOnce sends the two requests on one connection and waits for both replies. On
// errLost the caller sends them again.
func (s *Session) watchOnce(ctx context.Context, p watchedPart) error {
	r := s.multiRead(p.paths, p.ids, s.watchedReader(p), p.seen)
	end := s.trace(ctx, r)
	w, err := s.connection(ctx)
	if err != nil {
		err = r.fail(err)
		end(err)
		return err
	}
	zxid := s.zxid.Load() // What w's server has applied, or w has ended.
	watches, calls := p.begin(w, r.frame, zxid)
	calls[len(calls)-1].after = func(code int32) {
		if code == jute.ErrCodeOK {
			s.watches.settleAll(w, watches, zxid)
		}
	}
	err = errLost
	if !slices.ContainsFunc(calls, func(c *call) bool { return !w.send(c) }) {
		err = p.finish(ctx, w, r, calls)
	}
	for _, i := range p.ids {
		if err != nil || p.out[i].Err != nil {
			p.out[i].stop()
		}
	}
	end(err)
	return err
}

// begin registers the watches of a part that is sent over w. It returns the requests:
// multiRead, and setWatches unless a recursive watch covers all paths.
func (p *watchedPart) begin(w *wire, read []byte, zxid int64) ([]*Watch, []*call) {
	var batch watchBatch
	of := watchData.set()
	if p.kids {
		of |= watchChild.set()
	}
	watches := make([]*Watch, len(p.ids))
	for n, i := range p.ids {
		path, ask := full(w.s.cfg.Chroot, p.paths[i]), false
		watches[n], ask = w.s.watches.begin(w, path, of)
		p.out[i].Watch, p.out[i].Kids = watches[n], p.kids
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

func (p *watchedPart) finish(ctx context.Context, w *wire, r *request, calls []*call) error {
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

func (s *Session) watchedReader(p watchedPart) reader {
	return reader{
		op: jute.OpGetData,
		decode: func(i int, d *jute.Decoder) {
			p.out[i].Err = nil
			_ = d.Get(&p.out[i].Data, &p.out[i].Stat)
		},
		failed: func(i int, err error) { p.out[i].Result = Result{Err: err} },
		single: func(ctx context.Context, i int) (int, error) {
			r := &p.out[i]
			r.Data, r.Stat, r.Watch, r.Err = s.GetW(ctx, p.paths[i])
			return len(r.Data) + jute.StatSize, r.Err
		},
	}
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
