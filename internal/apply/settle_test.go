package apply

import (
	"testing"
	"time"
)

func TestSettle(t *testing.T) {
	t0 := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name     string
		min, max time.Duration
		changes  []int
		want     int
	}{
		{"at once", 0, 0, []int{0, 50, 90}, 0},
		{"quiet for min", 200 * time.Millisecond, 2 * time.Second, []int{0, 100}, 300},
		{"never later than max", 200 * time.Millisecond, time.Second, []int{0, 150, 300, 450, 600, 750, 900}, 1000},
		{"no max", 200 * time.Millisecond, 0, []int{0, 190, 380}, 580},
		{"max below min means min", 200 * time.Millisecond, 100 * time.Millisecond, []int{0}, 200},
	} {
		s := Settle{Min: c.min, Max: c.max}
		if s.Pending() {
			t.Errorf("%s: pending before any change", c.name)
		}
		for _, ms := range c.changes {
			s.Note(at(ms))
		}
		if got, want := s.Due(), at(c.want); !got.Equal(want) {
			t.Errorf("%s: due %v, want %v", c.name, got.Sub(t0), want.Sub(t0))
		}
		s.Take()
		if s.Pending() {
			t.Errorf("%s: pending after take", c.name)
		}
	}
}
