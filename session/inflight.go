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
//   - The first request of a call asks for few znodes. The next asks for about 1 MB,
//     by an estimate that adds one znode of 1 MB to those seen so far. So requests
//     grow to their full size within five round trips.
//   - The order is random. So the first requests also see large znodes that are
//     neighbours, in proportion to their number.
//   - All requests of a session share about 2 MB.
const (
	manyReply  = 1 << 20   // bytes of one reply, about
	manyTokens = 8         // of a session: a server needs more than twice as much
	tokenBytes = 256 << 10 // what a token stands for
	firstPaths = 4         // of the first request of a call, at most
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

// guess estimates the size of the next znode. It counts one more znode of 1 MB.
func (z *sizes) guess() int64 {
	n, bytes := z.total()
	return (bytes + manyReply) / (n + 1)
}

// inFlight bounds what all requests of a session ask for at once.
type inFlight struct {
	turn   chan struct{} // held while tokens are taken, so that a large request gets its turn
	tokens chan struct{}
}

func newInFlight() inFlight {
	return inFlight{turn: make(chan struct{}, 1), tokens: make(chan struct{}, manyTokens)}
}

// take waits for room for so many bytes. The returned function frees the room.
func (f inFlight) take(ctx context.Context, bytes int64) (func(), error) {
	n := int(min(max((bytes+tokenBytes-1)/tokenBytes, 1), manyTokens))
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-f.turn }()
	for got := range n {
		select {
		case f.tokens <- struct{}{}:
		case <-ctx.Done():
			f.give(got)
			return nil, context.Cause(ctx)
		}
	}
	return func() { f.give(n) }, nil
}

func (f inFlight) give(n int) {
	for range n {
		<-f.tokens
	}
}
