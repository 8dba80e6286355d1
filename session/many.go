package session

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zkagent/zkagent/internal/jute"
)

// Bounds of one multiRead: its request, and the number of znodes, which bounds the
// reply as long as their data is of ordinary size. A reply over the limit is asked
// for again in halves.
const (
	manyBytes   = 64 << 10
	manyPaths   = 512
	manyFlights = 4  // requests under way at once
	manyReads   = 16 // the same, where each reads one znode
)

// Result is what GetMany found at one path.
type Result struct {
	Data []byte
	Stat Stat
	Err  error // ErrNoNode, ErrNoAuth, ...
}

// ListResult is what ChildrenMany found at one path.
type ListResult struct {
	Names []string
	Err   error
}

// GetMany reads many znodes with few requests (multiRead, servers from 3.6 on;
// others are asked one by one). Results are in the order of paths. They are not a
// snapshot: each is as of its own moment, in order. The error is about the whole.
func (s *Session) GetMany(ctx context.Context, paths []string) ([]Result, error) {
	out := make([]Result, len(paths))
	err := s.many(ctx, paths, reader{
		op: jute.OpGetData,
		decode: func(i int, d *jute.Decoder) {
			out[i].Data = d.Buffer()
			out[i].Stat.decode(d)
		},
		failed: func(i int, err error) { out[i] = Result{Err: err} },
		single: func(ctx context.Context, i int) error {
			out[i].Data, out[i].Stat, out[i].Err = s.Get(ctx, paths[i])
			return out[i].Err
		},
	})
	return out, err
}

// ChildrenMany lists the children of many znodes with few requests, as GetMany does.
// The names of one znode share their memory: who keeps a few of many clones them.
func (s *Session) ChildrenMany(ctx context.Context, paths []string) ([]ListResult, error) {
	out := make([]ListResult, len(paths))
	err := s.many(ctx, paths, reader{
		op:     jute.OpGetChildren,
		decode: func(i int, d *jute.Decoder) { out[i].Names = d.SharedStrings() },
		failed: func(i int, err error) { out[i] = ListResult{Err: err} },
		single: func(ctx context.Context, i int) error {
			out[i].Names, _, out[i].Err = s.Children(ctx, paths[i])
			return out[i].Err
		},
	})
	return out, err
}

// reader is how one kind of result is read; i is the index of the path.
type reader struct {
	op     int32
	decode func(i int, d *jute.Decoder)
	failed func(i int, err error)
	single func(ctx context.Context, i int) error
}

// many reads all paths in parts, a few at a time. The first error about the whole
// ends it.
func (s *Session) many(ctx context.Context, paths []string, r reader) error {
	for i, p := range paths {
		if err := ValidatePath(p); err != nil {
			r.failed(i, &Error{Op: jute.OpName(r.op), Path: p, Err: err})
			return fmt.Errorf("read many: %w", err)
		}
	}
	parts := s.split(paths)
	if len(parts) == 1 {
		return s.part(ctx, paths, parts[0], r)
	}
	return parallel(ctx, len(parts), manyFlights, func(ctx context.Context, i int) error {
		return s.part(ctx, paths, parts[i], r)
	})
}

type span struct{ from, to int }

func (s *Session) split(paths []string) []span {
	var parts []span
	size, from := 0, 0
	for i, p := range paths {
		n := len(s.cfg.Chroot) + len(p) + 14
		if i > from && (size+n > manyBytes || i-from == manyPaths) {
			parts = append(parts, span{from, i})
			size, from = 0, i
		}
		size += n
	}
	if from < len(paths) {
		parts = append(parts, span{from, len(paths)})
	}
	return parts
}

// part reads paths[p.from:p.to], with one request if the server allows.
func (s *Session) part(ctx context.Context, paths []string, p span, r reader) error {
	if p.to-p.from == 1 || s.noMulti.Load() {
		return s.oneByOne(ctx, p, r)
	}
	_, err := s.exchange(ctx, s.multiRead(paths, p, r))
	switch {
	case errors.Is(err, ErrUnimplemented):
		s.noMulti.Store(true)
		return s.oneByOne(ctx, p, r)
	case errors.Is(err, ErrTooLarge):
		mid := (p.from + p.to) / 2
		if err = s.part(ctx, paths, span{p.from, mid}, r); err != nil {
			return err
		}
		return s.part(ctx, paths, span{mid, p.to}, r)
	}
	return err
}

// multiRead returns the request for paths[p.from:p.to].
func (s *Session) multiRead(paths []string, p span, r reader) *request {
	req := &request{op: jute.OpMultiRead}
	req.frame = newFrame(req.op, manyBytes, func(e *jute.Encoder) {
		for _, path := range paths[p.from:p.to] {
			(&jute.MultiHeader{Type: r.op, Err: -1}).Encode(e)
			e.String(full(s.cfg.Chroot, path))
			e.Bool(false)
		}
		(&jute.MultiHeader{Type: -1, Done: true, Err: -1}).Encode(e)
	})
	req.decode = func(d *jute.Decoder) error {
		for i := p.from; i < p.to; i++ {
			var h jute.MultiHeader
			switch h.Decode(d); {
			case d.Err() != nil:
				return d.Err()
			case h.Done:
				return fmt.Errorf("multi-read of %d znodes has %d results", p.to-p.from, i-p.from)
			case h.Type == jute.OpError:
				if err := codeError(d.Int32()); err != nil {
					r.failed(i, &Error{Op: jute.OpName(r.op), Path: paths[i], Err: err})
				}
			case h.Type != r.op:
				return fmt.Errorf("result of type %d", h.Type)
			default:
				r.decode(i, d)
			}
		}
		return nil
	}
	return req
}

// oneByOne reads with a request per znode. What a znode answers is its own affair;
// an error of the session or ctx is about the whole.
func (s *Session) oneByOne(ctx context.Context, p span, r reader) error {
	return parallel(ctx, p.to-p.from, manyReads, func(ctx context.Context, i int) error {
		err := r.single(ctx, p.from+i)
		if err != nil && (ctx.Err() != nil || s.ctx.Err() != nil) {
			return err
		}
		return nil
	})
}

// parallel calls do for 0..n-1, at most width at a time, and returns the first
// error. It waits for all calls.
func parallel(ctx context.Context, n, width int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	next := make(chan int)
	for range min(n, width) {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					once.Do(func() { first = err; cancel() })
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if first == nil {
		first = context.Cause(ctx)
	}
	return first
}
