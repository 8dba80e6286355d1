package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/zkagent/zkagent/internal/jute"
)

// Bounds of one multiRead: its request, and the number of znodes. inflight.go bounds
// the replies. If a reply is still over the limit, the session asks again in halves.
//
// multiRead cannot set watches, but setWatches can. It is for a client that connects
// again, and fires at once for all changes since the zxid in the request. So EachManyW
// makes: (1) a small read, unless there was one just now; its reply contains a zxid that
// the server has applied. (2) multiRead, and after it on the same connection setWatches
// for the same paths, with the latest zxid known before (2). Every change after that zxid
// fires a watch, whether multiRead saw the change or not. So no change is lost; at worst
// the caller reads once too often.
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

// WatchedResult is the result of EachManyW for one path.
type WatchedResult struct {
	Result

	Watch *Watch // of the data; nil with an error
	// Kids says that the watch is for the children too. It is false if the caller did
	// not ask for that, or if EachManyW had to read one by one.
	Kids bool
}

func (r *WatchedResult) stop() {
	r.Watch.Stop()
	r.Watch, r.Kids = nil, false
}

// ErrNotRead means that EachManyW left a path out because of its limit.
var ErrNotRead = errors.New("not read, the limit of bytes was reached")

// GetMany reads many znodes with few requests (multiRead, from 3.6 on; on older servers
// it reads one by one). It asks for at most about 2 MB at once, by the sizes seen so far.
// The results are in the order of paths. They are not a snapshot, because the server reads
// one znode after another. The error is about the whole call.
func (s *Session) GetMany(ctx context.Context, paths []string) ([]Result, error) {
	out := make([]Result, len(paths))
	m := &manyRead{s: s, op: jute.OpGetData, paths: paths, took: func(i int, r manyResult) { out[i] = r.Result }}
	err := m.run(ctx)
	return out, err
}

// ChildrenMany lists the children of many znodes with few requests, like GetMany.
func (s *Session) ChildrenMany(ctx context.Context, paths []string) ([]ListResult, error) {
	out := make([]ListResult, len(paths))
	err := s.ListMany(ctx, paths, func(i int, r ListResult) { out[i] = r })
	return out, err
}

// ListMany lists like ChildrenMany, for lists that are too long to keep them all. It calls
// took for each result, by the index of its path, while the server reads the next, and
// not twice at the same time. When the error is not nil, some results are missing.
func (s *Session) ListMany(ctx context.Context, paths []string, took func(int, ListResult)) error {
	m := &manyRead{s: s, op: jute.OpGetChildren, paths: paths, took: func(i int, r manyResult) { took(i, ListResult{r.names, r.Err}) }}
	return m.run(ctx)
}

// EachManyW reads many znodes like GetMany, and watches their data. A [WatchQueue] waits
// for the watches. With kids it also watches the lists of their children, from the moment of the
// read: if the Stat shows no children, the caller need not list them. If the server does
// not support that, it reads one by one and does not watch the children. When the data
// exceeds limit bytes, it leaves out the rest with ErrNotRead; 0: unlimited.
//
// It calls took for each result, by the index of its path, while the server reads the
// next, and not twice at the same time. When the error is not nil, some results are
// missing. The caller owns the results that took got, even after an error.
func (s *Session) EachManyW(ctx context.Context, paths []string, kids bool, limit int64, took func(int, WatchedResult)) error {
	if len(paths) > 1 && !s.zxidIsFresh() && !s.able().refuses(bulkWatches) && !s.watches.isCovered(full(s.cfg.Chroot, paths[0])) {
		if _, _, err := s.Exists(ctx, paths[0]); err != nil && (ctx.Err() != nil || s.ctx.Err() != nil) {
			return fmt.Errorf("read many: %w", err)
		}
	}
	m := &manyRead{
		s: s, op: jute.OpGetData, paths: paths, watch: watchData.set(), limit: limit,
		took: func(i int, r manyResult) { took(i, r.WatchedResult) },
	}
	if kids {
		m.watch |= watchChild.set()
	}
	err := m.run(ctx)
	for i := range m.out {
		m.out[i].stop() // what took has not got
	}
	return err
}

// manyResult is what was read of one path: the data, or the names of the children.
type manyResult struct {
	WatchedResult

	names []string
}

