package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
)

// Something else changes a file of ours: a person, a tool, another agent. The file is
// written again at once. A program that writes the file again and again would have the
// agent write and reload forever. So after a few repairs in a row they wait, and a
// condition says so.

const (
	repairsAtOnce = 3                // in a row
	firstWait     = time.Minute      // before the next one; it doubles
	lastWait      = 30 * time.Minute // and after as long without a change the row ends
)

// contest is a file that something else has changed.
type contest struct {
	repairs int
	last    time.Time // when something else's change was seen last
	next    time.Time // no repair before
}

// drifted looks whether something else changed the files of a bundle, and
// reports whether they are to be repaired.
func (e *Engine) drifted(b *Bundle) bool {
	defer watch(e.Conds, "a look at the files of", b.Config.Name)()
	repair := false
	opened := func(dest, text string) {
		e.Conds.Open(condition.Drift, dest, text)
		b.drifting[dest] = true
	}
	// The settings have another destination, or the key of for_each is gone.
	list, _ := b.files()
	e.closeExcept(b.drifting, condition.Drift, list)
	for _, o := range b.outputs {
		w, ok := b.written[o.Destination]
		if !ok {
			continue
		}
		d, err := w.Drift(e.file(o))
		if err != nil {
			opened(o.Destination, err.Error())
			continue
		}
		b.written[o.Destination] = w
		if d == files.DriftNone {
			if !b.contested(o.Destination) {
				e.Conds.Close(condition.Drift, o.Destination)
				delete(b.drifting, o.Destination)
			}
			continue
		}
		if o.Config.Drift == driftReport {
			opened(o.Destination, "changed by something else: "+string(d))
			continue
		}
		now := b.mayRepair(o.Destination)
		if b.contested(o.Destination) {
			opened(o.Destination, "another program writes this file again and again, such as a second agent: repairs wait for up to "+lastWait.String())
		}
		if !now {
			continue
		}
		e.Events.Add(event.Event{Kind: "drift-repaired", Subject: o.Destination, Text: "changed by something else: " + string(d), Warn: true})
		e.Log.Warn("something else changed the file", "template", b.Config.Name, "file", o.Destination, "drift", string(d))
		repair = true
	}
	return repair
}

// slowAfter is how long a call on files may take before a condition opens.
const slowAfter = time.Minute

// watch opens a condition when a call on files takes too long, as on a network disk that
// hangs. The result ends the watch.
func watch(conds *condition.Set, what, subject string) func() {
	opened := make(chan struct{})
	timer := time.AfterFunc(slowAfter, func() {
		defer close(opened)
		conds.Open(condition.FilesStuck, subject, what+" "+subject+" has not ended after "+slowAfter.String())
	})
	return func() {
		if !timer.Stop() {
			<-opened
			conds.Close(condition.FilesStuck, subject)
		}
	}
}

// Forget closes the conditions about files of a bundle that the settings no longer
// have. Its applies have ended.
func (e *Engine) Forget(b *Bundle) {
	e.closeExcept(b.drifting, condition.Drift, nil)
	e.closeExcept(b.taken, condition.DestinationTaken, nil)
}

// closeExcept closes the conditions that are open for files, but for those in keep.
func (e *Engine) closeExcept(open map[string]bool, kind *condition.Kind, keep []string) {
	kept := map[string]bool{}
	for _, dest := range keep {
		kept[dest] = true
	}
	maps.DeleteFunc(open, func(dest string, _ bool) bool {
		if !kept[dest] {
			e.Conds.Close(kind, dest)
		}
		return !kept[dest]
	})
}

// mayRepair notes that something else has changed a file, and reports whether it is to
// be written again now.
func (b *Bundle) mayRepair(dest string) bool {
	c, now := b.contests[dest], time.Now()
	if c == nil {
		c = &contest{}
		b.contests[dest] = c
	}
	c.last = now
	if now.Before(c.next) {
		return false
	}
	if c.repairs++; c.repairs >= repairsAtOnce {
		c.next = now.Add(pace.Backoff(c.repairs-repairsAtOnce+1, firstWait, lastWait))
	}
	return true
}

// contested reports whether something else keeps changing a file, and forgets one that
// has long been left alone.
func (b *Bundle) contested(dest string) bool {
	c := b.contests[dest]
	if c == nil || time.Since(c.last) > lastWait {
		delete(b.contests, dest)
		return false
	}
	return c.repairs >= repairsAtOnce
}

