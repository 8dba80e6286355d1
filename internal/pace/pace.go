// Package pace waits: for a time or a context, with back-off, with jitter.
package pace

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
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

// Notify wakes the reader of a channel of size 1: something changed.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Share is a number of hosts, or a share of those that there are.
type Share struct {
	number  float64
	percent bool
}

// ParseShare parses a number of hosts ("3") or a share of them ("10%").
func ParseShare(text string) (Share, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	most := 100_000.0
	if percent {
		most = 100
	}
	if err != nil || math.IsNaN(n) || n <= 0 || n > most || !percent && n != math.Trunc(n) {
		return Share{}, fmt.Errorf("%q is neither a number of hosts (\"3\") nor a share of them (\"10%%\")", text)
	}
	return Share{n, percent}, nil
}

// Of returns the number of hosts when there are total: at least 1, rounded down.
func (s Share) Of(total int) int {
	if s.percent {
		return max(1, int(float64(total)*s.number/100))
	}
	return int(s.number)
}
