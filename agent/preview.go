package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/view"
)

// Bounds of what a preview shows.
const (
	diffMaxFile  = 256 << 10 // bytes of a file that is compared on the page
	diffMaxLines = 400
)

// Preview renders a bundle from the present view, changes nothing, and
// compares with the files in place. The page shows no file that its own mode hides
// from other users.
func (a *Agent) Preview(ctx context.Context, name string) ([]web.FileDiff, error) {
	snap := a.loop.snapshot.Load()
	b := snap.bundle(name)
	if b == nil {
		return nil, hook.ErrUnknownName
	}
	if b.Err != nil {
		return nil, b.Err
	}
	if missing := snap.view.Missing(b.Sources...); len(missing) > 0 {
		return nil, fmt.Errorf("waiting for %s", sourceList(missing))
	}
	outputs, gone, err := a.engine.Preview(ctx, b.Bundle, snap.view)
	if err != nil {
		return nil, err
	}
	select {
	case a.comparing <- struct{}{}:
	case <-ctx.Done():
		return nil, errComparing
	}
	compared := make(chan []web.FileDiff, 1)
	go func() {
		defer func() { <-a.comparing }()
		var diffs []web.FileDiff
		for _, o := range outputs {
			if d, differs := compareFile(o); differs {
				diffs = append(diffs, d)
			}
		}
		for _, dest := range gone {
			diffs = append(diffs, web.FileDiff{Path: dest, Note: "no longer wanted: it will be removed"})
		}
		compared <- diffs
	}()
	select {
	case diffs := <-compared:
		return diffs, nil
	case <-ctx.Done():
		return nil, errComparing
	}
}

// errComparing means that the disk takes long, or hangs.
var errComparing = errors.New("the files in place cannot be read in time")

func compareFile(o apply.Output) (web.FileDiff, bool) {
	d := web.FileDiff{Path: o.Destination}
	noted := func(note string) (web.FileDiff, bool) {
		d.Note = note
		return d, true
	}
	hidden := o.Config.Mode != 0 && o.Config.Mode&0o004 == 0 || web.ClosedDir(d.Path)
	here := *o.Config
	here.Symlink = files.SymlinkRefuse // The mode of a link says nothing about its target.
	old, info, err := here.Present(o.Destination)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if hidden {
			return noted(fmt.Sprintf("new file of %d bytes; the page shows only files that everybody may read", len(o.Data)))
		}
		return withLines(d, nil, o.Data), true
	case err != nil:
		return noted(err.Error())
	case info.Size() > diffMaxFile:
		return noted("too large to compare here")
	case string(old) == string(o.Data):
		return d, false
	case hidden || info.Mode()&0o004 == 0:
		return noted("differs; the page shows only files that everybody may read: \"zkagent render --diff\" shows it")
	}
	return withLines(d, old, o.Data), true
}

func withLines(d web.FileDiff, old, next []byte) web.FileDiff {
	if len(next) > diffMaxFile {
		d.Note = "too large to compare here"
		return d
	}
	if !utf8.Valid(old) || !utf8.Valid(next) {
		d.Note = "differs; not text"
		return d
	}
	text := string(diff.Diff("in place", old, "rendered now", next))
	d.Lines = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(d.Lines) > 0 && strings.HasPrefix(d.Lines[0], "diff ") {
		d.Lines = d.Lines[1:]
	}
	if len(d.Lines) > diffMaxLines {
		d.Note = fmt.Sprintf("%d further lines are not shown", len(d.Lines)-diffMaxLines)
		d.Lines = d.Lines[:diffMaxLines]
	}
	return d
}

// Plan implements fleet.Planner: it is Vote that also reports which files the version
// would change, by how many lines, and what would be reloaded.
func (m *configTree) Plan(ctx context.Context, tree *view.Tree, diff bool) ([]fleet.FileChange, error) {
	diff = diff && m.agent.cfg.Load().ShareDiffs
	var files []fleet.FileChange
	err := m.judge(ctx, tree, func(ctx context.Context, b *apply.Bundle, v view.View) error {
		changes, err := m.agent.engine.Plan(ctx, b, v)
		for _, c := range changes {
			f := fileChange(c, diff)
			if r := b.Config.Reload; r != nil && r.Command.Set() {
				f.Reload = r.Command.Text
			}
			files = append(files, f)
		}
		return err
	})
	return files, err
}

func fileChange(c apply.Output, diff bool) fleet.FileChange {
	f := fleet.FileChange{Path: c.Destination}
	var old []byte
	if c.Config != nil {
		old, _, _ = c.Config.Present(c.Destination) // What cannot be read has no lines.
	}
	f.Added, f.Removed = apply.Lines(old, c.Data)
	if c.Gone {
		f.Digest = fleet.DigestGone
		return f
	}
	sum := sha256.Sum256(c.Data)
	f.Digest = hex.EncodeToString(sum[:8])
	if diff {
		d, _ := compareFile(c)
		f.Diff = strings.Join(d.Lines, "\n")
	}
	return f
}

// Blame implements web.Source: it executes the templates of the files once more, on
// the present view.
func (a shown) Blame(ctx context.Context, q blame.Query) ([]*blame.File, error) {
	snap := a.loop.snapshot.Load()
	var bundles []*apply.Bundle
	for _, shown := range snap.bundles {
		b := shown.Bundle
		if missing := snap.view.Missing(b.Sources...); b.Err == nil && len(missing) > 0 {
			b = b.Failed(fmt.Errorf("%s waits for %s", b.Config.Name, sourceList(missing)))
		}
		bundles = append(bundles, b)
	}
	s, why := a.Session(ctx)
	return blame.Answer(ctx, bundles, snap.view, s, why, q)
}
