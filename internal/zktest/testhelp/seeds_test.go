package testhelp

import (
	"testing"
	"time"
)

func TestSeeds_Overrides(t *testing.T) {
	for _, c := range []struct {
		seed, seeds, day string
		first, programs  uint64
	}{
		{seed: "7", first: 7, programs: 1},
		{seed: "1000-1002", first: 1000, programs: 3},
		{seeds: "4", day: "20261123", first: 2026112300000, programs: 4},
		{day: "20261123", first: 2026112300000, programs: 1},
	} {
		t.Setenv("SEED", c.seed)
		t.Setenv("SEEDS", c.seeds)
		t.Setenv("SEED_DAY", c.day)
		var ran []uint64
		Seeds(t, time.Nanosecond, func(_ *testing.T, seed uint64) {
			ran = append(ran, seed)
			for began := processorTime(); processorTime() == began; { // It may tick slowly.
			}
		})
		if len(ran) == 0 || ran[0] != c.first || uint64(len(ran)) != c.programs {
			t.Errorf("SEED=%s SEEDS=%s on day %s: ran %v, want %d from %d on", c.seed, c.seeds, c.day, ran, c.programs, c.first)
		}
	}
}

func TestRepeat(t *testing.T) {
	t.Parallel()
	want := "SEED=7 go test ./internal/zktest/testhelp -run '^TestX$/^a$' -v"
	if got := repeat("TestX/a", 7); got != "repeat it: "+want && got != "repeat it: SEED=7 go test -race ./internal/zktest/testhelp -run '^TestX$/^a$' -v" {
		t.Errorf("got %s, want %s", got, want)
	}
}
