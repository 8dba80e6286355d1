// Package pace waits: for a time or a context, with back-off, with jitter.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait after n failures in a row. It doubles from first
// to limit, less a random half.
func Backoff(n int, first, limit time.Duration) time.Duration {
	d := limit
	if n < 20 {
		d = min(first<<max(n-1, 0), limit)
	}
	return d/2 + rand.N(d/2+1) //nolint:gosec // chance, no secret.
}

// Jitter is a random delay below d.
func Jitter(d time.Duration) time.Duration { return rand.N(d) } //nolint:gosec // chance, no secret.

// urgent is the time that belongs to what may not be late.
const urgent = 250 * time.Millisecond

// Late is a random delay below d, and a quarter of a second before that. It is for what
// may be late: a change reaches many hosts, and the agents of one host, at one moment,
// and what they do for it comes first.
func Late(d time.Duration) time.Duration { return urgent + rand.N(d) } //nolint:gosec // chance, no secret.

// Sleep waits for d or the end of the context. It reports whether d passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Poke wakes the reader of a channel of size 1: something changed.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
