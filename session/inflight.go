package session

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
)

// Limits of what a session asks of a server at once. A server builds each reply in
// memory, and keeps it until the client has read it. So thousands of clients that ask
// for 500 large znodes at once would exhaust its memory. ZooKeeper has no request for
// the sizes of many znodes, so the session estimates them by those it has read, in
// random order:
//
//   - The estimate counts one znode of 512 kB beside those that the call has seen, and
//     those of the session as sixteen more where they are larger: a few small ones may
//     be luck.
//   - A request costs its expected bytes and one standard deviation. So few large
//     znodes among many small ones count for more than their mean: their number in a
//     request varies.
//   - A request costs 1.5 MB at most, and all requests of a session together 2 MB. Each
//     brings about as many znodes as were seen before: the number doubles with each
//     round trip until a reply is full.
//   - What a request costs stays taken until its reply is here, also when its caller
//     has stopped waiting.
const (
	unseen     = 512 << 10 // what the one znode counts that may be larger than all seen
	manyReply  = 3 << 19   // what one request may cost
	manyTokens = 8         // of a session: 2 MB
	tokenBytes = 256 << 10 // what a token stands for
	firstPaths = 4         // of the first request of a call, at most

	sessionWeight = 16 // how many znodes the sizes seen by the session stand for
)

// tally counts sizes of znodes.
type tally struct{ n, bytes, squares float64 }

func (t *tally) count(bytes int) {
	b := float64(bytes)
	t.n, t.bytes, t.squares = t.n+1, t.bytes+b, t.squares+b*b
}

// estimate is what to expect of the next znodes: the mean of their sizes, and of the
// squares of their sizes.
type estimate struct{ mean, square float64 }

// estimate judges by the znodes that a call has seen, and by those of its session.
func (t *tally) estimate(session tally) estimate {
	guess := func(sum, missed, others float64) float64 {
		return max((sum+missed)/(t.n+1), (sum+missed+sessionWeight*others/max(session.n, 1))/(t.n+1+sessionWeight))
	}
	return estimate{guess(t.bytes, unseen, session.bytes), guess(t.squares, unseen*unseen, session.squares)}
}

// cost is what a request for n znodes costs, in bytes.
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
