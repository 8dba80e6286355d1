package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// renderDir is the state directory of Once, below that of the agent.
const renderDir = "render"

// Output is one file as a bundle renders it now.
type Output struct {
	Destination string
	Config      *FileConfig
	Data        []byte
	Gone        bool // an apply removes the file; it has no Config and no Data
}

// Try renders and checks a bundle for a vote, and leaves no trace. [ErrCheckNotRun] says
// that all is well but for a check that has not run: it cannot run before the swap, or an
// empty group keeps the files as they are.
func (e *Engine) Try(ctx context.Context, b *Bundle, v view.View) error {
	_, err := e.Plan(ctx, b, v)
	return err
}

// Plan is Try that also returns the files that would change.
func (e *Engine) Plan(ctx context.Context, b *Bundle, v view.View) ([]Output, error) {
	if err := e.recovery(ctx, b.Config.Name); err != nil {
		return nil, err // Its sweep would take away what is staged here.
	}
	t := e.fresh(b, v)
	if err := t.render(ctx); err != nil {
		switch {
		case !errors.Is(err, template.ErrEmptyGroup):
		case t.checkAt() != "": // It has not seen the file that comes when the group has members.
			err = fmt.Errorf("%w: %w", ErrCheckNotRun, err)
		default:
			return nil, nil
		}
		return nil, err
	}
	t.dry = t.checkAt() != atStaged // A staged check gets files beside the destinations.
	t.tx = files.Begin(files.TxConfig{Bundle: files.Name("vote-" + b.Config.Name), StateDir: e.journalDir(), DryRun: t.dry, FS: e.FS})
	err := t.stage()
	if err == nil {
		err = t.takenError()
	}
	var changes []Output
	if err == nil && (t.tx.Changed() || len(t.later) > 0) {
		changes = t.changes()
		t.job.key = b.reloadKey() // It belongs to the content.
		if t.attempts.refused(t.name, t.content) {
			err = errAttempts // as an apply of it
		} else if err = t.check(ctx, false); t.withoutPreview(err) || err == nil && t.at == atSwapped {
			err = fmt.Errorf("%w: it needs the new files in place", ErrCheckNotRun)
		}
	}
	err = errors.Join(err, t.tx.Discard())
	files.RemoveDirs(t.made)
	return changes, plain(err)
}

// wrote are the files of an apply that has succeeded.
func (t *applying) wrote(err error) []Output {
	switch {
	case err != nil || t.tx == nil:
		return nil
	case t.job.First && t.job.Mode == ModeView:
		return t.rendered()
	case t.changed == 0:
		return nil
	}
	return t.changes()
}

// changes are the staged files that differ from those in place.
func (t *applying) changes() []Output {
	var list []Output
	for i, s := range t.tx.Files() {
		switch {
		case !s.Changed():
		case i < len(t.staged):
			list = append(list, t.staged[i].Output)
		default: // Removals come last.
			list = append(list, Output{Destination: s.Destination(), Gone: true})
		}
	}
	for _, f := range t.later {
		list = append(list, f.Output)
	}
	return list
}

// PostCheck runs the post_check of a bundle's rolling reload, if it has one: a
// turn of a rollout, which needs no permit, ends with it.
func (e *Engine) PostCheck(ctx context.Context, b *Bundle, v view.View) error {
	return e.fresh(b, v).postCheck(ctx)
}

// Preview renders a bundle, and touches nothing. It also returns the files that would
// be removed.
func (e *Engine) Preview(ctx context.Context, b *Bundle, v view.View) ([]Output, []string, error) {
	o := e.Options
	o.Observer = nobody{}
	t := (&Engine{Options: o}).fresh(b, v)
	if err := t.render(ctx); err != nil {
		return nil, nil, err
	}
	return t.rendered(), t.gone, nil
}

func (t *applying) rendered() []Output {
	return lists.Map(t.outputs, func(o *output) Output { return o.Output })
}

