package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

type output struct {
	Output

	each *template.Each // nil without for_each
	new  bool           // rendered in this apply, with other bytes than before
}

func (o *output) eachKey() string {
	if o.each == nil {
		return ""
	}
	return o.each.Key
}

func outputKey(template int, each string) string { return fmt.Sprintf("%d\x00%s", template, each) }

// render executes the templates whose inputs changed, and takes the others
// from the apply before.
func (t *applying) render(ctx context.Context) error {
	b := t.job.Bundle
	elements, err := t.job.elements()
	if err != nil {
		return fail(stageRender, 0, err)
	}
	next := make(map[string]*output, len(elements)*len(b.templates))
	taken := map[string]string{}
	for i, tmpl := range b.templates {
		stale := b.outputs == nil || tmpl.tmpl.Stale(&b.rendered, &t.job.View)
		for _, e := range elements {
			o, err := t.one(ctx, i, tmpl, e, stale)
			if err != nil {
				return fail(stageRender, 0, err)
			}
			if other, dup := taken[o.Destination]; dup {
				return fail(stageRender, 0, fmt.Errorf("%s and %s have the same destination %s", other, o.label(), o.Destination))
			}
			taken[o.Destination] = o.label()
			next[outputKey(i, o.eachKey())] = o
			t.outputs = append(t.outputs, o)
		}
	}
	// Only a for_each has files that are no longer wanted: the destination of a plain template
	// that was renamed is left alone. A file above or below a wanted one stays, because the
	// wanted one cannot take its place in one step.
	if b.Config.ForEach != nil && t.job.Mode == ModeView {
		t.loadRecord()
		dirs := t.directories()
		for dest := range b.written {
			if taken[dest] == "" && !dirs[dest] && !below(dest, taken) {
				t.gone = append(t.gone, dest)
			}
		}
	}
	b.outputs, b.rendered = next, t.job.View
	return nil
}

func (o *output) label() string {
	if o.each == nil {
		return "template " + o.Config.Name
	}
	return fmt.Sprintf("template %s for %q", o.Config.Name, o.each.Key)
}

// elements are the elements of for_each; one nil without it. Those whose key can be no
// part of a file name are left out, so that who writes one key does not keep the files
// of the others from changing.
func (j *Job) elements() ([]*template.Each, error) {
	c := &j.Bundle.Config
	all, err := c.elements(&j.View)
	return slices.DeleteFunc(all, func(e *template.Each) bool { return c.checkKey(e) != nil }), err
}

func (c *Config) elements(v *view.View) ([]*template.Each, error) {
	if c.ForEach == nil {
		return []*template.Each{nil}, nil
	}
	list, err := template.Elements(v, *c.ForEach)
	if err != nil {
		return nil, err
	}
	elements := make([]*template.Each, len(list))
	for i := range list {
		elements[i] = &list[i]
	}
	return elements, nil
}

// LeftOut says which elements of for_each have no file, because their keys can be no part
// of a file name; nil: all have one.
func (c *Config) LeftOut(v *view.View) error {
	var first error
	more := 0
	all, _ := c.elements(v)
	for _, e := range all {
		switch err := c.checkKey(e); {
		case err != nil && first == nil:
			first = err
		case err != nil:
			more++
		}
	}
	if more == 0 {
		return first
	}
	return fmt.Errorf("%w; and %d more", first, more)
}

// checkKey returns why one of the templates cannot have a file for an element; nil: all
// can.
func (c *Config) checkKey(e *template.Each) error {
	for i := range c.Templates {
		if err := c.Templates[i].checkKey(e); err != nil {
			return err
		}
	}
	return nil
}

// one renders one template for one element, or takes what is known.
func (t *applying) one(ctx context.Context, i int, tmpl *file, e *template.Each, stale bool) (*output, error) {
	o := &output{Output: Output{Config: &tmpl.cfg}, each: e}
	known := t.job.Bundle.outputs[outputKey(i, o.eachKey())]
	if known != nil && !stale && e.Equal(known.each) {
		o.Destination, o.Data = known.Destination, known.Data
		return o, nil
	}
	var err error
	if o.Destination, err = tmpl.cfg.Path(o.each); err != nil {
		return nil, err
	}
	o.Data, err = tmpl.tmpl.Render(ctx, &t.job.View, e)
	if err != nil {
		t.Observer.Rendered(t.name, "failed")
		return nil, err
	}
	t.Observer.Rendered(t.name, "ok")
	o.new = known == nil || known.Destination != o.Destination || string(known.Data) != string(o.Data)
	return o, nil
}

