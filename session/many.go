package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/zkagent/zkagent/internal/jute"
)

// Bounds of one multiRead: its request, and the number of znodes. inflight.go bounds
// the replies. If a reply is still over the limit, the session asks again in halves.
const (
	manyBytes   = 64 << 10
	manyPaths   = 512
	manyFlights = 4  // requests under way at once
	manyReads   = 16 // the same, where each reads one znode
)

// Result is the result of GetMany for one path.
type Result struct {
	Data []byte // nil when Err is not
	Stat Stat   // zero when Err is not nil
	Err  error  // ErrNoNode, ErrNoAuth, ...
}

// ListResult is the result of ChildrenMany for one path.
type ListResult struct {
	Names []string // of the children, in no order
	Err   error    // ErrNoNode, ErrNoAuth, ...; nil: Names is valid
}

// GetMany reads many znodes with few requests (multiRead, from 3.6 on; on older servers
// it reads one by one). It asks for about 2 MB at once at most, by the sizes seen so far. The results are
// in the order of paths. They are not a snapshot: each is as of its own moment. The
// error is about the whole call.
func (s *Session) GetMany(ctx context.Context, paths []string) ([]Result, error) {
	out := make([]Result, len(paths))
	err := s.many(ctx, paths, reader{
		op:     jute.OpGetData,
		decode: func(i int, d *jute.Decoder) { _ = d.Get(&out[i].Data, &out[i].Stat) },
		failed: func(i int, err error) { out[i] = Result{Err: err} },
		single: func(ctx context.Context, i int) (int, error) {
			out[i].Data, out[i].Stat, out[i].Err = s.Get(ctx, paths[i])
			return len(out[i].Data) + jute.StatSize, out[i].Err
		},
	})
	return out, err
}

// ChildrenMany lists the children of many znodes with few requests, like GetMany.
func (s *Session) ChildrenMany(ctx context.Context, paths []string) ([]ListResult, error) {
	out := make([]ListResult, len(paths))
	err := s.ListMany(ctx, paths, func(i int, r ListResult) { out[i] = r })
	return out, err
}

// ListMany is for internal use. It lists like ChildrenMany and calls took for each
// result, by the index of its path, while the server reads the next. It does not call
// took twice at the same time. When the error is not nil, some results are missing.
func (s *Session) ListMany(ctx context.Context, paths []string, took func(int, ListResult)) error {
	var mu sync.Mutex // orders the calls of took
	out := make([]ListResult, len(paths))
	return s.many(ctx, paths, reader{
		op:     jute.OpGetChildren,
		decode: func(i int, d *jute.Decoder) { out[i].Names = d.Strings() },
		failed: func(i int, err error) { out[i] = ListResult{Err: err} },
		single: func(ctx context.Context, i int) (int, error) {
			out[i].Names, _, out[i].Err = s.Children(ctx, paths[i])
			bytes := 0
			for _, name := range out[i].Names {
				bytes += 4 + len(name)
			}
			return bytes, out[i].Err
		},
		took: func(ids []int) {
			mu.Lock()
			defer mu.Unlock()
			for _, i := range ids {
				took(i, out[i])
				out[i] = ListResult{}
			}
		},
	})
}

// reader knows how to read one kind of result. i is the index of the path.
type reader struct {
	op     int32
	decode func(i int, d *jute.Decoder)
	failed func(i int, err error)
	single func(ctx context.Context, i int) (bytes int, err error)
	took   func(ids []int)                                        // is called for those of each part when it was read; nil: nothing
	ask    func(ctx context.Context, r *request, ids []int) error // sends the request for some; nil: exchange
}

// many reads all paths in parts, a few at a time. It ends with the first error about
// the whole call.
func (s *Session) many(ctx context.Context, paths []string, r reader) error {
	for i, p := range paths {
		if err := ValidatePath(p); err != nil {
			r.failed(i, &Error{Op: jute.OpName(r.op), Path: p, Err: err})
			return fmt.Errorf("read many: %w", err)
		}
	}
	return s.inParts(ctx, paths, func(ctx context.Context, ids []int, seen *sizes) error {
		err := s.part(ctx, paths, ids, r, seen)
		if err == nil && r.took != nil {
			r.took(ids)
		}
		return err
	})
}

// plan hands out the paths of one call in parts, in random order.
type plan struct {
	s     *Session
	paths []string
	order []int
	seen  *sizes // of this call
}

