package pace

import (
	"testing"
	"time"
)

// TestBackoff wants each wait between half of its step and the whole, and the
// steps to double up to the limit.
func TestBackoff(t *testing.T) {
	for n, whole := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 30 * time.Second, 19: 30 * time.Second, 1 << 40: 30 * time.Second,
	} {
		for range 200 {
			if got := Backoff(n, time.Second, 30*time.Second); got < whole/2 || got > whole {
				t.Fatalf("after %d failures: got %v, want %v to %v", n, got, whole/2, whole)
			}
		}
	}
}

// TestLate wants what may be late after what may not, and all of it in time.
func TestLate(t *testing.T) {
	for range 1000 {
		if d := Late(time.Second); d < urgent || d >= urgent+time.Second {
			t.Fatalf("got %v", d)
		}
	}
}
