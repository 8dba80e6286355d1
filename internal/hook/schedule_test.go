package hook

import (
	"testing"
	"time"
)

func TestParseSchedule(t *testing.T) {
	from := time.Date(2030, 3, 10, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ line, want string }{
		{"0 3 * * *", "2030-03-11T03:00:00Z"},
		{"@daily", "2030-03-11T00:00:00Z"},
		{"CRON_TZ=Asia/Tokyo 0 3 * * *", "2030-03-10T18:00:00Z"},
		{"*/15 * * * *", "2030-03-10T12:15:00Z"},
	} {
		s, err := ParseSchedule(c.line, "k")
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if got := s.Next(from).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("%s: got %s, want %s", c.line, got, c.want)
		}
	}
}

func TestParseSchedule_HashIsStableAndInRange(t *testing.T) {
	from := time.Date(2030, 3, 10, 0, 0, 0, 0, time.UTC)
	seen := map[int]bool{}
	for _, key := range []string{"/e\x00a", "/e\x00b", "/e\x00c", "/e\x00d", "/e\x00e", "/e\x00f"} {
		a, err := ParseSchedule("10~50 3 * * *", key)
		if err != nil {
			t.Fatal(err)
		}
		b, err := ParseSchedule("H(10-50) 3 * * *", key)
		if err != nil {
			t.Fatal(err)
		}
		m := a.Next(from).Minute()
		if m < 10 || m > 50 || !a.Next(from).Equal(b.Next(from)) {
			t.Errorf("%q: minute %d, %v and %v", key, m, a.Next(from), b.Next(from))
		}
		seen[m] = true
	}
	if len(seen) < 2 {
		t.Error("different keys are not spread")
	}
}

func TestParseSchedule_Refused(t *testing.T) {
	for _, line := range []string{"", "1 2 3", "61 * * * *", "50~10 * * * *", "0 0 31 2 *", "CRON_TZ=No/Where 0 0 * * *"} {
		if _, err := ParseSchedule(line, "k"); err == nil {
			t.Errorf("%q: no error", line)
		}
	}
}

func TestSchedule_Missed(t *testing.T) {
	s, err := ParseSchedule("0 * * * *", "k")
	if err != nil {
		t.Fatal(err)
	}
	last := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := s.missed(last, last.Add(3*time.Hour+time.Minute)); len(got) != 3 || got[2].Hour() != 3 {
		t.Errorf("got %v", got)
	}
	if got := s.missed(last, last.Add(-time.Hour)); len(got) != 0 {
		t.Errorf("clock stepped back: got %v", got)
	}
	if got := s.missed(last, last.AddDate(1, 0, 0)); len(got) != maxMissed {
		t.Errorf("got %d slots, want %d", len(got), maxMissed)
	}
}
