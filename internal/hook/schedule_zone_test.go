package hook

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
)

// slotsOf lists the slots of a line after a moment.
func slotsOf(t *testing.T, line string, after time.Time, n int) []string {
	t.Helper()
	s, err := ParseSchedule(line, "k")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for range n {
		after = s.Next(after)
		list = append(list, after.UTC().Format("01-02T15:04Z"))
	}
	return list
}

// Days on which clocks are changed: a slot in the hour that does not exist runs
// once, an hour later; one in the hour that comes twice runs once; lines of every
// hour or minute follow real time.
func TestSchedule_ClocksAreChanged(t *testing.T) {
	spring := time.Date(2030, 3, 30, 12, 0, 0, 0, time.UTC)  // Berlin: from 2 to 3 on the 31st, at 1 UTC
	autumn := time.Date(2030, 10, 26, 12, 0, 0, 0, time.UTC) // from 3 to 2 on the 27th, at 1 UTC
	for _, c := range []struct {
		name, line string
		after      time.Time
		want       string
	}{
		{"before the gap", "CRON_TZ=Europe/Berlin 30 1 * * *", spring, "03-31T00:30Z 03-31T23:30Z"},
		{"in the gap", "CRON_TZ=Europe/Berlin 30 2 * * *", spring, "03-31T01:30Z 04-01T00:30Z"},
		{"after the gap", "CRON_TZ=Europe/Berlin 0 4 * * *", spring, "03-31T02:00Z 04-01T02:00Z"},
		{"hourly over the gap", "CRON_TZ=Europe/Berlin 0 * * * *", spring.Add(12 * time.Hour), "03-31T01:00Z 03-31T02:00Z"},
		{"in the repeat", "CRON_TZ=Europe/Berlin 30 2 * * *", autumn, "10-27T00:30Z 10-28T01:30Z"},
		{"in the repeat and after", "CRON_TZ=Europe/Berlin 0 2-3 * * *", autumn, "10-27T00:00Z 10-27T02:00Z 10-28T01:00Z"},
		{"hourly over the repeat", "CRON_TZ=Europe/Berlin 0 * * * *", autumn.Add(11 * time.Hour), "10-27T00:00Z 10-27T01:00Z 10-27T02:00Z"},
		{"by minutes over the repeat", "CRON_TZ=Europe/Berlin */30 2 * * *", autumn, "10-27T00:00Z 10-27T00:30Z 10-27T01:00Z 10-27T01:30Z 10-28T01:00Z"},
		{"by half an hour", "CRON_TZ=Australia/Lord_Howe 45 1 * * *", time.Date(2030, 4, 6, 0, 0, 0, 0, time.UTC), "04-06T14:45Z 04-07T15:15Z"},
		{"TZ is the same", "TZ=Europe/Berlin 30 2 * * *", autumn, "10-27T00:30Z 10-28T01:30Z"},
		{"no change of clocks", "CRON_TZ=Asia/Kolkata 0 3 * * *", spring, "03-30T21:30Z 03-31T21:30Z"},
		{"descriptor", "CRON_TZ=Europe/Berlin @hourly", autumn.Add(11 * time.Hour), "10-27T00:00Z 10-27T01:00Z 10-27T02:00Z"},
	} {
		want := strings.Fields(c.want)
		if got := slotsOf(t, c.line, c.after, len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %s: got %v, want %v", c.name, c.line, got, want)
		}
	}
}

// "~" and H stay within what was asked for, field by field, and never name a day
// that a month does not have.
func TestParseSchedule_Tildes(t *testing.T) {
	from := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		line string
		ok   func(time.Time) bool
	}{
		{"~ ~ * * *", func(time.Time) bool { return true }},
		{"~10 5 * * *", func(s time.Time) bool { return s.Minute() <= 10 && s.Hour() == 5 }},
		{"50~ 5 * * *", func(s time.Time) bool { return s.Minute() >= 50 }},
		{"7~7 1~3 * * *", func(s time.Time) bool { return s.Minute() == 7 && s.Hour() >= 1 && s.Hour() <= 3 }},
		{"0 3 ~ * *", func(s time.Time) bool { return s.Day() <= 28 }},
		{"0 3 * 2~3 *", func(s time.Time) bool { return s.Month() == 2 || s.Month() == 3 }},
		{"0 3 * * 1~5", func(s time.Time) bool { return s.Weekday() >= 1 && s.Weekday() <= 5 }},
		{"CRON_TZ=UTC H H(0-2) * * *", func(s time.Time) bool { return s.Hour() <= 2 }},
	} {
		for _, key := range []string{"/a\x00x", "/b\x00y", "/c\x00z"} {
			line := c.line
			if !strings.Contains(line, "TZ=") {
				line = "CRON_TZ=UTC " + line
			}
			s, err := ParseSchedule(line, key)
			if err != nil {
				t.Errorf("%s: %v", c.line, err)
				break
			}
			next := s.Next(from).UTC()
			for range 20 {
				if !c.ok(next) {
					t.Errorf("%s with %q: got %v", c.line, key, next)
					break
				}
				next = s.Next(next).UTC()
			}
		}
	}
}

// A run that was put off by jitter is still the slot's, runs once, and no later
// than the jitter allows.
func TestHook_ScheduleJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *", Jitter: 10 * time.Minute})
		b.during(func() {
			time.Sleep(71 * time.Minute)
			b.count(1, "ten minutes after the first slot")
			time.Sleep(3 * time.Hour)
			b.count(4, "three slots later")
		})
		if s := b.ledger.record().Slot; s == nil || s.Slot.Minute() != 0 || s.State != stateDone {
			t.Errorf("got %+v", s)
		}
	})
}

// The clock of a former leader was ahead, or ours has been set back: no slot runs
// twice, and what the ledger has is reported until this clock has reached it.
func TestHook_ClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *"})
		ahead := time.Now().UTC().Truncate(time.Hour).Add(5 * time.Hour)
		b.ledger.mu.Lock()
		b.ledger.local.mem = record{Slot: &entry{Slot: ahead, State: stateDone, Term: 1}}
		b.ledger.mu.Unlock()
		b.during(func() {
			time.Sleep(4 * time.Hour)
			b.count(0, "before the ledger's slot")
			if !b.conds.Has(condition.HookClock, "h") {
				t.Error("not reported")
			}
			time.Sleep(2*time.Hour + time.Minute)
			b.count(1, "after the ledger's slot")
			if b.conds.Has(condition.HookClock, "h") {
				t.Error("still reported")
			}
		})
	})
}

// The clock is set forward by hours, which looks like an absence: the newest of
// the slots that were jumped over runs, the others as catch_up says.
func TestHook_ClockSetForward(t *testing.T) {
	for _, c := range []struct {
		mode string
		want int
	}{{"", 1}, {catchUpAll, 5}, {catchUpSkip, 0}} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *", CatchUp: c.mode})
			b.ledger.mu.Lock()
			b.ledger.local.mem = record{Slot: &entry{Slot: time.Now().UTC().Add(-5 * time.Hour), State: stateDone, Term: 1}}
			b.ledger.mu.Unlock()
			time.Sleep(5 * time.Minute) // past the last slot, so that it is late
			b.during(func() { b.count(c.want, "catch_up "+c.mode) })
		})
	}
}
