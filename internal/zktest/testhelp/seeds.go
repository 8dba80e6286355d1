package testhelp

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A quick run spends a sixth of the budget.
const quickPart = 6

// Seeds runs fn for one seed after another until the programs have taken a sixth of the
// budget of processor time, or all of it in a complete run (see [All]). Programs that
// wait for real processes end after ten times their budget by the clock. One runs in any
// case. The first seed changes with the day, so that coverage grows from day to day.
// Each program is a subtest with the name SEED=n. One that fails prints the command
// that repeats it.
//
// $SEED runs a single seed, or a range such as 1000-1999. $SEEDS runs that many seeds
// from the day's first one on.
//
// Three of four seeds run on one processor, because switching between goroutines in
// virtual time is cheaper there. So the caller must not be a parallel test. The heaps
// are small and short-lived, so garbage is collected later than usual, which saves a
// fifth of the time.
func Seeds(t *testing.T, budget time.Duration, fn func(t *testing.T, seed uint64)) {
	t.Helper()
	if !All() {
		budget /= quickPart
	}
	first, count := seedRange(t)
	t.Logf("first seed %d", first)
	all := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(all)
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	seed, began, start := first, processorTime(), time.Now()
	more := func() bool {
		return count != unlimited || seed == first || processorTime()-began < budget && time.Since(start) < 10*budget
	}
	for ; seed-first < count && more(); seed++ {
		processors := 1
		if seed%4 == 0 {
			processors = all
		}
		runtime.GOMAXPROCS(processors)
		if !t.Run(fmt.Sprintf("SEED=%d", seed), func(t *testing.T) { fn(t, seed) }) {
			t.Log(repeat(t.Name(), seed))
		}
	}
	t.Logf("%d programs in %s of processor time", seed-first, (processorTime() - began).Round(time.Millisecond))
}

// unlimited is the count of seeds when a budget bounds them.
const unlimited = 1 << 62

// seedRange returns the first seed and how many there are.
func seedRange(t *testing.T) (first, count uint64) { //nolint:nonamedreturns // Two numbers of one type.
	t.Helper()
	first, count = firstSeed(), unlimited
	if text := os.Getenv("SEED"); text != "" {
		from, to, several := strings.Cut(text, "-")
		if !several {
			to = from
		}
		low, err := strconv.ParseUint(from, 10, 63)
		high, err2 := strconv.ParseUint(to, 10, 63)
		if err != nil || err2 != nil || high < low {
			t.Fatalf("SEED=%s: want a number, or a range such as 1000-1999", text)
		}
		return low, high - low + 1
	}
	if text := os.Getenv("SEEDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n < 1 {
			t.Fatalf("SEEDS=%s: want a number from 1 on", text)
		}
		return first, n
	}
	return first, count
}

// firstSeed is the date and five zeros, such as 2026112300000.
func firstSeed() uint64 { return day() * 100000 }

// day is the date, such as 20261123. scripts/test passes it in SEED_DAY, because go
// test then runs again on another day what it has cached.
func day() uint64 {
	day, err := strconv.ParseUint(os.Getenv("SEED_DAY"), 10, 32)
	if err != nil {
		now := time.Now().UTC()
		return uint64(now.Year()*10000 + int(now.Month())*100 + now.Day()) //nolint:gosec // A date is positive.
	}
	return day
}

// processorTime is what this process and the ended processes that it started have
// used.
func processorTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err == nil {
			sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return sum
}

// repeat is the command that runs the program of one seed again.
func repeat(test string, seed uint64) string {
	race := ""
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		race = "-race "
	}
	run := "^" + strings.ReplaceAll(test, "/", "$/^") + "$"
	return fmt.Sprintf("repeat it: SEED=%d go test %s%s -run '%s' -v", seed, race, testPackage(), run)
}

// testPackage is the package under test as go test takes it, such as ./fleet. A test
// runs in the directory of its package.
func testPackage() string {
	root, err := ModuleRoot()
	if err != nil {
		return "."
	}
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return "."
	}
	return "./" + rel
}
