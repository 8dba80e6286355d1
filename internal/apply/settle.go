package apply

import "time"

// Settle decides when a bundle whose inputs changed is applied. With no Min it
// is at once (leading edge): what arrives during an apply is folded into the
// next one. With Min it is when nothing has changed for Min, but never later
// than Max after the first change.
type Settle struct {
	Min, Max time.Duration

	first, last time.Time // zero: nothing is pending
}

// Note records a change at now.
func (s *Settle) Note(now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	s.last = now
}

// Pending reports whether a change waits.
func (s *Settle) Pending() bool { return !s.first.IsZero() }

// Due is when the pending change is to be applied.
func (s *Settle) Due() time.Time {
	if s.Min <= 0 {
		return s.first
	}
	due := s.last.Add(s.Min)
	if s.Max > 0 {
		if latest := s.first.Add(max(s.Max, s.Min)); due.After(latest) {
			return latest
		}
	}
	return due
}

// Take forgets what was pending: it is being applied.
func (s *Settle) Take() { s.first, s.last = time.Time{}, time.Time{} }
