package registry

import (
	"time"
)

// healthOf combines the verdicts of all checks: passing if all are passing,
// critical if one is critical. A service without checks is passing.
func healthOf(checks []CheckStatus) Verdict {
	v := Passing
	for _, c := range checks {
		switch c.State {
		case Critical:
			return Critical
		case Unknown:
			v = Unknown
		case Passing:
		}
	}
	return v
}

// allGood reports whether the newest result of every check was good.
func allGood(checks []CheckStatus) bool {
	for _, c := range checks {
		if !c.OK {
			return false
		}
	}
	return true
}

// keepFor returns how long an adopted member is kept while its checks have no
// verdict yet.
func keepFor(checkers []*checker) time.Duration {
	var d time.Duration
	for _, k := range checkers {
		interval := k.cfg.Interval
		if k.cfg.Kind == CheckTTL {
			interval = k.cfg.TTL
		}
		d = max(d, interval*time.Duration(k.cfg.Fall))
	}
	return d
}

// warmUpSteps is the number of writes in a warm-up.
const warmUpSteps = 10

// warmWeight returns the current weight of a member that rose at from, and when the
// weight changes next (zero: never).
func warmWeight(weight int, from, now time.Time, d time.Duration) (int, time.Time) {
	if d <= 0 || weight <= 1 || from.IsZero() || now.Sub(from) >= d {
		return weight, time.Time{}
	}
	step := int(now.Sub(from) * warmUpSteps / d)
	next := from.Add((d*time.Duration(step+1) + warmUpSteps - 1) / warmUpSteps)
	return max(1, weight*step/warmUpSteps), next
}
