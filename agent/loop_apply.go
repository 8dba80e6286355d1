package agent

import (
	"context"
	"maps"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
)

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
	for _, b := range l.sorted {
		due, pending := b.retryAt, !b.retryAt.IsZero()
		if b.settle.pending() && (!pending || b.settle.due().Before(due)) {
			due, pending = b.settle.due(), true
		}
		if !pending || b.inFlight || !l.eligible(b) {
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
	b.inFlight, b.drifting = true, mode == applyDrift
	l.dirty = l.dirty || !b.drifting // whoever reads is not told of a look at the disk
	l.applies.Go(func() {
		r := l.applier.apply(ctx, job)
		select {
		case l.results <- r:
		case <-l.done:
		}
	})
}

// note makes the report of a bundle known to the snapshots to come.
func (l *loop) note(b *bundle) {
	report, old := b.report, l.reports[b.cfg.Name]
	if report.State != old.State || report.Version != old.Version {
		l.turns++
	}
	l.reports = maps.Clone(l.reports)
	l.reports[b.cfg.Name] = &report
}

// result takes in how an apply ended.
func (l *loop) result(r applyResult) {
	b := r.bundle
	b.inFlight = false
	l.dirty = l.dirty || r.mode != applyDrift || r.drifted
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
	turned := l.applier.record(b, r)
	l.note(b)
	if turned {
		l.publish() // Who sees the condition finds what it tells of in the status.
		l.dirty = true
	}
	l.applier.tell(b, r)
	if r.failure() == nil { // What an empty group keeps as it is changes with the group.
		b.failures = 0
		return
	}
	b.failures++
	if r.retry {
		b.retryAt = time.Now().Add(pace.Backoff(b.failures, r.retryFirst, 5*time.Minute))
	}
}
