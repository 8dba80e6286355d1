package agent

import (
	"context"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/view"
)

// eligible reports whether the bundle may be rendered: from a whole view at
// first, later when its own sources are known (a source that was declared by a
// reload does not hold up the others).
func (l *loop) eligible(b *bundle) bool {
	if b.Err != nil || l.stopping || (b.former != nil && b.former.inFlight) {
		return false
	}
	if !l.complete && !l.cached {
		return false
	}
	if b.former == nil && !b.applied && len(l.leaving) > 0 {
		return false // It may write the same files under another name.
	}
	return l.v.Has(b.Sources...)
}

// startDue launches the bundles that are due. All that begin for one view
// announce their reloads before the first of them starts.
func (l *loop) startDue(ctx context.Context, now time.Time) time.Duration {
	wait := idleWait
	var begin []*bundle
	for _, b := range l.sorted {
		due, pending := b.retryAt, !b.retryAt.IsZero()
		if b.settle.Pending() && (!pending || b.settle.Due().Before(due)) {
			due, pending = b.settle.Due(), true
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
	jobs := make([]*apply.Job, len(begin))
	for i, b := range begin {
		jobs[i] = l.job(b)
	}
	l.engine.Join(jobs...)
	for i, b := range begin {
		l.launch(ctx, b, *jobs[i])
	}
	return wait
}

// job is the next apply of the bundle. What is pending is taken into it.
func (l *loop) job(b *bundle) *apply.Job {
	job := &apply.Job{Bundle: b.Bundle, View: l.v, Old: b.seen, First: !b.applied, Force: b.force || !b.retryAt.IsZero()}
	if b.reload && !b.settle.Pending() && !b.force {
		job.Mode = apply.ModeReload
	} else if !l.complete {
		job.Mode = apply.ModeCached
	}
	in, back := l.inTurn(b)
	b.inTurn, b.turnDue, job.Back = in || b.turnDue, false, back
	b.settle.Take()
	b.force, b.retryAt, b.reload = false, time.Time{}, false
	return job
}

// launch starts one apply of the bundle.
func (l *loop) launch(ctx context.Context, b *bundle, job apply.Job) {
	if b.former != nil {
		// The former bundle of this name is idle: what it wrote is ours now.
		b.Inherit(b.former.Bundle)
		b.former = nil
	}
	b.inFlight, b.drifting = true, job.Mode == apply.ModeDrift
	job.Replaced, b.replaced = context.WithCancel(ctx)
	job.Granted, b.grant = context.WithCancel(context.WithoutCancel(ctx))
	if b.inTurn {
		b.grant()
	}
	job.Newest = func() view.View { return *l.newest.Load() }
	l.dirty = l.dirty || !b.drifting // a look at the disk changes nothing for readers
	l.applies.Go(func() {
		r := applied{b, l.engine.Run(ctx, job)}
		keep := l.renderOf(&job, &r.Result)
		select {
		case l.results <- r:
		case <-l.done:
		}
		keep() // The loop does not wait for the disk.
	})
}

// note makes the report of a bundle known to the snapshots to come.
func (l *loop) note(b *bundle) {
	shown := b.shownBundle
	l.shown = slices.Clone(l.shown)
	l.shown[slices.Index(l.sorted, b)] = &shown
}

// result takes in how an apply ended.
func (l *loop) result(r applied) {
	b := r.bundle
	b.inFlight = false
	b.replaced()
	b.grant()
	delete(l.leaving, b)
	l.dirty = l.dirty || r.Mode != apply.ModeDrift || r.Drifted
	if l.bundles[b.Config.Name] != b { // replaced by a reload of the settings.
		if l.bundles[b.Config.Name] == nil {
			l.engine.Forget(b.Bundle)
		}
		return
	}
	if r.Mode == apply.ModeDrift {
		if r.Drifted {
			b.force, b.turnDue = true, false
			b.settle.Note(time.Now())
		}
		return
	}
	if r.Mode == apply.ModeReload {
		l.reloaded(b, &r.Result)
		return
	}
	b.applied, b.seen = true, r.View
	turned := b.record(&r.Result)
	l.note(b)
	if turned {
		l.publish() // A reader of the condition finds its cause in the status.
		l.dirty = true
	}
	l.announce(b, &r.Result)
	if r.Failure() == nil { // What an empty group keeps as it is changes with the group.
		b.failures = 0
		return
	}
	l.retry(b, &r.Result)
}

// retry notes when a failed apply is tried again, and how.
func (l *loop) retry(b *bundle, r *apply.Result) {
	b.failures++
	if r.Retry > 0 {
		b.retryAt, b.reload = time.Now().Add(pace.Backoff(b.failures, r.Retry, 5*time.Minute)), r.ReloadOnly
		b.turnDue = b.turnDue || b.inTurn && !b.settle.Pending()
	}
}

// reloaded takes in how the reload of restored files ended. The version that
// was refused stays refused.
func (l *loop) reloaded(b *bundle, r *apply.Result) {
	l.announceOwed(b)
	if r.Err != nil {
		r.ReloadOnly = true
		l.retry(b, r)
		return
	}
	b.failures = 0
}