// The keys of a for_each, and so the names of its files, come from znodes. A key
// must not take a file that another writer made:
//
//   - a file that no record says the agent wrote stays as it is, and is never
//     removed (condition destination-taken); adopt = true takes it over
//   - the record is durable before the first rename, so a killed process does
//     not forget its own files; it counts only for the bytes that were meant
//     until the file was seen in place
//   - a file with the rendered bytes is fine, and still not ours to remove
//
// A template without for_each names its file in the settings, and takes it.

// foreign reports whether the file of an output is somebody else's, or is to be a directory
// of other outputs. It is then left alone.
func (t *applying) foreign(o *output, directory bool) bool {
	b := t.job.Bundle
	if b.Config.ForEach == nil {
		return false
	}
	if t.keeps(o.Destination) {
		t.taken[o.Destination] = "the agent keeps its own files in this directory; rename the key"
		return true
	}
	if o.Config.Adopt {
		return false
	}
	w, recorded := b.written[o.Destination]
	if recorded && w.Inode != 0 {
		return false
	}
	now, _, err := files.Read(t.file(o))
	if errors.Is(err, fs.ErrNotExist) && !directory {
		return false
	}
	if err == nil {
		if recorded && w.Digest == files.Digest(now) || t.otherCommandWrote(t.name, o.Destination) {
			return false
		}
		if bytes.Equal(now, o.Data) {
			return true
		}
	}
	t.taken[o.Destination] = t.takenBy(o.Destination)
	return true
}

// otherCommandWrote reports whether `zkagent render` wrote the file, or for it the
// agent.
func (e *Engine) otherCommandWrote(bundle, dest string) bool {
	if e.StateDir == "" {
		return false
	}
	other := filepath.Join(e.StateDir, renderDir)
	if filepath.Base(e.StateDir) == renderDir {
		other = filepath.Dir(e.StateDir)
	}
	_, ok := e.loadWritten(other, bundle)[dest]
	return ok
}

// keeps reports whether a file is in the state directory of the agent.
func (e *Engine) keeps(dest string) bool {
	dir := e.StateDir
	if filepath.Base(dir) == renderDir {
		dir = filepath.Dir(dir)
	}
	linked, _ := filepath.EvalSymlinks(dir)
	return dir != "" && strings.HasPrefix(dest, dir+"/") || linked != "" && strings.HasPrefix(dest, linked+"/")
}

func (t *applying) takenBy(dest string) string {
	within := func(path, dir string) bool {
		return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
	}
	clash := func(path string) bool { return within(path, dest) || within(dest, path) }
	for _, o := range t.outputs {
		if clash(o.Destination) {
			return fmt.Sprintf("cannot be there together with %s of the key %q: rename one of the two keys", o.Destination, o.eachKey())
		}
	}
	old := ""
	for path := range t.job.Bundle.written {
		if clash(path) && (old == "" || path < old) {
			old = path
		}
	}
	if old != "" {
		return "needs the place of " + old + ", the file of an earlier key, which stays: remove this key, and add it again in a later change"
	}
	return "something else wrote this file, and a key of for_each must not take it; move it away, or set adopt = true in the template"
}

// takenError is the error of the doors that open no condition; nil: no
// destination is taken.
func (t *applying) takenError() error {
	if len(t.taken) == 0 {
		return nil
	}
	var err error
	for _, dest := range slices.Sorted(maps.Keys(t.taken)) {
		err = errors.Join(err, fmt.Errorf("%s: %s", dest, t.taken[dest]))
	}
	return fail(stageStage, 0, err)
}

// claim notes the files that a swap is about to make.
func (t *applying) claim() error {
	b := t.job.Bundle
	if b.Config.ForEach == nil || t.StateDir == "" {
		return nil
	}
	list := map[string]files.Written{}
	for i, s := range t.tx.Files()[:len(t.staged)] {
		dest := t.staged[i].Destination
		if _, ok := b.written[dest]; !ok && s.Changed() {
			list[dest] = files.Written{Path: dest, Digest: s.New}
		}
	}
	if len(list) == 0 {
		return nil
	}
	if err := t.saveWritten(list, t.FS.Save); err != nil {
		return fmt.Errorf("note the files to be written: %w", err)
	}
	return nil
}
