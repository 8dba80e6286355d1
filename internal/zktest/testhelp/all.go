package testhelp

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"testing"
)

// All reports whether this run is to be complete. The environment variable
// TEST_ALL=1 decides, and `make test-all` sets it.
func All() bool { return os.Getenv("TEST_ALL") == "1" }

// OnlyAll skips what takes too long for `make test`. The reason says why it takes
// long.
func OnlyAll(tb testing.TB, why string) {
	tb.Helper()
	if !All() {
		tb.Skipf("only in make test-all: %s", why)
	}
}

// Economy sets the environment of programs that this test starts, and returns it. In a
// quick run, a program that ends at once uses one processor and collects no garbage: it
// costs a quarter less. With the race detector, no program sleeps a second at its end.
func Economy() []string {
	env := []string{"GORACE=atexit_sleep_ms=0"}
	if !All() {
		env = append(env, "GOMAXPROCS=1", "GOGC=400")
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		_ = os.Setenv(name, value)
	}
	return env
}

// Rounds is how often a test repeats something: quick times in a quick run, and all
// times in a complete one (see [All]).
func Rounds(quick, all int) int {
	if All() {
		return all
	}
	return quick
}

// Today reports whether it is the day of the case of this name: it is for one of so many
// cases, for other ones every day. With STEPS=1 (see [Steps]) it is for all of them.
func Today(name any, of uint64) bool {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, name)
	// The lowest bits depend on those of the letters alone.
	return os.Getenv("STEPS") == "1" || (h.Sum64()>>8+day())%of == 0
}

// NotToday reports whether a quick run leaves out the case of this name, because it is not
// its day (see [Today]). A complete run leaves out none.
func NotToday(name any, of uint64) bool { return !All() && !Today(name, of) }

// InTurn skips a test that a quick run takes only each second day, or third one and so on.
func InTurn(tb testing.TB, of uint64) {
	tb.Helper()
	if NotToday(tb.Name(), of) {
		tb.Skipf("today only in make test-all: make test takes one of %d such tests a day", of)
	}
}

// Steps returns the first step and the stride of a test that lets a fault strike at
// every step, counted from 1. A complete run visits each third step, and a quick run
// each twelfth one, others every day. $STEPS is another stride: STEPS=1 visits all.
func Steps() (int, int) {
	stride := Rounds(12, 3)
	if n, err := strconv.Atoi(os.Getenv("STEPS")); err == nil && n > 0 {
		stride = n
	}
	return 1 + int(day())%stride, stride //nolint:gosec // A date is small.
}
