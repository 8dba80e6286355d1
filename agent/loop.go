package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/view"
)

// How often the loop looks at things that cause no event.
const (
	driftInterval = 10 * time.Second
	idleWait      = time.Hour
)

// loop owns the view and the bundles. Everything in it below the channels is
// touched by its own goroutine alone; the outside sends calls and results, and reads
// the published snapshot.
type loop struct {
	a     *Agent
	beat  func() // called every beats: the loop makes progress
	beats time.Duration
	// startWait is how long sources may take before the last known good view
	// is taken; startLimit how long before the agent is ready without one.
	startWait, startLimit time.Duration

	calls   chan func() // run on the goroutine of the loop
	results chan applied
	done    chan struct{} // closed when run has returned
	ready   chan struct{} // closed when the first useful state is reached

	// What other goroutines read.
	snapshot atomic.Pointer[snapshot]
	newest   atomic.Pointer[view.View] // v, for an apply that has waited for a permit

	sorted []*bundle      // by name
	shown  []*shownBundle // the same for readers; this list is not changed once made

	v        view.View
	good     view.View            // the latest view from which every bundle was in place
	granted  map[view.Source]turn // of the trees of which this host has one
	declared []view.Source
	places   []Place                   // the declared sources with their znodes
	live     map[view.Source]time.Time // when each source last changed in this process
	complete bool                      // every declared source has reported at least once
	cached   bool                      // running from the last known good view
	lastGood *lastgood.View
	bundles  map[string]*bundle
	leaving  map[*bundle]bool // bundles that a reload replaced and that still have work in flight
	applies  sync.WaitGroup
	stopping bool
	isReady  bool
	isSet    bool // settings were given
	began    time.Time
	drift    time.Time
	dirty    bool // the snapshot is older than the state
}

// bundle is one bundle of the settings as the loop sees it.
type bundle struct {
	shownBundle

	settle   apply.Settle
	inFlight bool
	drifting bool      // what is in flight only looks whether files were changed
	applied  bool      // at least one apply was tried
	seen     view.View // view of the latest apply
	good     view.View // the latest view from which it is in place
	since    time.Time // the first view of those without a failure up to good; zero: the latest apply failed
	force    bool      // compare every file with the disk
	failures int
	retryAt  time.Time          // zero: nothing to try again
	reload   bool               // the retry is to reload only
	previous *bundle            // the latest one of this name that was applied, until this one is
	replaced context.CancelFunc // ends the waits of the apply in flight for a permit
	grant    context.CancelFunc // lets the apply in flight continue without a permit
	inTurn   bool               // the latest apply is part of a turn of a rollout
	turnDue  bool               // the one that is due is
}

// last is the latest bundle of this name that was applied: this one, or the one
// that it has replaced and that may still be in flight.
func (b *bundle) last() *bundle { return cmp.Or(b.previous, b) }

// shownBundle is a bundle as readers see it.
type shownBundle struct {
	*apply.Bundle
	report bundleReport
}

// bundleReport is the status of a bundle as far as its applies tell: the state is waiting,
// ok, kept or failed.
type bundleReport struct {
	show.TemplateStatus

	Err error
}

type applied struct {
	*bundle
	apply.Result
}

func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	l.began, l.drift = time.Now(), time.Now().Add(driftInterval)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var beat <-chan time.Time
	if l.beats > 0 {
		t := time.NewTicker(l.beats)
		defer t.Stop()
		beat = t.C
	}
	for {
		select {
		case <-ctx.Done():
			l.stop()
			return
		case call := <-l.calls:
			call()
		case r := <-l.results:
			l.result(r)
		case <-beat:
			l.beat()
		case <-timer.C:
		}
		timer.Reset(l.step(ctx, time.Now()))
	}
}

func (l *loop) stop() {
	l.stopping = true
	finished := make(chan struct{})
	go func() {
		l.applies.Wait()
		close(finished)
	}()
	for {
		select {
		case r := <-l.results:
			l.result(r)
		case <-finished:
			l.publish()
			return
		}
	}
}

// do runs fn on the loop's goroutine and waits for it; false when the loop
// has ended.
func (l *loop) do(ctx context.Context, fn func()) bool {
	ran := make(chan struct{})
	select {
	case l.calls <- func() { fn(); l.dirty = true; close(ran) }:
		<-ran
		return true
	case <-l.done:
	case <-ctx.Done():
	}
	return false
}

// send passes on an update; it is what units call.
func (l *loop) send(u view.Update) {
	select {
	case l.calls <- func() { l.take(u) }:
	case <-l.done:
	}
}

// turn is what this host does in its turn of a rollout of a tree.
type turn int

const (
	noTurn turn = iota
	turnUse
	turnBack // the version before comes back
)

// turn notes what this host does now in its turn of a rollout of a tree.
func (l *loop) turn(ctx context.Context, s view.Source, what turn) {
	l.do(context.WithoutCancel(ctx), func() { l.granted[s] = what })
}

// take takes in one update. What waits for a permit continues when the update is
// of a turn.
func (l *loop) take(u view.Update) {
	l.update(u)
	if l.granted[u.Source()] == noTurn {
		return
	}
	l.publish() // Who no longer waits looks at the latest view.
	for _, b := range l.sorted {
		if b = b.last(); b.inFlight && slices.Contains(b.Sources, u.Source()) {
			b.inTurn = true
			b.grant()
		}
	}
}

