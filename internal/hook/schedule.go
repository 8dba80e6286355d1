package hook

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // schedules name zones, also on hosts that have no zone database.

	cron "github.com/netresearch/go-cron"
)

// Schedule is a parsed cron line.
type Schedule struct {
	s cron.Schedule
	// zone is the line's own; nil when its slots follow real time, as those of
	// every hour and every minute do. Slots at a time of the day differ
	// by what the clock shows: they run once, also on the day on which clocks are
	// set back.
	zone *time.Location
}

// neverYears is how far ahead a cron line must have a slot.
const neverYears = 9

var (
	tildeRange = regexp.MustCompile(`(\d*)~(\d*)`)
	fieldMax   = []int{59, 23, 28, 12, 6} // the day of month that every month has
	fieldMin   = []int{0, 0, 1, 1, 0}
)

// ParseSchedule parses a cron line of five fields, or @daily and its kind,
// with CRON_TZ= before it. "a~b", "~" and H choose a value by a hash of key,
// so that every host agrees on it and hooks are spread: the key is made of
// the election's path and the hook's name. A line that never fires is an error.
func ParseSchedule(line, key string) (Schedule, error) {
	p := cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.Hash).
		WithMaxSearchYears(neverYears)
	spec, err := tildes(line)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %q: %w", line, err)
	}
	s, err := p.ParseWithHashKey(spec, key)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %q: %w", line, err)
	}
	if s.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("schedule %q never fires", line)
	}
	return Schedule{s, zoneOf(line)}, nil
}

// zoneOf is the zone of a line whose slots are at times of the day; nil for
// others. The line has been parsed.
func zoneOf(line string) *time.Location {
	zone, fields := time.Local, strings.Fields(line)
	if _, name, ok := strings.Cut(fields[0], "TZ="); ok {
		var err error
		if zone, err = time.LoadLocation(name); err != nil {
			return nil
		}
		fields = fields[1:]
	}
	switch {
	case len(fields) == 1 && (fields[0] == "@hourly" || strings.HasPrefix(fields[0], "@every")):
		return nil
	case len(fields) > 1 && (strings.HasPrefix(fields[0], "*") || strings.HasPrefix(fields[1], "*")):
		return nil
	}
	return zone
}

// repeated reports whether the clocks of the zone have shown the same time
// before, because they were set back in between.
func repeated(t time.Time, zone *time.Location) bool {
	_, offset := t.In(zone).Zone()
	for _, back := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour} {
		if _, before := t.Add(-back).In(zone).Zone(); before-offset == int(back.Seconds()) {
			return true
		}
	}
	return false
}

// tildes turns "a~b" into "H(a-b)", field by field.
func tildes(line string) (string, error) {
	if !strings.Contains(line, "~") {
		return line, nil
	}
	fields := strings.Fields(line)
	offset := 0
	for offset < len(fields) && strings.Contains(fields[offset], "TZ=") {
		offset++
	}
	for i, f := range fields[offset:] {
		if i >= len(fieldMax) {
			break
		}
		var bad error
		fields[offset+i] = tildeRange.ReplaceAllStringFunc(f, func(m string) string {
			from, to, err := bounds(m, i)
			if err != nil {
				bad = err
			}
			return fmt.Sprintf("H(%d-%d)", from, to)
		})
		if bad != nil {
			return "", bad
		}
	}
	return strings.Join(fields, " "), nil
}

// bounds reads the ends of "a~b" in field i; a missing one is the field's own.
func bounds(m string, i int) (from, to int, err error) { //nolint:nonamedreturns // two ints need names.
	from, to = fieldMin[i], fieldMax[i]
	a, b, _ := strings.Cut(m, "~")
	if a != "" {
		if _, err := fmt.Sscan(a, &from); err != nil {
			return 0, 0, err
		}
	}
	if b != "" {
		if _, err := fmt.Sscan(b, &to); err != nil {
			return 0, 0, err
		}
	}
	if from > to {
		return 0, 0, fmt.Errorf("range %s is backwards", m)
	}
	return from, to, nil
}

// Next is the first slot after t; zero when there is none.
func (s Schedule) Next(t time.Time) time.Time {
	if s.s == nil {
		return time.Time{}
	}
	t = s.s.Next(t)
	for s.zone != nil && !t.IsZero() && repeated(t, s.zone) {
		t = s.s.Next(t)
	}
	return t
}

// Set reports whether there is a schedule.
func (s Schedule) Set() bool { return s.s != nil }

// maxMissed bounds the slots that are looked at after a long absence.
const maxMissed = 1000

// missed lists the slots after last up to now, the newest maxMissed of them.
func (s Schedule) missed(last, now time.Time) []time.Time {
	var slots []time.Time
	for t := s.Next(last); !t.IsZero() && !t.After(now); t = s.Next(t) {
		slots = append(slots, t)
		if len(slots) > 2*maxMissed {
			slots = append(slots[:0], slots[len(slots)-maxMissed:]...)
		}
	}
	if len(slots) > maxMissed {
		slots = slots[len(slots)-maxMissed:]
	}
	return slots
}