// part returns the next part of the plan, and the number of bytes to expect in the reply.
func (p *plan) part() ([]int, int64) {
	seen, session := p.seen.now(), p.s.seen.now()
	limit := manyPaths
	if seen.n == 0 {
		seen, limit = session, firstPaths
	}
	guess := seen.estimate(session)
	n := min(guess.part(), limit, len(p.order))
	size := 0
	for i, id := range p.order[:n] {
		if size += len(p.s.cfg.Chroot) + len(p.paths[id]) + 14; size > manyBytes && i > 0 {
			n = i
			break
		}
	}
	return p.order[:n], guess.cost(n)
}

// inParts calls read for parts of paths, by their indexes, several at a time, until all
// are read. read adds the sizes that it has seen.
func (s *Session) inParts(ctx context.Context, paths []string, read func(context.Context, []int, *sizes) error) error {
	p := &plan{s: s, paths: paths, order: make([]int, len(paths)), seen: &sizes{}}
	for i := range p.order {
		p.order[i] = i
	}
	if len(paths) > firstPaths {
		rand.Shuffle(len(p.order), func(i, j int) { p.order[i], p.order[j] = p.order[j], p.order[i] }) //nolint:gosec // no secret
	}
	turn := make(chan struct{}, 1) // who holds a value may use p; no mutex, because it is held over a wait
	next := func(ctx context.Context) (bool, error) {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		if len(p.order) == 0 {
			<-turn
			return false, nil
		}
		var ids []int
		give, err := s.inFlight.take(ctx, func() int64 {
			var bytes int64
			ids, bytes = p.part()
			return bytes
		})
		p.order = p.order[len(ids):]
		<-turn
		if err != nil {
			return false, err
		}
		err = read(ctx, ids, p.seen)
		if ctx.Err() != nil {
			s.giveAfterReplies(give)
		} else {
			give()
		}
		return true, err
	}
	if _, err := next(ctx); err != nil || len(p.order) == 0 {
		return err
	}
	return parallel(ctx, manyFlights, manyFlights, func(ctx context.Context, _ int) error {
		for {
			if more, err := next(ctx); err != nil || !more {
				return err
			}
		}
	})
}

// part reads the paths with these indexes, in one request if the server supports it.
func (s *Session) part(ctx context.Context, paths []string, ids []int, r reader, seen *sizes) error {
	if len(ids) == 1 && r.ask == nil || len(paths) == 1 {
		return s.oneByOne(ctx, ids, r, seen)
	}
	ask, err := s.multiRead(paths, ids, r, seen), error(nil)
	if r.ask != nil {
		err = r.ask(ctx, ask, ids)
	} else {
		_, err = s.exchange(ctx, ask)
	}
	switch {
	case errors.Is(err, ErrUnimplemented), errors.Is(err, ErrTooLarge) && len(ids) == 1:
		return s.oneByOne(ctx, ids, r, seen)
	case errors.Is(err, ErrTooLarge):
		mid := len(ids) / 2
		if err = s.part(ctx, paths, ids[:mid], r, seen); err != nil {
			return err
		}
		return s.part(ctx, paths, ids[mid:], r, seen)
	}
	return err
}

// multiRead returns the request for the paths with these indexes.
func (s *Session) multiRead(paths []string, ids []int, r reader, seen *sizes) *request {
	var args []any
	header := &jute.MultiHeader{Type: r.op, Err: -1}
	for _, i := range ids {
		args = append(args, header, full(s.cfg.Chroot, paths[i]), false)
	}
	req := &request{op: jute.OpMultiRead, frame: newFrame(jute.OpMultiRead, args, endOfMulti)}
	req.decode = func(d *jute.Decoder) error {
		var sizes tally
		for n, i := range ids {
			var h jute.MultiHeader
			rest := d.Len()
			switch err := d.Get(&h); {
			case err != nil:
				return err
			case h.Done:
				return fmt.Errorf("multi-read of %d znodes has %d results", len(ids), n)
			case h.Type == jute.OpError:
				if err := codeError(d.Int32()); err != nil {
					r.failed(i, &Error{Op: jute.OpName(r.op), Path: paths[i], Err: err})
				}
			case h.Type != r.op:
				return fmt.Errorf("result of type %d", h.Type)
			default:
				r.decode(i, d)
			}
			sizes.count(rest - d.Len())
		}
		seen.add(sizes)
		s.seen.add(sizes)
		return nil
	}
	return req
}

// oneByOne reads with a request per znode. An error of a znode goes into its result. An
// error of the session or of ctx is about the whole call.
func (s *Session) oneByOne(ctx context.Context, ids []int, r reader, seen *sizes) error {
	return parallel(ctx, len(ids), manyReads, func(ctx context.Context, i int) error {
		bytes, err := r.single(ctx, ids[i])
		var t tally
		t.count(bytes)
		seen.add(t)
		s.seen.add(t)
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