// update takes in one update. An equal state is no change.
func (l *loop) update(u view.Update) {
	s := u.Source()
	if !slices.Contains(l.places, Place{s, pathOf(u)}) {
		return // of a unit that stops.
	}
	first := l.live[s].IsZero()
	if old := l.v.Get(s); old != nil && old.Equal(u) {
		if first {
			l.live[s], l.dirty = time.Now(), true
		}
		return
	}
	next := l.v.With(u)
	now := time.Now()
	if next.At = now; !now.After(l.v.At) {
		next.At = l.v.At.Add(1) // At orders the views.
	}
	l.live[s], l.dirty = now, true
	c := apply.ChangeOf(l.v.Get(s), u)
	for _, b := range l.sorted {
		if !b.applied || b.Reads(c) && b.Concerns(l.v, next) {
			b.settle.Note(now)
			b.turnDue = l.granted[s] != noTurn
		}
	}
	l.use(next)
	l.a.log.Debug("update", "unit", s.String(), "zxid", u.Zxid())
}

// use makes v the view of the applies to come, and of those that wait.
func (l *loop) use(v view.View) {
	l.v = v
	l.newest.Store(&v)
}

// step starts what is due and returns how long to wait for what is not.
func (l *loop) step(ctx context.Context, now time.Time) time.Duration {
	wait := l.start(now)
	if !l.stopping {
		wait = min(wait, l.startDue(ctx, now))
	}
	if now.After(l.drift) {
		l.drift = now.Add(driftInterval)
		for _, b := range l.bundles {
			if b.applied && !b.inFlight && b.report.State == "ok" && !b.settle.Pending() && l.eligible(b) {
				l.launch(ctx, b, apply.Job{Bundle: b.Bundle, Mode: apply.ModeDrift})
			}
		}
	}
	if l.dirty {
		l.publish()
	}
	return min(wait, max(time.Until(l.drift), time.Millisecond))
}

// set replaces the bundles after settings were loaded. Bundles keep what they
// know about their files under their names.
func (l *loop) set(declared []view.Source, bundles []*bundle) {
	old := l.bundles
	l.declared, l.places, l.isSet = declared, l.a.cfg.Load().Places(), true
	l.bundles = map[string]*bundle{}
	now := time.Now()
	for _, b := range bundles {
		if o := old[b.Config.Name]; o != nil {
			b.report, b.previous = o.report, o.last()
		}
		b.force = true
		b.settle.Note(now)
		l.bundles[b.Config.Name] = b
	}
	for _, o := range old {
		if o = o.last(); o.inFlight {
			o.replaced()
			if l.bundles[o.Config.Name] == nil {
				l.leaving[o] = true
			}
		} else if l.bundles[o.Config.Name] == nil {
			l.a.engine.Forget(o.Bundle)
		}
	}
	l.sorted, l.shown = nil, nil
	for _, name := range slices.Sorted(maps.Keys(l.bundles)) {
		l.sorted = append(l.sorted, l.bundles[name])
		shown := l.bundles[name].shownBundle
		l.shown = append(l.shown, &shown)
	}
	for _, s := range l.v.Sources() { // What another znode holds is not known.
		if !slices.Contains(l.places, Place{s, pathOf(l.v.Get(s))}) {
			l.use(l.v.Without(s))
			delete(l.live, s)
		}
	}
	if l.complete {
		if m := l.missing(); m != nil {
			l.a.conds.Open(condition.WaitingForSources, "", "waiting for "+sourceList(m))
		}
	}
}

// start decides how the loop begins: with a complete view, with the last known
// good one, or ready without a view.
func (l *loop) start(now time.Time) time.Duration {
	if !l.isSet {
		return idleWait
	}
	if !l.complete && l.missing() == nil {
		wasCached := l.cached
		l.complete, l.cached, l.dirty = true, false, true
		l.a.conds.Close(condition.WaitingForSources, "")
		l.a.conds.Close(condition.LastKnownGood, "")
		for _, b := range l.bundles {
			// From the cache only files that were missing are written: what
			// was left alone then is compared now, also when nothing changed.
			b.force = b.force || wasCached
			b.settle.Note(now)
		}
		l.a.log.Info("every source has reported", "took", now.Sub(l.began))
	}
	if l.complete {
		if l.missing() == nil {
			l.a.conds.Close(condition.WaitingForSources, "")
		}
		l.checkReady(now)
		return idleWait
	}
	l.a.conds.Open(condition.WaitingForSources, "", "waiting for "+sourceList(l.missing()))
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
	l.cached, l.dirty, l.v.At = true, true, now
	for _, p := range l.places {
		if u := l.lastGood.Get(p.Source); u != nil && l.v.Get(p.Source) == nil && pathOf(u) == p.Path {
			l.use(l.v.With(u))
		}
	}
	for _, b := range l.bundles {
		b.settle.Note(now)
	}
	l.a.conds.Open(condition.LastKnownGood, "", "running from the last known good view of "+l.lastGood.Saved.Format(time.RFC3339))
	l.a.log.Warn("running from the last known good state", "saved", l.lastGood.Saved, "missing", sourceList(l.missing()))
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
