package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is how long to wait after n failures in a row: it doubles from
// first to limit, less a random half.
func backoff(n int, first, limit time.Duration) time.Duration {
	d := limit
	if n < 20 {
		d = min(first<<max(n-1, 0), limit)
	}
	return d/2 + rand.N(d/2+1) //nolint:gosec // chance, no secret.
}

// sleep waits for d or the context; it reports whether d passed.
func sleep(ctx context.Context, d time.Duration) bool {
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
