// Package testhelp has the helpers that tests of several packages share.
package testhelp

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// Patience bounds every wait for something that must come.
const Patience = 2 * time.Minute

// Eventually waits until ok returns true, and fails the test after Patience. It is
// for what has no event, and for real time: a test in virtual time sleeps.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for began := time.Now(); !ok(); began = time.Now() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %s in vain for %s", Patience, what)
		}
		// A look that starts a program leaves the processor to others.
		<-time.NewTimer(max(10*time.Millisecond, min(4*time.Since(began), 500*time.Millisecond))).C
	}
}

// ShortDir is a directory whose path leaves room for the name of a socket. It goes
// with the test.
func ShortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "zka") //nolint:usetesting // the name of t.TempDir is too long for a socket.
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Allocated returns how many bytes fn allocates, freed ones included.
func Allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