// manyRead is one call that reads many znodes. They are named by the indexes of their
// paths.
type manyRead struct {
	s     *Session
	op    int32 // getData or getChildren
	paths []string
	watch kinds // of watches to set; 0: none
	limit int64 // bytes of data after which to stop; 0: unlimited
	took  func(int, manyResult)
	out   []manyResult // what took has not got yet
	seen  sizes        // of this call
	order []int        // of the paths that are not asked for yet

	mu   sync.Mutex // guards data, and orders the calls of took
	data int64
}

// run reads all paths in parts, in random order, a few at a time. It ends with the first
// error about the whole call.
func (m *manyRead) run(ctx context.Context) error {
	for i, p := range m.paths {
		if err := m.s.usable(p); err != nil {
			m.took(i, manyResult{WatchedResult: WatchedResult{Result: Result{Err: m.failed(i, err)}}})
			return fmt.Errorf("read many: %w", err)
		}
	}
	m.out = make([]manyResult, len(m.paths))
	m.order = make([]int, len(m.paths))
	for i := range m.order {
		m.order[i] = i
	}
	if len(m.paths) > firstPaths {
		rand.Shuffle(len(m.order), func(i, j int) { m.order[i], m.order[j] = m.order[j], m.order[i] }) //nolint:gosec // no secret
	}
	turn := make(chan struct{}, 1) // who holds a value may use m.order; no mutex, because it is held over a wait
	if _, err := m.next(ctx, turn); err != nil || len(m.order) == 0 {
		return err
	}
	return parallel(ctx, manyFlights, manyFlights, func(ctx context.Context, _ int) error {
		for {
			if more, err := m.next(ctx, turn); err != nil || !more {
				return err
			}
		}
	})
}

func (m *manyRead) failed(i int, err error) error {
	return &Error{Op: jute.OpName(m.op), Path: m.paths[i], Err: err}
}

