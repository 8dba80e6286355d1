package agent

import (
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// record takes the result of an apply into the bundle's report, and says
// whether the bundle has failed or no longer does.
func (a *applier) record(b *bundle, r applyResult) bool {
	was := b.report.Err
	b.report.LastApply, b.report.Took = time.Now(), r.took
	b.report.Stage, b.report.Err = r.stage, r.err
	b.report.Version = command.ConfigVersion(r.view, b.sources)
	if r.changed > 0 {
		b.report.LastChange = b.report.LastApply
	}
	switch {
	case r.kept():
		b.report.State = "kept"
		return true
	case r.err != nil:
		b.report.State = "failed"
		return true
	}
	b.report.State = "ok"
	b.report.Files = b.report.Files[:0:0]
	for _, o := range b.work.outputs {
		b.report.Files = append(b.report.Files, o.dest)
	}
	return was != nil
}

// kept reports whether the files stay as they are because a group is empty, which
// is what the settings want then.
func (r *applyResult) kept() bool { return errors.Is(r.err, template.ErrEmptyGroup) }

// failure is the error of an apply that went wrong.
func (r *applyResult) failure() error {
	if r.kept() {
		return nil
	}
	return r.err
}

// stagedName is the name of a file before it takes the place of its destination.
var stagedName = regexp.MustCompile(`\.([^/\s:"]+)\.zkagent-new-[A-Z2-7]+`)

// plainError is an error whose text names destinations: a staged file is called
// otherwise at each try, and is not what whoever reads it knows.
type plainError struct {
	error
	text string
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() error { return e.error }

// plain makes the text of an error name destinations.
func plain(err error) error {
	if err == nil || !stagedName.MatchString(err.Error()) {
		return err
	}
	return &plainError{err, stagedName.ReplaceAllString(err.Error(), "$1")}
}

// tell takes the result of an apply into the open conditions, the events and
// the log.
func (a *applier) tell(b *bundle, r applyResult) {
	name := b.cfg.Name
	a.conds.Set("template-failed", name, r.failure())
	if !r.kept() {
		a.conds.Close("group-empty", name)
	}
	switch {
	case r.kept():
		a.conds.Open("group-empty", name, r.err.Error())
		a.events.Add(event.Event{Kind: "kept", Subject: name, Text: r.err.Error(), Warn: true})
		a.log.Warn("file kept", "template", name, "err", r.err)
	case r.err != nil:
		a.events.Add(event.Event{Kind: "apply-failed", Subject: name, Text: r.err.Error(), Warn: true})
		a.log.Error("apply failed", "template", name, "stage", r.stage, "took", r.took, "err", r.err)
	case r.changed > 0:
		a.events.Add(event.Event{Kind: "applied", Subject: name, Text: appliedText(r.changed, b.report.Version)})
		a.log.Info("applied", "template", name, "files", r.changed, "version", b.report.Version, "took", r.took)
	}
	if a.owed.has(name) && (b.cfg.Reload == nil || b.cfg.Reload.Leader == "") {
		a.conds.Open("reload-owed", name, "the files are in place, the reload has not succeeded yet")
	} else {
		a.conds.Close("reload-owed", name)
	}
}

// appliedText says what an apply did; the version is that of the config.
func appliedText(changed int, version string) string {
	text := plural(changed, "file") + " changed"
	if version != "" {
		text += ", version " + version
	}
	return text
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
