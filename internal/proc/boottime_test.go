package proc

import (
	"strings"
	"testing"
	"time"
)

func TestStartOf(t *testing.T) {
	fields := strings.Repeat(" 7", 18) + " 4250 9 9"
	for stat, want := range map[string]time.Duration{
		"1 (init) S" + fields:             42*time.Second + 500*time.Millisecond,
		"1 (a) S 1 (b) S" + fields:        42*time.Second + 500*time.Millisecond,
		"1 (init) S 1 2 3":                0,
		"":                                0,
		"1 (init) S" + fields[:36] + " x": 0,
	} {
		if got := time.Duration(startOf(stat)); got != want {
			t.Errorf("%q: got %v, want %v", stat, got, want)
		}
	}
	if age := SystemAge(); age <= 0 || age > time.Duration(bootNow()) {
		t.Errorf("the age of this machine: %v", age)
	}
}
