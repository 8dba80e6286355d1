package registry

// Verdict is the result of a check over several runs.
type Verdict int

// Verdicts of a check.
const (
	Unknown  Verdict = iota // neither risen nor fallen yet
	Passing                 // risen
	Critical                // fallen
)

// String returns the verdict as status shows it.
func (v Verdict) String() string {
	switch v {
	case Passing:
		return "passing"
	case Critical:
		return "critical"
	case Unknown:
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. A word of a newer agent
// is unknown.
func (v *Verdict) UnmarshalText(text []byte) error {
	*v = Unknown
	for _, known := range []Verdict{Passing, Critical} {
		if known.String() == string(text) {
			*v = known
		}
	}
	return nil
}

// counter is the hysteresis of a check. rise successes in a row make it passing,
// and fall failures in a row make it critical. Fewer leave the verdict unchanged.
// It starts as unknown, so that no member is registered before its service has
// worked.
type counter struct {
	rise, fall int
	verdict    Verdict
	run        int // results of the same kind in a row: > 0 good, < 0 bad
}

// add counts one result and reports whether the verdict changed.
func (c *counter) add(ok bool) bool {
	was := c.verdict
	if ok {
		c.run = max(c.run, 0) + 1
		if c.run >= c.rise {
			c.run, c.verdict = c.rise, Passing
		}
	} else {
		c.run = min(c.run, 0) - 1
		if -c.run >= c.fall {
			c.run, c.verdict = -c.fall, Critical
		}
	}
	return c.verdict != was
}
