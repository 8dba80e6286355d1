package zktest

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
)

// Seeds runs fn once for each seed, as a subtest with the name SEED=n. The seeds are 1 to
// count. $SEEDS sets another count, and $SEED a single seed, or a range such as 1000-1999.
//
// Three of four run on one processor, because switching between goroutines in virtual
// time is cheaper there. So the caller must not be a parallel test. The heaps are small
// and short-lived, so garbage is collected later than usual, which saves a fifth of the
// time.
func Seeds(t *testing.T, count int, fn func(t *testing.T, seed uint64)) {
	t.Helper()
	first, count := seedRange(t, count)
	all := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(all)
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	for seed := first; seed < first+uint64(count); seed++ { //nolint:gosec // A count is never negative.
		processors := 1
		if seed%4 == 0 {
			processors = all
		}
		runtime.GOMAXPROCS(processors)
		t.Run(fmt.Sprintf("SEED=%d", seed), func(t *testing.T) { fn(t, seed) })
	}
}

// seedRange returns the first seed and how many there are.
func seedRange(t *testing.T, count int) (uint64, int) {
	t.Helper()
	if text := os.Getenv("SEED"); text != "" {
		from, to, several := strings.Cut(text, "-")
		if !several {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 32)
		last, err2 := strconv.ParseUint(to, 10, 32)
		if err != nil || err2 != nil || last < first {
			t.Fatalf("SEED=%s: want a number, or a range such as 1000-1999", text)
		}
		return first, int(last-first) + 1
	}
	if text := os.Getenv("SEEDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SEEDS=%s: want a number from 1 on", text)
		}
		return 1, n
	}
	return 1, count
}