// Once renders, stages, checks and swaps a bundle, and reloads nothing. It
// returns the files that changed, also with an error after the swap.
//
// The program that does this runs beside the agent. So its journal stands in a
// directory of its own, and one such program at a time uses it.
func (e *Engine) Once(ctx context.Context, b *Bundle, v view.View) ([]string, error) {
	o := e.Options
	o.StateDir, o.Observer = "", nobody{}
	if err := files.CheckOwn(e.StateDir); err != nil {
		return nil, err
	}
	if dir := filepath.Join(e.StateDir, renderDir); e.StateDir != "" && files.MakeOwn(dir) == nil {
		lock, err := proc.Lock(ctx, filepath.Join(dir, "lock"), nil)
		if err != nil {
			return nil, fmt.Errorf("wait for another render: %w", err)
		}
		defer func() { _ = lock.Close() }()
		o.StateDir = dir
	}
	own := New(o)
	own.Recover([]Config{b.Config})
	defer own.Close()
	t := own.fresh(b, v)
	err := plain(errors.Join(t.run(ctx), t.takenError()))
	var written []string
	if t.changed > 0 {
		for _, s := range t.tx.Files() {
			if s.Changed() {
				written = append(written, s.Destination())
			}
		}
	}
	return written, err
}

// fresh is an apply as if the bundle had not been applied before.
func (e *Engine) fresh(b *Bundle, v view.View) *applying {
	return &applying{Engine: e, name: b.Config.Name, job: Job{Bundle: b.fresh(), View: v, Old: v, First: true, Force: true}}
}

// Lines counts the lines that only one of the texts has. It does not count a line
// that has moved.
func Lines(old, now []byte) (added, removed int) { //nolint:nonamedreturns // two numbers need names
	count := map[string]int{}
	for line := range bytes.Lines(now) {
		count[string(bytes.TrimSuffix(line, []byte("\n")))]++
	}
	for line := range bytes.Lines(old) {
		count[string(bytes.TrimSuffix(line, []byte("\n")))]--
	}
	for _, n := range count {
		added, removed = added+max(n, 0), removed+max(-n, 0)
	}
	return added, removed
}

// Blamed is one file with where each byte of it came from.
type Blamed struct {
	*template.Blame

	Destination string
	Config      *FileConfig
	Template    string // path of the template file, or its name
}

// Blame renders the files of a bundle that match, says where each byte of them
// comes from, and touches nothing. An element of for_each that makes another
// file is not executed.
func (b *parsed) Blame(ctx context.Context, v view.View, match func(destination string, cfg *FileConfig) bool, missing string) ([]Blamed, error) {
	job := Job{Bundle: b.fresh(), View: v}
	elements, err := job.elements()
	if err != nil {
		return nil, err
	}
	var list []Blamed
	for _, f := range b.templates {
		for _, e := range elements {
			dest, err := f.cfg.Path(e)
			if err != nil {
				return nil, err
			}
			if !match(dest, &f.cfg) {
				continue
			}
			o := template.BlameOptions{Each: e, Missing: missing}
			if b.Config.ForEach != nil {
				o.ForEach = *b.Config.ForEach
			}
			blame, err := f.tmpl.Blame(ctx, &v, o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", dest, err)
			}
			list = append(list, Blamed{blame, dest, &f.cfg, f.tmpl.Name()})
		}
	}
	return list, nil
}

// Makes reports whether the bundle may make a file that a user named, before the
// elements of its for_each are known.
func (b *parsed) Makes(name, path string) bool {
	match := b.Match(name, path)
	for _, f := range b.templates {
		dest := ""
		if b.Config.ForEach == nil {
			dest, _ = f.cfg.Path(nil)
		}
		if match(dest, &f.cfg) {
			return true
		}
	}
	return false
}

// Writes reports whether the path is the destination of a template of the bundle, or
// of an element of its for_each, as far as the record says which files were written.
func (e *Engine) Writes(b *Bundle, path string) bool {
	if b.Config.ForEach != nil {
		_, ok := e.loadWritten(e.StateDir, b.Config.Name)[path]
		return ok
	}
	return slices.ContainsFunc(b.templates, func(f *file) bool {
		dest, err := f.cfg.Path(nil)
		return err == nil && dest == path
	})
}

// Match returns what chooses the files of a bundle by a name that a user gave: the
// name of the bundle or of one of its templates, or the path of the file or of the
// template. path is the name in the working directory of the user, as an absolute path.
func (b *parsed) Match(name, path string) func(destination string, cfg *FileConfig) bool {
	return func(destination string, cfg *FileConfig) bool {
		return destination == path || cfg.Source == path || name == b.Config.Name || name == cfg.Name || name == b.Config.Name+"/"+cfg.Name
	}
}
