package agent

import (
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

// record takes the result of an apply into the bundle's report, and says
// whether the bundle has failed or no longer does.
func (b *bundle) record(r *apply.Result) bool {
	was := b.report.Err
	b.report.LastApply, b.report.Took = time.Now(), r.Took
	b.report.Stage, b.report.Err = r.Stage, r.Err
	if r.Err == nil { // what is refused is not in use.
		b.report.Version = command.ConfigVersion(r.View, b.Sources)
	}
	if r.Changed > 0 {
		b.report.LastChange = b.report.LastApply
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
	l.conds.Set(condition.TemplateFailed, name, r.Failure())
	l.conds.Set(condition.GroupEmpty, name, r.Empty())
	l.conds.Set(condition.KeyMissing, name, r.MissingKey())
	switch {
	case r.Kept():
		l.events.Add(event.Event{Kind: "kept", Subject: name, Text: r.Err.Error(), Warn: true})
		l.log.Warn("file kept", "template", name, "err", r.Err)
	case r.Err != nil:
		l.events.Add(event.Event{Kind: "apply-failed", Subject: name, Text: r.Err.Error(), Warn: true})
		l.log.Error("apply failed", "template", name, "stage", r.Stage, "took", r.Took, "err", r.Err)
	case r.Changed > 0:
		text := term.Count(r.Changed, "file") + " changed"
		if b.report.Version != "" {
			text += ", version " + b.report.Version
		}
		l.events.Add(event.Event{Kind: "applied", Subject: name, Text: text})
		l.log.Info("applied", "template", name, "files", r.Changed, "version", b.report.Version, "took", r.Took)
	}
	l.announceOwed(b)
}

// announceOwed opens or closes the condition of a reload that is owed.
func (l *loop) announceOwed(b *bundle) {
	name, text := b.Config.Name, ""
	switch {
	case l.engine.OwedSince(name).IsZero() || b.Config.Reload != nil && b.Config.Reload.Leader != "":
	case l.engine.OwesRestored(name):
		text = "the new files were taken back, and the reload after that has not succeeded yet"
	default:
		text = "the new files are in place, and their reload has not succeeded yet"
	}
	l.conds.SetText(condition.ReloadOwed, name, text)
}

// sourceList names sources for messages.
func sourceList(sources []view.Source) string {
	names := make([]string, len(sources))
	for i, s := range sources {
		names[i] = s.String()
	}
	return strings.Join(names, ", ")
}

// pathOf is the znode of a state; empty for what has none.
func pathOf(u view.Update) string {
	switch u := u.(type) {
	case *view.Tree:
		return u.Path
	case *view.Group:
		return u.Path
	case *view.Groups:
		return u.Path
	}
	return ""
}