// next reads the next part, and hands its results to took. It returns false when there is
// none.
func (m *manyRead) next(ctx context.Context, turn chan struct{}) (bool, error) {
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if len(m.order) == 0 {
		<-turn
		return false, nil
	}
	var ids []int
	give, err := m.s.inFlight.take(ctx, func() int64 {
		var bytes int64
		ids, bytes = m.plan()
		return bytes
	})
	m.order = m.order[len(ids):]
	<-turn
	if err != nil {
		return false, err
	}
	err = m.part(ctx, ids)
	if ctx.Err() != nil {
		m.s.giveAfterReplies(give)
	} else {
		give()
	}
	if err != nil {
		return true, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range ids {
		m.data += int64(len(m.out[i].Data))
		m.took(i, m.out[i])
		m.out[i] = manyResult{}
	}
	return true, nil
}

// plan returns the part to read next, and the number of bytes to expect in the reply.
func (m *manyRead) plan() ([]int, int64) {
	seen, session := m.seen.now(), m.s.seen.now()
	limit := manyPaths
	if seen.n == 0 {
		seen, limit = session, firstPaths
	}
	guess := seen.estimate(session)
	n := min(guess.part(), limit, len(m.order))
	size := 0
	for i, id := range m.order[:n] {
		if size += len(m.s.cfg.Chroot) + len(m.paths[id]) + 14; size > manyBytes && i > 0 {
			n = i
			break
		}
	}
	return m.order[:n], guess.cost(n)
}

// part reads some paths, in one request if the server supports it.
func (m *manyRead) part(ctx context.Context, ids []int) error {
	if len(ids) == 1 && m.watch == 0 || len(m.paths) == 1 {
		return m.oneByOne(ctx, ids)
	}
	if m.full() {
		for _, i := range ids {
			m.out[i].Err = ErrNotRead
		}
		return nil
	}
	_, err := m.s.exchange(ctx, m.multiRead(ids))
	for _, i := range ids {
		if err != nil || m.out[i].Err != nil {
			m.out[i].stop()
		}
	}
	switch {
	case errors.Is(err, ErrUnimplemented), errors.Is(err, ErrTooLarge) && len(ids) == 1:
		return m.oneByOne(ctx, ids)
	case errors.Is(err, ErrTooLarge):
		mid := len(ids) / 2
		if err = m.part(ctx, ids[:mid]); err != nil {
			return err
		}
		return m.part(ctx, ids[mid:])
	}
	return err
}

func (m *manyRead) full() bool {
	return m.limit > 0 && locked(&m.mu, &m.data) > m.limit
}

// multiRead returns the request for some paths.
func (m *manyRead) multiRead(ids []int) *request {
	var args []any
	header := &jute.MultiHeader{Type: m.op, Err: -1}
	for _, i := range ids {
		args = append(args, header, full(m.s.cfg.Chroot, m.paths[i]), false)
	}
	r := &request{op: jute.OpMultiRead, frame: newFrame(jute.OpMultiRead, args, endOfMulti)}
	if m.watch != 0 {
		r.needs = bulkWatches
		r.calls = func(w *wire) []*call { return m.watched(w, ids, r.frame) }
	}
	r.decode = func(d *jute.Decoder) error {
		var sizes tally
		for n, i := range ids {
			var h jute.MultiHeader
			rest, out := d.Len(), &m.out[i]
			out.Err = nil
			switch err := d.Get(&h); {
			case err != nil:
				return err
			case h.Done:
				return fmt.Errorf("multi-read of %d znodes has %d results", len(ids), n)
			case h.Type == jute.OpError:
				if err := codeError(d.Int32()); err != nil {
					out.Result = Result{Err: m.failed(i, err)}
				}
			case h.Type != m.op:
				return fmt.Errorf("result of type %d", h.Type)
			case m.op == jute.OpGetChildren:
				out.names = possible(d.Strings())
			default:
				_ = d.Get(&out.Data, &out.Stat)
			}
			sizes.count(rest - d.Len())
		}
		m.seen.add(sizes)
		m.s.seen.add(sizes)
		return nil
	}
	return r
}

// watched registers the watches of paths that are read over w. It returns the calls:
// multiRead, and setWatches unless a recursive watch covers all paths.
func (m *manyRead) watched(w *wire, ids []int, read []byte) []*call {
	var batch watchBatch
	book, zxid := m.s.watches, m.s.zxid.Load() // What the server has applied, or the connection has ended.
	watches := make([]*Watch, len(ids))
	for n, i := range ids {
		m.out[i].stop() // of a connection that was lost
		path, ask := full(m.s.cfg.Chroot, m.paths[i]), false
		watches[n], ask = book.begin(w, path, m.watch)
		m.out[i].Watch, m.out[i].Kids = watches[n], m.watch.has(watchChild)
		if ask {
			batch.put(m.watch, path)
		}
	}
	calls := []*call{newCall(jute.OpMultiRead, read)}
	if batch.size() > 0 {
		calls = append(calls, book.setWatches(zxid, &batch))
	}
	calls[len(calls)-1].after = func(code int32) {
		if code != jute.ErrCodeOK {
			return
		}
		book.mu.Lock()
		defer book.mu.Unlock()
		for _, watch := range watches {
			watch.armed = true
		}
		book.settled(w, zxid, watches...)
	}
	return calls
}

// oneByOne reads with a request per znode. An error of a znode goes into its result. An
// error of the session or of ctx is about the whole call.
func (m *manyRead) oneByOne(ctx context.Context, ids []int) error {
	return parallel(ctx, len(ids), manyReads, func(ctx context.Context, n int) error {
		i := ids[n]
		r, bytes := &m.out[i], 0
		if m.full() {
			r.Err = ErrNotRead
			return nil
		}
		if m.op == jute.OpGetChildren {
			r.names, _, r.Err = m.s.Children(ctx, m.paths[i])
			for _, name := range r.names {
				bytes += 4 + len(name)
			}
		} else {
			r.Data, r.Stat, r.Watch, r.Err = m.s.get(ctx, m.paths[i], m.watch != 0)
			bytes = len(r.Data) + jute.StatSize
		}
		var t tally
		t.count(bytes)
		m.seen.add(t)
		m.s.seen.add(t)
		if ctx.Err() != nil || m.s.ctx.Err() != nil {
			return r.Err
		}
		return nil
	})
}

// parallel calls do for 0..n-1, at most width at a time, and returns the first
// error. It waits for all calls.
func parallel(ctx context.Context, n, width int, do func(context.Context, int) error) error {
	g, run := errgroup.WithContext(ctx)
	g.SetLimit(width)
	for i := 0; i < n && run.Err() == nil; i++ {
		g.Go(func() error { return do(run, i) })
	}
	return cmp.Or(g.Wait(), context.Cause(ctx))
}

// Limits on the data that a session asks of a server at once. A server builds each reply in
// memory, and keeps it until the client has read it. So thousands of clients that ask
// for 500 large znodes at once would exhaust its memory. ZooKeeper has no request for
// the sizes of many znodes, so the session estimates them by those it has read, in
// random order:
//
//   - A few small znodes may be luck. So the estimate adds one znode of 512 kB to those
//     that the call has read. If the znodes of the session are larger, it adds sixteen
//     of their size.
//   - A request costs its expected bytes and one standard deviation. So few large
//     znodes among many small ones count for more than their mean: their number in a
//     request varies.
//   - A request costs 1.5 MB at most, and all requests of a session together 2 MB. Each
//     brings about as many znodes as were seen before: the number doubles with each
//     round trip until a reply is full.
//   - A request keeps its share of the 2 MB until its reply arrives, even if its caller
//     has stopped waiting.
const (
	unseen     = 512 << 10 // size of the znode that the estimate adds
	manyReply  = 3 << 19   // cost of one request, at most
	manyTokens = 8         // of a session: 2 MB
	tokenBytes = 256 << 10 // bytes of one token
	firstPaths = 4         // of the first request of a call, at most

	sessionWeight = 16 // the znodes of the session count as this many
)

// tally counts sizes of znodes.
type tally struct{ n, bytes, squares float64 }

func (t *tally) count(bytes int) {
	b := float64(bytes)
	t.n, t.bytes, t.squares = t.n+1, t.bytes+b, t.squares+b*b
}

// estimate is the expected mean of the sizes of the next znodes, and of their squares.
type estimate struct{ mean, square float64 }

// estimate judges by the znodes that a call has seen, and by those of its session.
func (t *tally) estimate(session tally) estimate {
	guess := func(sum, missed, others float64) float64 {
		return max((sum+missed)/(t.n+1), (sum+missed+sessionWeight*others/max(session.n, 1))/(t.n+1+sessionWeight))
	}
	return estimate{guess(t.bytes, unseen, session.bytes), guess(t.squares, unseen*unseen, session.squares)}
}

// cost is the cost of a request for n znodes, in bytes.
func (e estimate) cost(n int) int64 { return int64(float64(n)*e.mean + math.Sqrt(float64(n)*e.square)) }

// part returns how many znodes to ask for next: cost(part) is manyReply at most, unless
// it is one znode.
func (e estimate) part() int {
	root := (math.Sqrt(e.square+4*e.mean*manyReply) - math.Sqrt(e.square)) / (2 * e.mean)
	return max(min(int(root*root), manyPaths), 1)
}

// sizes is a tally that several goroutines share.
type sizes struct {
	mu sync.Mutex // guards t
	t  tally
}

func (z *sizes) add(seen tally) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.t.n > 1<<16 { // give the latest more weight
		z.t = tally{z.t.n / 2, z.t.bytes / 2, z.t.squares / 2}
	}
	z.t.n, z.t.bytes, z.t.squares = z.t.n+seen.n, z.t.bytes+seen.bytes, z.t.squares+seen.squares
}

