package agent

import "time"

// settle decides when a bundle whose inputs changed is applied. With no Min it
// is at once (leading edge): what arrives during an apply is folded into the
// next one. With Min it is when nothing has changed for Min, but never later
// than Max after the first change.
type settle struct {
	min, max time.Duration

	first, last time.Time // zero: nothing is pending
}

// note records a change at now.
func (s *settle) note(now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	s.last = now
}

// pending reports whether a change waits.
func (s *settle) pending() bool { return !s.first.IsZero() }

// due is when the pending change is to be applied.
func (s *settle) due() time.Time {
	if s.min <= 0 {
		return s.first
	}
	due := s.last.Add(s.min)
	if s.max > 0 {
		if latest := s.first.Add(max(s.max, s.min)); due.After(latest) {
			return latest
		}
	}
	return due
}

// take forgets what was pending: it is being applied.
func (s *settle) take() { s.first, s.last = time.Time{}, time.Time{} }
