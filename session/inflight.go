package session

import (
	"context"
	"sync"
)

// Limits of what a session asks of a server at once. A server builds each reply in
// memory, and keeps it until the client has read it. So thousands of clients that ask
// for 500 large znodes at once would exhaust its memory. ZooKeeper has no request for
// the sizes of many znodes, so the session estimates them by those it has read:
//
//   - The first request of a call asks for few znodes. Each further one asks for about
//     1 MB by the mean size of those seen, and for 2 MB with what they may have missed.
//     If a share p of the znodes has 1 MB, n reads see none of them with a chance of
//     (1-p)^n. So a znode brings at most p*(1-p)^n MB more than the mean, whatever p
//     is. That is less than 1 MB/(e*n). So a request may ask for 2*e times as many
//     znodes as were seen. It is of full size after three round trips.
//   - The order is random. So the first requests also see large znodes that are
//     neighbours, in proportion to their number.
//   - All requests of a session share about 2 MB.
const (
	manyReply  = 1 << 20   // bytes of one reply, about
	manyMissed = 380 << 10 // manyReply/e: what n reads may have missed, n times
	manyTokens = 8         // of a session: a server needs more than twice as much
	tokenBytes = 256 << 10 // what a token stands for
	manyAtOnce = manyTokens * tokenBytes
	firstPaths = 4 // of the first request of a call, at most
)

// sizes estimates the size of a znode by those seen.
type sizes struct {
	mu    sync.Mutex // guards what follows
	n     int64
	bytes int64
}

// add counts n znodes of so many bytes in total.
func (z *sizes) add(n int, bytes int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.n += int64(n); z.n > 1<<16 { // give the newest more weight
		z.n, z.bytes = z.n/2, z.bytes/2
	}
	z.bytes += bytes
}

// total returns the number of znodes and their bytes.
func (z *sizes) total() (int64, int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.n, z.bytes
}

// part returns how many znodes to ask for next, and the number of bytes to expect of one.
func (z *sizes) part() (int, int64) {
	n, bytes := z.total()
	if n == 0 {
		return manyAtOnce / manyReply, manyReply
	}
	guess := (bytes + manyMissed) / n
	return int(max(min(manyReply*n/max(bytes, 1), manyAtOnce/max(guess, 1), manyPaths), 1)), guess
}

// inFlight bounds what all requests of a session ask for at once.
type inFlight struct {
	turn   chan struct{} // held while tokens are taken, so that a large request gets its turn
	tokens chan struct{}
}

func newInFlight() inFlight {
	return inFlight{turn: make(chan struct{}, 1), tokens: make(chan struct{}, manyTokens)}
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
