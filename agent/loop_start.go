package agent

import (
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/view"
)

// start decides how the loop begins: with a complete view, with the last known
// good one, or ready without a view.
func (l *loop) start(now time.Time) time.Duration {
	if !l.isSet {
		return idleWait
	}
	if !l.complete && l.missing() == nil {
		wasCached := l.cached
		l.complete, l.cached, l.dirty = true, false, true
		l.conds.Close(condition.WaitingForSources, "")
		l.conds.Close(condition.LastKnownGood, "")
		for _, b := range l.bundles {
			// From the cache only files that were missing are written: what
			// was left alone then is compared now, also when nothing changed.
			b.force = b.force || wasCached
			b.settle.Note(now)
		}
		l.log.Info("every source has reported", "took", now.Sub(l.began))
	}
	if l.complete {
		if l.missing() == nil {
			l.conds.Close(condition.WaitingForSources, "")
		}
		l.checkReady(now)
		return idleWait
	}
	l.conds.Open(condition.WaitingForSources, "", "waiting for "+sourceList(l.missing()))
	if wait := l.startWait - now.Sub(l.began); wait > 0 {
		return wait
	}
	if !l.cached && l.lastGood != nil {
		l.takeLastGood(now)
	}
	l.checkReady(now)
	if wait := l.startLimit - now.Sub(l.began); !l.isReady && wait > 0 {
		return wait
	}
	return idleWait
}

// takeLastGood fills in what has not reported from the last known good view.
func (l *loop) takeLastGood(now time.Time) {
	l.cached, l.dirty = true, true
	paths := l.paths()
	for _, u := range l.lastGood.Updates() {
		if s := u.Source(); slices.Contains(l.declared, s) && l.v.Get(s) == nil && pathOf(u) == paths[s] {
			l.use(l.v.With(u))
		}
	}
	for _, b := range l.bundles {
		b.settle.Note(now)
	}
	l.conds.Open(condition.LastKnownGood, "", "running from the last known good view of "+l.lastGood.Saved.Format(time.RFC3339))
	l.log.Warn("running from the last known good state", "saved", l.lastGood.Saved, "missing", sourceList(l.missing()))
}

// had reports whether the last known good view has the source.
func (l *loop) had(s view.Source, path string) bool {
	return l.lastGood != nil && slices.ContainsFunc(l.lastGood.Updates(), func(u view.Update) bool { return u.Source() == s && pathOf(u) == path })
}

// checkReady reports once that the first useful state is reached.
func (l *loop) checkReady(now time.Time) {
	if l.isReady {
		return
	}
	switch {
	case l.complete || l.cached:
		for _, b := range l.bundles {
			if b.Err == nil && !b.applied && l.eligible(b) {
				return
			}
		}
	case now.Sub(l.began) < l.startLimit:
		return
	}
	l.isReady = true
	close(l.ready)
}

// missing lists the declared sources that have not reported in this process.
func (l *loop) missing() []view.Source {
	var missing []view.Source
	for _, s := range l.declared {
		if l.live[s].IsZero() {
			missing = append(missing, s)
		}
	}
	return missing
}
