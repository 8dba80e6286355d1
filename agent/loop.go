package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/view"
)

// How often the loop looks at things that nobody tells it.
const (
	driftInterval = 10 * time.Second
	idleWait      = time.Hour
)

// loop owns the view and the bundles. Everything in it below the channels is
// touched by its own goroutine alone; the outside sends updates, results and
// requests, and reads the published snapshot.
type loop struct {
	log     *slog.Logger
	conds   *condition.Set
	applier *applier
	reloads *reloads
	owed    *owed
	beat    func() // called at each turn: the loop makes progress
	beats   time.Duration
	changed func() // called after each publication
	// startWait is how long sources may take before the last known good view
	// is taken; startLimit how long before the agent is ready without one.
	startWait, startLimit time.Duration

	updates  chan view.Update
	results  chan applyResult
	requests chan func()
	done     chan struct{} // closed when run has returned
	ready    chan struct{} // closed when the first useful state is reached
	snapshot atomic.Pointer[snapshot]

	v        view.View
	declared []view.Source
	live     map[view.Source]time.Time // when each source last changed in this process
	complete bool                      // every declared source has reported at least once
	cached   bool                      // running from the last known good view
	lastGood *LastGood
	bundles  map[string]*bundle
	applies  sync.WaitGroup
	stopping bool
	isReady  bool
	isSet    bool // settings were given
	began    time.Time
	drift    time.Time
	dirty    bool // the snapshot is older than the state
}

// snapshot is what the loop publishes for status, metrics and hooks.
type snapshot struct {
	view     view.View
	declared []view.Source
	live     map[view.Source]time.Time
	complete bool
	cached   bool
	busy     map[view.Source]bool // sources whose bundles are not yet applied
	bundles  map[string]bundleReport
	order    []string
	sources  map[string][]view.Source // of each bundle
	at       time.Time
	next     chan struct{} // closed at the next publication
}

// run is the loop.
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
		case u := <-l.updates:
			l.update(u)
		case r := <-l.results:
			l.result(r)
		case request := <-l.requests:
			request()
			l.dirty = true
		case <-beat:
			l.beat()
		case <-timer.C:
		}
		timer.Reset(l.step(ctx, time.Now()))
	}
}

// stop waits for the applies in flight; their context has ended.
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
	case l.requests <- func() { fn(); close(ran) }:
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
	case l.updates <- u:
	case <-l.done:
	}
}

// update takes in one update. An equal state is no change.
func (l *loop) update(u view.Update) {
	s := u.Source()
	if !slices.Contains(l.declared, s) {
		return // of a unit that was just stopped.
	}
	first := l.live[s].IsZero()
	if old := l.v.Get(s); old != nil && old.Equal(u) {
		if first {
			l.live[s], l.dirty = time.Now(), true
		}
		return
	}
	next := l.v.With(u)
	next.At = time.Now()
	l.live[s], l.dirty = next.At, true
	for _, b := range l.bundles {
		if !b.applied || b.concerns(l.v, next) {
			b.settle.note(next.At)
		}
	}
	l.v = next
	l.log.Debug("update", "unit", s.String(), "zxid", u.Zxid())
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
			if b.applied && !b.inFlight && b.report.State == "ok" && !b.settle.pending() && l.eligible(b) {
				l.launch(ctx, b, applyDrift)
			}
		}
	}
	if l.dirty {
		l.publish()
	}
	return min(wait, max(time.Until(l.drift), time.Millisecond))
}

// start follows the beginning: complete, last known good, or ready with
// neither.
func (l *loop) start(now time.Time) time.Duration {
	if !l.isSet {
		return idleWait
	}
	if !l.complete && l.missing() == nil {
		wasCached := l.cached
		l.complete, l.cached, l.dirty = true, false, true
		l.conds.Close("waiting-for-sources", "")
		l.conds.Close("last-known-good", "")
		for _, b := range l.bundles {
			// From the cache only files that were missing are written: what
			// was left alone then is compared now, also when nothing changed.
			b.force = b.force || wasCached
			b.settle.note(now)
		}
		l.log.Info("every source has reported", "took", now.Sub(l.began))
	}
	if l.complete {
		if l.missing() == nil {
			l.conds.Close("waiting-for-sources", "")
		}
		l.checkReady(now)
		return idleWait
	}
	l.conds.Open("waiting-for-sources", "", "waiting for "+sourceList(l.missing()))
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
	paths := l.applier.paths()
	for _, u := range l.lastGood.Updates() {
		if s := u.Source(); slices.Contains(l.declared, s) && l.v.Get(s) == nil && pathOf(u) == paths[s] {
			l.v = l.v.With(u)
		}
	}
	for _, b := range l.bundles {
		b.settle.note(now)
	}
	l.conds.Open("last-known-good", "", "running from the last known good view of "+l.lastGood.Saved.Format(time.RFC3339))
	l.log.Warn("running from last known good", "saved", l.lastGood.Saved, "missing", sourceList(l.missing()))
}

