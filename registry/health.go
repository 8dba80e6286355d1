package registry

import (
	"time"
)

// healthOf makes one verdict of all checks: passing when all are, critical
// when one is. A service without checks is passing.
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

// keepFor is how long a member that was found is kept though its checks have
// neither risen nor fallen yet.
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

// warmUpSteps is the number of writes that a warm-up costs.
const warmUpSteps = 10

// warmWeight is the weight of a member that rose at from, and when it is to
// be changed next (zero: never).
func warmWeight(weight int, from, now time.Time, d time.Duration) (int, time.Time) {
	if d <= 0 || weight <= 1 || from.IsZero() || now.Sub(from) >= d {
		return weight, time.Time{}
	}
	step := int(now.Sub(from) * warmUpSteps / d)
	next := from.Add((d*time.Duration(step+1) + warmUpSteps - 1) / warmUpSteps)
	return max(1, weight*step/warmUpSteps), next
}
