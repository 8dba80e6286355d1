package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
)

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

// foreign reports whether the file of an output is somebody else's. It is then
// left alone.
func (t *applying) foreign(o *output) bool {
	b := t.job.Bundle
	if b.Config.ForEach == nil || o.Config.Adopt {
		return false
	}
	w, recorded := b.written[o.Destination]
	if recorded && w.Inode != 0 {
		return false
	}
	now, _, err := files.Read(t.file(o))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		if recorded && w.Holds(now) || t.otherDoorWrote(t.name, o.Destination) {
			return false
		}
		if bytes.Equal(now, o.Data) {
			return true
		}
	}
	t.taken = append(t.taken, o.Destination)
	return true
}

// otherDoorWrote reports whether `zkagent render` wrote the file, or for it the
// agent.
func (e *Engine) otherDoorWrote(bundle, dest string) bool {
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

// reportTaken opens a condition for each destination that is taken, and closes
// those that no longer are.
func (t *applying) reportTaken() {
	t.closeExcept(t.job.Bundle.taken, condition.DestinationTaken, t.taken)
	for _, dest := range t.taken {
		t.Conds.Open(condition.DestinationTaken, dest, fmt.Sprintf("template %s wants a file that something else wrote", t.name))
		t.job.Bundle.taken[dest] = true
	}
}

// takenError is the error of the doors that open no condition; nil: no
// destination is taken.
func (t *applying) takenError() error {
	if len(t.taken) == 0 {
		return nil
	}
	return fail(stageStage, 0, fmt.Errorf("%s: something else wrote this file, and a key of for_each must not take it; "+
		"move it away, or set adopt = true in the template", strings.Join(t.taken, ", ")))
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
			list[dest] = files.Written{Path: dest, Digest: files.Digest(s.Data())}
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
