package registry

import "time"

// Defaults of lingering.
const (
	// DefaultLinger is how long a member that is gone stays: in that time it
	// may be back (registered anew), or others may turn out to be gone too.
	DefaultLinger = 200 * time.Millisecond
	maxLingers    = 5 // at most so many times DefaultLinger in all
)

// linger believes a loss only after it has been quiet for a moment, so that
// members that vanish one by one within that moment are judged as one loss by
// the guard, and a member that is replaced does not blink. Joins and changes
// are not delayed.
//
// It is a pure step function over (time, set); only its owner touches it.
type linger struct {
	d     time.Duration
	any   bool // shown is the outcome of a step
	shown members
	gone  members   // lost since first
	first time.Time // first loss that is not believed yet
	last  time.Time // newest such loss
}

// step takes the members as they are and returns those to be shown, and when
// to call it again though nothing changed (zero: never).
func (l *linger) step(now time.Time, actual members) (members, time.Time) {
	if l.d <= 0 || !l.any {
		l.shown, l.any = actual, true
		return actual, time.Time{}
	}
	gone := l.shown.missing(actual)
	for _, m := range gone {
		if !l.gone.has(m) {
			l.last = now
		}
	}
	if len(gone) > 0 && len(l.gone) == 0 {
		l.first = now
	}
	l.gone = gone
	end := l.end()
	if len(gone) == 0 || !now.Before(end) {
		l.gone, l.shown = nil, actual
		return actual, time.Time{}
	}
	l.shown = actual.with(gone)
	return l.shown, end
}

func (l *linger) end() time.Time {
	end, latest := l.last.Add(l.d), l.first.Add(maxLingers*l.d)
	if latest.Before(end) {
		return latest
	}
	return end
}
