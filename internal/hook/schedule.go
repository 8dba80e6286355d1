package hook

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // schedules name zones, also on hosts that have no zone database.

	"github.com/google/uuid"
	cron "github.com/netresearch/go-cron"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/pace"
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
		return Schedule{}, fmt.Errorf("%q: %w", line, err)
	}
	s, err := p.ParseWithHashKey(spec, key)
	if err != nil {
		return Schedule{}, fmt.Errorf("%q: %w", line, err)
	}
	if s.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("%q never fires", line)
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
	return slices.ContainsFunc([]time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour}, func(back time.Duration) bool {
		_, before := t.Add(-back).In(zone).Zone()
		return before-offset == int(back.Seconds())
	})
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

// missed lists the slots after last up to now, the latest maxMissed of them.
func (s Schedule) missed(last, now time.Time) []time.Time {
	var slots []time.Time
	for t := s.Next(last); !t.IsZero() && !t.After(now); t = s.Next(t) {
		if slots = append(slots, t); len(slots) > maxMissed {
			slots = slots[1:]
		}
	}
	return slots
}

// clockStep is how long the runner sleeps at most before it looks at the wall
// clock again: it may have been set.
const clockStep = 30 * time.Second

// fresh is how late a slot may be and still count as in time for
// catch_up = "skip".
const fresh = time.Minute

// baseline makes the first leader ever (or the first run on this host) begin
// the schedule now. It is written, so that a slot which comes due while
// no host leads counts as missed.
func (r *runner) baseline(ctx context.Context) error {
	if !r.schedule.Set() || r.rec.Slot != nil {
		return nil
	}
	now := time.Now().UTC()
	return r.write(ctx, entry{Slot: now, State: stateDone, Term: r.scope.term, Time: now}, putSlot)
}

func putSlot(rec *record, e entry) { rec.Slot = &e }

// slots runs what is due and returns how long to wait for the next slot. A
// slot is never run twice: only slots after the ledger's count, so a clock
// that is set back waits.
func (r *runner) slots(ctx context.Context) (time.Duration, error) {
	if !r.schedule.Set() {
		return time.Hour, nil
	}
	if e := r.rec.Slot; e.State == stateStarted && r.running.state(e.Run) == "" && r.mayRepeat("slot", e.Run, "slot "+e.Slot.Format(time.RFC3339)) {
		if err := r.slot(ctx, e.Slot); err != nil {
			return 0, err
		}
	}
	// With a ledger ahead of this host's clock, one of the two is wrong: no slot is run until the clock has caught up.
	text := ""
	if last := r.rec.Slot.Slot; time.Until(last) > fresh {
		text = "the last slot that was run, " + last.Format(time.RFC3339) + ", is ahead of this host's clock: nothing runs before it is reached"
	}
	r.engine.Conditions.Open(condition.HookClock, r.cfg.Name, text)
	for _, slot := range r.due(time.Now()) {
		if ctx.Err() != nil {
			return 0, nil //nolint:nilerr // serve sees that ctx has ended.
		}
		if err := r.slot(ctx, slot); err != nil {
			return 0, err
		}
	}
	next := r.schedule.Next(r.rec.Slot.Slot)
	if next.IsZero() {
		return clockStep, nil
	}
	return min(max(time.Until(next.Round(0)), time.Millisecond), clockStep), nil
}

// finishSlot records the end of the latest slot's run when it ran beside us.
func (r *runner) finishSlot(ctx context.Context) error {
	if r.rec.Slot == nil || r.rec.Slot.State != stateStarted {
		return nil
	}
	state := r.running.state(r.rec.Slot.Run)
	if state == "" || state == stateStarted {
		return nil
	}
	e := *r.rec.Slot
	e.State, e.Time = state, time.Now().UTC()
	return r.write(ctx, e, putSlot)
}

// due picks from the missed slots those that catch_up wants.
func (r *runner) due(now time.Time) []time.Time {
	missed := r.schedule.missed(r.rec.Slot.Slot, now)
	if len(missed) == 0 {
		return nil
	}
	latest := missed[len(missed)-1:]
	switch r.cfg.CatchUp {
	case catchUpAll:
		return missed
	case catchUpSkip:
		if now.Sub(latest[0]) > fresh || latest[0].Before(r.begun) {
			// This is not worth a write: a later leader skips them again.
			r.rec = r.rec.clone()
			r.rec.Slot = &entry{Slot: latest[0].UTC(), State: stateDone, Term: r.scope.term, Time: time.Now().UTC()}
			return nil
		}
	}
	return latest
}

// slot runs the hook for one slot, with regard to the runs of previous slots
// that are still going on.
func (r *runner) slot(ctx context.Context, slot time.Time) error {
	ev := command.Trigger{Event: command.EventSchedule}
	if r.cfg.Overlap != overlapAllow && r.cfg.Overlap != overlapReplace {
		return r.ledgered(ctx, ev, slot, putSlot)
	}
	if r.cfg.Overlap == overlapReplace {
		r.running.stop()
	}
	// Runs that overlap share one entry; the end is written by finishSlot
	// when it is still the latest slot's.
	e := entry{Slot: slot.UTC(), State: stateStarted, Term: r.scope.term, Time: time.Now().UTC(), Run: uuid.NewString()}
	if err := r.write(ctx, e, putSlot); err != nil {
		return err
	}
	r.running.start(ctx, e.Run, func(ctx context.Context) error { return r.attempts(ctx, ev, slot) })
	return nil
}

// slotRuns are the runs of slots that may overlap.
type slotRuns struct {
	wg   sync.WaitGroup
	wake chan struct{} // size 1: a run has ended

	mu   sync.Mutex // mu guards runs and everything in it.
	runs map[string]*slotRun
}

type slotRun struct {
	cancel context.CancelFunc
	state  string // started, done or failed; empty: its end is not known
}

func (s *slotRuns) start(ctx context.Context, id string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	maps.DeleteFunc(s.runs, func(_ string, r *slotRun) bool { return r.state != stateStarted })
	r := &slotRun{cancel, stateStarted}
	s.runs[id] = r
	s.mu.Unlock()
	s.wg.Go(func() {
		defer cancel()
		state := endOf(ctx, run(ctx))
		s.mu.Lock()
		r.state = state
		s.mu.Unlock()
		pace.Notify(s.wake)
	})
}

// state returns how the run of this process stands: started, done or failed. It
// is empty for a run of another process, and when the end is not known.
func (s *slotRuns) state(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r.state
	}
	return ""
}

func (s *slotRuns) stop() {
	s.mu.Lock()
	for _, r := range s.runs {
		r.cancel()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