// checkReady tells once that the first useful state is reached.
func (l *loop) checkReady(now time.Time) {
	if l.isReady {
		return
	}
	switch {
	case l.complete || l.cached:
		for _, b := range l.bundles {
			if b.err == nil && !b.applied && l.eligible(b) {
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

// eligible reports whether the bundle may be rendered: from a whole view at
// first, later when its own sources are known (a source that was declared by a
// reload does not hold up the others).
func (l *loop) eligible(b *bundle) bool {
	if b.err != nil || l.stopping || (b.former != nil && b.former.inFlight) {
		return false
	}
	if !l.complete && !l.cached {
		return false
	}
	return l.v.Has(b.sources...)
}

// startDue launches the bundles that are due. All that begin for one view
// announce their reloads before the first of them starts.
func (l *loop) startDue(ctx context.Context, now time.Time) time.Duration {
	wait := idleWait
	var begin []*bundle
	for _, name := range slices.Sorted(maps.Keys(l.bundles)) {
		b := l.bundles[name]
		if b.inFlight || !l.eligible(b) {
			continue
		}
		due, pending := b.retryAt, !b.retryAt.IsZero()
		if b.settle.pending() && (!pending || b.settle.due().Before(due)) {
			due, pending = b.settle.due(), true
		}
		if !pending {
			continue
		}
		if d := due.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		begin = append(begin, b)
	}
	for _, b := range begin {
		if key := b.reloadKey(); key != "" {
			l.reloads.join(key)
		}
	}
	for _, b := range begin {
		l.launch(ctx, b, applyView)
	}
	return wait
}

// launch starts one apply of the bundle.
func (l *loop) launch(ctx context.Context, b *bundle, mode applyMode) {
	job := applyJob{bundle: b, view: l.v, old: b.seen, first: !b.applied, force: b.force || !b.retryAt.IsZero(), mode: mode}
	if mode == applyView {
		b.settle.take()
		b.force, b.retryAt = false, time.Time{}
		job.key = b.reloadKey()
		if !l.complete {
			job.mode = applyCached
		}
		job.owed = l.owed.has(b.cfg.Name)
	}
	if b.former != nil {
		// The former bundle of this name is idle: what it wrote is ours now.
		b.work.written, b.former = b.former.work.written, nil
	}
	b.inFlight = true
	l.dirty = true
	l.applies.Go(func() {
		r := l.applier.apply(ctx, job)
		select {
		case l.results <- r:
		case <-l.done:
		}
	})
}

// result takes in how an apply ended.
func (l *loop) result(r applyResult) {
	b := r.bundle
	b.inFlight = false
	l.dirty = true
	if l.bundles[b.cfg.Name] != b {
		return // replaced by a reload of the settings.
	}
	if r.mode == applyDrift {
		if r.drifted {
			b.force = true
			b.settle.note(time.Now())
		}
		return
	}
	b.applied, b.seen = true, r.view
	if l.applier.record(b, r) {
		l.publish() // Who sees the condition finds what it tells of in the status.
		l.dirty = true
	}
	l.applier.tell(b, r)
	if r.err == nil {
		b.failures = 0
		return
	}
	b.failures++
	if r.retry {
		b.retryAt = time.Now().Add(backoff(b.failures, r.retryFirst, 5*time.Minute))
	}
}

// publish makes the state readable from outside.
func (l *loop) publish() {
	l.dirty = false
	s := &snapshot{
		view: l.v, declared: l.declared, live: maps.Clone(l.live), complete: l.complete, cached: l.cached,
		busy: map[view.Source]bool{}, bundles: map[string]bundleReport{}, sources: map[string][]view.Source{},
		at: time.Now(), next: make(chan struct{}),
	}
	for name, b := range l.bundles {
		s.bundles[name], s.sources[name] = b.report, b.sources
		s.order = append(s.order, name)
		if b.err == nil && (b.inFlight || b.settle.pending()) {
			for _, src := range b.sources {
				s.busy[src] = true
			}
		}
	}
	slices.Sort(s.order)
	if old := l.snapshot.Swap(s); old != nil {
		close(old.next)
	}
	l.changed()
}

// set replaces the bundles after settings were loaded. Bundles keep what they
// know about their files under their names.
func (l *loop) set(declared []view.Source, bundles []*bundle) {
	old := l.bundles
	l.declared, l.isSet = declared, true
	l.bundles = map[string]*bundle{}
	now := time.Now()
	for _, b := range bundles {
		if o := old[b.cfg.Name]; o != nil {
			b.report, b.former = o.report, o
		}
		b.force = true
		b.settle.note(now)
		l.bundles[b.cfg.Name] = b
	}
	for _, s := range l.v.Sources() {
		if !slices.Contains(declared, s) {
			l.v = l.v.Without(s)
			delete(l.live, s)
		}
	}
	if l.complete {
		if m := l.missing(); m != nil {
			l.conds.Open("waiting-for-sources", "", "waiting for "+sourceList(m))
		}
	}
}