// below reports whether the path is below another one of the list.
func below(path string, list map[string]string) bool {
	for path != "/" {
		if path = filepath.Dir(path); list[path] != "" {
			return true
		}
	}
	return false
}

// directories are those of the outputs whose keys hold slashes: no other key can have a file
// there.
func (t *applying) directories() map[string]bool {
	dirs := map[string]bool{}
	for _, o := range t.outputs {
		for dir := filepath.Dir(o.Destination); o.Config.AllowSubdirs && !dirs[dir]; dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	return dirs
}

// stage stages what may differ from the disk. A check judges the whole bundle, as a vote
// does: a hand may have spoiled a file that this change leaves as it was.
func (t *applying) stage() error {
	b := t.job.Bundle
	t.loadRecord()
	t.taken = map[string]string{}
	look := t.job.First || t.job.Force || t.job.pendingReload || b.look // whatever is believed to be there
	var list []files.Content
	var staged []*output
	var unreachable error
	whole := look || t.checkAt() != ""
	dirs := t.directories()
	for _, o := range t.outputs {
		if !whole && !o.new && !b.taken[o.Destination] {
			continue
		}
		// In cached mode the file may be newer than the view that was kept.
		cached := false
		if t.job.Mode == ModeCached {
			_, err := files.Look(t.file(o))
			cached = !errors.Is(err, fs.ErrNotExist)
		}
		if cached || t.leftAlone(o) {
			b.seen = true
			continue
		}
		if t.foreign(o, dirs[o.Destination]) {
			continue
		}
		f := t.file(o)
		w, known := b.written[o.Destination]
		if known && !look {
			f.Known = &w
		}
		later, err := t.reach(o, f, known)
		switch {
		case err != nil && b.Config.ForEach == nil:
			return fail(stageStage, time.Second, err)
		case err != nil: // Who writes one key does not keep the files of the others from changing.
			t.taken[o.Destination], unreachable = err.Error(), err
		case !later:
			list = append(list, files.Content{File: f, Data: o.Data})
			staged = append(staged, o)
		}
	}
	list, staged = t.whole(list, staged)
	if len(t.taken) == len(t.outputs) && unreachable != nil {
		return fail(stageStage, time.Second, unreachable)
	}
	all, err := t.tx.StageAll(list)
	if err != nil {
		return fail(stageStage, time.Second, err)
	}
	for _, s := range all {
		b.seen = b.seen || s.Existed()
	}
	t.staged = staged
	for _, dest := range t.gone {
		if err := t.stageRemoval(dest); err != nil {
			return err
		}
	}
	return nil
}

// whole leaves out the other files of an element that has one that must not be taken: the
// files of an element change together or not at all.
func (t *applying) whole(list []files.Content, staged []*output) ([]files.Content, []*output) {
	left := map[string]bool{} // by key
	for _, o := range t.outputs {
		left[o.eachKey()] = left[o.eachKey()] || t.taken[o.Destination] != ""
	}
	var l []files.Content
	var s []*output
	for i, o := range staged {
		if left[o.eachKey()] {
			t.taken[o.Destination] = "another file of its key cannot be there"
			continue
		}
		l, s = append(l, list[i]), append(s, o)
	}
	return l, s
}

// reach makes the directories of a file, if the settings ask for that, and returns why the
// file cannot be there. later: the swap will make the directories of a dry run.
func (t *applying) reach(o *output, f files.File, known bool) (later bool, err error) { //nolint:nonamedreturns // says what the bool is.
	if o.Config.CreateDirs && t.dry {
		after, isNew, err := files.AfterMakeDirs(f, o.Data)
		if isNew && err == nil {
			t.later = append(t.later, laterFile{after, o})
		}
		return isNew, err
	}
	if o.Config.CreateDirs {
		made, err := files.MakeDirs(f)
		t.made = append(made, t.made...)
		if err != nil {
			return false, err
		}
	}
	if t.job.Bundle.Config.ForEach != nil && !known {
		_, err = files.Examine(f)
	}
	return false, err
}

// stageRemoval removes a file that is no longer wanted, unless something else
// changed it.
func (t *applying) stageRemoval(dest string) error {
	mine, err := t.tx.Remove(files.File{Destination: dest, Symlink: files.SymlinkRefuse}, t.job.Bundle.written[dest].Digest)
	if err != nil {
		return fail(stageStage, time.Second, err)
	}
	if !mine {
		delete(t.job.Bundle.written, dest)
		t.Events.Add(event.Event{Kind: "file-kept", Subject: t.name, Text: dest + " is no longer wanted, but something else changed it", Warn: true})
		t.Log.Warn("kept a file that the template no longer wants: something else changed it", "template", t.name, "file", dest)
	}
	return nil
}

// leftAlone reports whether a hand has edited the file and the settings say
// that this is to be reported, not repaired. New content replaces it.
func (t *applying) leftAlone(o *output) bool {
	w, ok := t.job.Bundle.written[o.Destination]
	if !ok || o.Config.Drift != driftReport || w.Digest != files.Digest(o.Data) {
		return false
	}
	d, err := w.Drift(t.file(o))
	return err == nil && d != files.DriftNone && d != files.DriftMissing
}

func (e *Engine) file(o *output) files.File {
	f := o.Config.at(o.Destination)
	f.FS = e.FS
	return f
}

// remember records what is in place now, for drift and for removals. After a
// cached apply nothing is known about files that were left alone.
func (t *applying) remember() {
	t.job.Bundle.look, t.job.Bundle.seen = false, t.job.Bundle.seen || len(t.staged) > 0
	w := t.job.Bundle.written
	for i, s := range t.tx.Files() {
		if i >= len(t.staged) {
			break // removals come last.
		}
		if rec, err := s.Written(); err == nil {
			if o := t.staged[i]; o.Config.CreateDirs {
				rec.Dirs = strings.Count(o.eachKey(), "/")
			}
			w[s.Destination()] = rec
		}
	}
	for _, dest := range t.gone {
		dirs := w[dest].Dirs
		delete(w, dest)
		for range dirs {
			dest = filepath.Dir(dest)
			t.empty = append(t.empty, dest)
		}
	}
	// The next process has a use for it: to remove files, and to leave edited ones alone.
	c := t.job.Bundle.Config
	reports := slices.ContainsFunc(c.Templates, func(t FileConfig) bool { return t.Drift == driftReport })
	if t.StateDir == "" || !t.tx.Changed() || c.ForEach == nil && !reports {
		return
	}
	if err := t.saveWritten(w, t.FS.Note); err != nil { // After a crash of the host everything is compared anew.
		t.Log.Warn("cannot save the record of written files", "template", t.name, "err", err)
	}
}

// loadRecord reads, once, what a previous process wrote.
func (t *applying) loadRecord() {
	if b := t.job.Bundle; b.written == nil {
		b.written = t.loadWritten(t.StateDir, t.name)
	}
}

// loadWritten reads a record in a state directory; nothing when it cannot.
func (e *Engine) loadWritten(stateDir, bundle string) map[string]files.Written {
	w := map[string]files.Written{}
	if stateDir == "" {
		return w
	}
	if err := files.LoadJSON(files.StateFile(stateDir, "files", bundle), &w); err != nil {
		e.Log.Warn("cannot read which files were written", "err", err)
		w = nil
	}
	if w == nil { // also of null
		w = map[string]files.Written{}
	}
	return w
}

// saveWritten keeps a record for the next process.
func (t *applying) saveWritten(list map[string]files.Written, save func(path string, data []byte) error) error {
	maps.Copy(list, t.job.Bundle.written)
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return save(files.StateFile(t.StateDir, "files", t.name), data)
}