func (z *sizes) now() tally { return locked(&z.mu, &z.t) }

// inFlight bounds what all requests of a session ask for at once.
type inFlight struct {
	turn   chan struct{} // held while tokens are taken, so that a large request gets its turn
	tokens chan struct{}
}

// take waits for room for as many bytes as want returns. It asks again when another
// request has ended, because more is known then. The returned function frees the room.
func (f inFlight) take(ctx context.Context, want func() int64) (func(), error) {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-f.turn }()
	for got := 0; ; got++ {
		need := int(min(max((want()+tokenBytes-1)/tokenBytes, 1), manyTokens))
		if got >= need {
			f.give(got - need)
			return func() { f.give(need) }, nil
		}
		select {
		case f.tokens <- struct{}{}:
		case <-ctx.Done():
			f.give(got)
			return nil, context.Cause(ctx)
		}
	}
}

func (f inFlight) give(n int) {
	for range n {
		<-f.tokens
	}
}

// giveAfterReplies frees the room of requests whose caller has stopped waiting, when
// their replies are here or their connection has ended.
func (s *Session) giveAfterReplies(give func()) {
	w := locked(&s.mu, &s.cur)
	if w == nil {
		give()
		return
	}
	w.mu.Lock()
	calls := slices.Collect(maps.Values(w.pending))
	w.mu.Unlock()
	s.hosts.writers.Go(func() {
		_ = awaitAll(context.Background(), calls...)
		give()
	})
}
