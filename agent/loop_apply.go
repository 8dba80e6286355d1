package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

// eligible reports whether the bundle may be rendered: from a whole view at
// first, later when its own sources are known (a source that was declared by a
// reload does not hold up the others).
func (l *loop) eligible(b *bundle) bool {
	if b.Err != nil || l.stopping || (b.previous != nil && b.previous.inFlight) {
		return false
	}
	if !l.complete && !l.cached {
		return false
	}
	if b.previous == nil && !b.applied && len(l.leaving) > 0 {
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
	jobs := lists.Map(begin, l.job)
	l.a.engine.Join(jobs...)
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
	b.inTurn, b.turnDue = b.turnDue, false
	for _, s := range b.Sources {
		b.inTurn, job.Back = b.inTurn || l.granted[s] != noTurn, job.Back || l.granted[s] == turnBack
	}
	b.settle.Take()
	b.force, b.retryAt, b.reload = false, time.Time{}, false
	return job
}

func (l *loop) launch(ctx context.Context, b *bundle, job apply.Job) {
	if b.previous != nil {
		// The previous bundle of this name is idle: what it wrote is ours now.
		b.Inherit(b.previous.Bundle)
		b.previous = nil
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
		r := applied{b, l.a.engine.Run(ctx, job)}
		keep := l.renderOf(&job, &r.Result)
		select {
		case l.results <- r:
		case <-l.done:
		}
		keep() // The loop does not wait for the disk.
	})
}

func (l *loop) result(r applied) {
	b := r.bundle
	b.inFlight = false
	b.replaced()
	b.grant()
	delete(l.leaving, b)
	l.dirty = l.dirty || r.Mode != apply.ModeDrift || r.Drifted
	if l.bundles[b.Config.Name] != b { // replaced by a reload of the settings.
		if l.bundles[b.Config.Name] == nil {
			l.a.engine.Forget(b.Bundle)
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
		l.announcePendingReload(b)
		if r.Err == nil { // The version that was refused stays refused.
			b.failures = 0
			return
		}
		r.ReloadOnly = true
		l.retry(b, &r.Result)
		return
	}
	b.applied, b.seen = true, r.View
	turned := b.record(&r.Result)
	if r.Err != nil || r.Mode == apply.ModeCached {
		b.since = time.Time{}
	} else if b.good = r.View; b.since.IsZero() {
		b.since = r.View.At
	}
	shown := b.shownBundle // The snapshots to come know the report.
	l.shown = slices.Clone(l.shown)
	l.shown[slices.Index(l.sorted, b)] = &shown
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

// record takes the result of an apply into the bundle's report, and says
// whether the bundle has failed or no longer does.
func (b *bundle) record(r *apply.Result) bool {
	was := b.report.Err
	b.report.LastApply, b.report.Took = time.Now(), view.Seconds(r.Took)
	b.report.Stage, b.report.Err = r.Stage, r.Err
	if r.Err == nil { // what is refused is not in use.
		b.report.Version = command.ConfigVersion(r.View, b.Sources)
	}
	if r.Changed > 0 {
		b.report.LastChange = b.report.LastApply
	} else if b.report.LastChange.IsZero() {
		b.report.LastChange = r.Since
	}
	switch {
	case r.Kept():
		b.report.State = "kept"
	case r.Err != nil:
		b.report.State = "failed"
	default:
		b.report.State, b.report.Files = "ok", r.Files
	}
	return r.Err != nil || was != nil
}

// announce takes the result of an apply into the open conditions, the events and
// the log.
func (l *loop) announce(b *bundle, r *apply.Result) {
	name := b.Config.Name
	l.a.conds.Set(condition.TemplateFailed, name, r.Failure())
	l.a.conds.Set(condition.GroupEmpty, name, r.Empty())
	l.a.conds.Set(condition.KeyMissing, name, r.MissingKey())
	switch {
	case r.Kept():
		l.a.events.Add(event.Event{Kind: "kept", Subject: name, Text: r.Err.Error(), Warn: true})
		l.a.log.Warn("file kept", "template", name, "err", r.Err)
	case r.Err != nil:
		l.a.events.Add(event.Event{Kind: "apply-failed", Subject: name, Text: r.Err.Error(), Warn: true})
		l.a.log.Error("apply failed", "template", name, "stage", r.Stage, "took", r.Took, "err", r.Err)
	case r.Changed > 0:
		text := term.Count(r.Changed, "file") + " changed"
		if b.report.Version != "" {
			text += ", version " + b.report.Version
		}
		l.a.events.Add(event.Event{Kind: "applied", Subject: name, Text: text})
		l.a.log.Info("applied", "template", name, "files", r.Changed, "version", b.report.Version, "took", r.Took)
	}
	l.announcePendingReload(b)
}

// announcePendingReload opens or closes the condition of a reload that is pending.
func (l *loop) announcePendingReload(b *bundle) {
	name, text := b.Config.Name, ""
	if r := b.Config.Reload; r == nil || r.Leader == "" {
		text = l.a.engine.PendingText(name)
	}
	l.a.conds.Open(condition.ReloadPending, name, text)
}

func sourceList(sources []view.Source) string {
	names := lists.Map(sources, view.Source.String)
	return strings.Join(names, ", ")
}

// pathOf is the znode of a state.
func pathOf(u view.Update) string {
	switch u := u.(type) {
	case *view.Tree:
		return u.Path
	case *view.Group:
		return u.Path
	case *view.Groups:
		return u.Path
	case *view.Leader:
		return u.Path
	}
	return ""
}
