package files

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// The journal of a change is one small file in the state directory. It exists
// from before the first rename until no reload is pending any more:
//
//	swap      the renames have begun. All files new: the change was made; its
//	          check and its reload are pending. Otherwise it is undone from the
//	          links to the old files, or their copies; no program has read
//	          the new ones.
//	restore   the old files are being put back, and a reload is pending.
//
// The old file of a rename is kept by a link beside it. The old bytes of a
// file that is written in place are kept by a copy in the state directory,
// since the directory of such a file can be read-only.
//
// Order, for a crash of the host: new files and copies are durable before the
// journal, the journal before the first rename or write in place, renames
// before the change counts as made. One exception: the journal of one renamed
// file is made durable only where [TxConfig.Durable] asks for it, since the
// file is whole either way. Links need no sync of their own: a file system
// keeps the order of the changes in one directory.
type phase string

const (
	phaseSwap    phase = "swap"
	phaseRestore phase = "restore"
)

// entry is a file of a change, as a journal keeps it.
type entry struct {
	File    File       `json:"file"`
	Dir     string     `json:"dir"`
	Base    string     `json:"base"`               // name in Dir; of the target, when the destination is a link
	Temp    string     `json:"temp,omitempty"`     // name in Dir; empty: nothing was written
	Prev    string     `json:"prev,omitempty"`     // name of a link to the old file, or of a copy; empty: none
	PrevDir string     `json:"prev_dir,omitempty"` // empty: Dir
	New     string     `json:"new,omitempty"`      // digest; empty: removed
	Old     string     `json:"old,omitempty"`      // digest; empty: absent
	Attr    attributes `json:"attributes"`
	OldAttr attributes `json:"old_attributes"`
}

type journalFile struct {
	Bundle string  `json:"bundle"`
	Phase  phase   `json:"phase"`
	Files  []entry `json:"files"`
}

// journalExt ends the names of journals; what ends otherwise is unfinished.
const journalExt = ".journal"

func journalName(bundle string) string { return url.PathEscape(bundle) + journalExt }

// journal writes the journal of the change, replacing the previous one.
func (tx *Tx) journal(p phase) error {
	if tx.cfg.StateDir == "" {
		return nil
	}
	j := journalFile{Bundle: tx.cfg.Bundle, Phase: p}
	durable := tx.cfg.Durable
	for _, s := range tx.changed() {
		j.Files = append(j.Files, s.entry)
		durable = durable || s.inPlace() || len(j.Files) > 1
	}
	data, err := json.Marshal(j)
	if err == nil {
		tx.phase = p // Before it is written: after an error it may exist all the same.
		tx.durable = durable
		err = tx.cfg.FS.replace(filepath.Join(tx.cfg.StateDir, journalName(tx.cfg.Bundle)), data, durable)
	}
	if err != nil {
		return fmt.Errorf("write the journal of bundle %s: %w", tx.cfg.Bundle, err)
	}
	return nil
}

// forget removes the journal: no reload is pending.
func (tx *Tx) forget() error {
	if tx.cfg.StateDir == "" || tx.phase == "" {
		return nil
	}
	name := filepath.Join(tx.cfg.StateDir, journalName(tx.cfg.Bundle))
	err := tx.cfg.FS.do("remove", name, func() error { return os.Remove(name) })
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = nil
		if tx.durable { // A journal that comes back after a crash of the host would undo later changes.
			err = tx.cfg.inStateDir((*directory).sync)
		}
	}
	if err != nil {
		return fmt.Errorf("remove the journal of bundle %s: %w", tx.cfg.Bundle, err)
	}
	tx.phase = ""
	return nil
}

// readJournals returns the journals in the state directory by their paths, and
// an error for each that cannot be read.
func readJournals(stateDir string) (map[string]journalFile, map[string]error) {
	journals, failed := map[string]journalFile{}, map[string]error{}
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed[stateDir] = err
	}
	for _, entry := range entries {
		name := filepath.Join(stateDir, entry.Name())
		if filepath.Ext(name) != journalExt {
			continue
		}
		j, err := readJournal(name)
		if err != nil {
			failed[name] = err
			continue
		}
		journals[name] = j
	}
	return journals, failed
}

func readJournal(name string) (journalFile, error) {
	var j journalFile
	data, err := readOwn(name)
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(data, &j); err != nil {
		return j, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return j, nil
}

// journaled returns the paths of the files that journals need.
func journaled(stateDir string) map[string]bool {
	needed := map[string]bool{}
	if stateDir == "" {
		return needed
	}
	journals, _ := readJournals(stateDir)
	for _, j := range journals {
		for _, e := range j.Files {
			needed[filepath.Join(cmp.Or(e.PrevDir, e.Dir), e.Prev)] = true // Without a name it is the directory, which is no file.
			needed[filepath.Join(e.Dir, e.Temp)] = true
		}
	}
	return needed
}

// Recovered is a change that a killed process left, put right: either all of
// its new files are in place or all of the old ones.
//
// The caller owns the change from here on, as the process that began it did:
//
//	New      run the check of files in place and the reload, then Tx.Commit;
//	         where one fails, Tx.Restore, the reload of the old files, Tx.Commit
//	not New  run the reload if Reload says so, then Tx.Commit
//
// A caller that cannot do this now calls Tx.Keep: the next Recover returns the
// change again.
type Recovered struct {
	New    bool // the new files are in place; no check of them in place is known to have passed
	Reload bool // a program may have read the new files
	Tx     *Tx
}

// errDamaged: a journal that is no JSON.
var errDamaged = errors.New("the journal is damaged")

// Recover finishes the change of a bundle that has a journal in the state directory;
// false: it has none. Call it before anything of the bundle is staged, and after a Swap
// that failed with [ErrPending]. With an error (a full disk) the journal and the kept files
// stay, and Recover can be called again.
func Recover(cfg TxConfig) (Recovered, bool, error) {
	if !Pending(cfg.StateDir, cfg.Bundle) {
		return Recovered{}, false, nil
	}
	name := filepath.Join(cfg.StateDir, journalName(cfg.Bundle))
	j, err := readJournal(name)
	if err != nil {
		return Recovered{}, false, journalError(name, err)
	}
	tx := &Tx{cfg: cfg, phase: j.Phase, durable: true}
	r, err := tx.recover(j)
	if err != nil {
		tx.Keep()
		return Recovered{}, false, journalError(name, err)
	}
	return r, true, nil
}

func journalError(name string, err error) error {
	return fmt.Errorf("recover by journal %s: %w", name, err)
}

// Unfinished returns the bundles that have a journal in the state directory. It moves
// damaged journals away, and removes copies of old files that no journal needs. So it is
// called before anything is staged. The error is about journals that cannot be read.
func Unfinished(cfg TxConfig) ([]string, error) {
	journals, failed := readJournals(cfg.StateDir)
	var list []string
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(journals)) {
		list = append(list, journals[name].Bundle)
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		err := failed[name]
		if errors.Is(err, errDamaged) {
			// Journals appear by a rename, so something else damaged this one.
			// It cannot help any more, and must not stop the agent.
			err = errors.Join(err, os.Rename(name, name+".damaged"))
		}
		errs = append(errs, journalError(name, err))
	}
	return list, errors.Join(append(errs, cfg.inStateDir(func(d *directory) error {
		return d.sweep(func(string) bool { return true }, journaled(cfg.StateDir))
	}))...)
}

// inStateDir calls fn with the state directory, if there is one.
func (cfg TxConfig) inStateDir(fn func(d *directory) error) error {
	d, err := openDirectory(cfg.FS, cfg.StateDir, SymlinkFollow)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	return fn(d)
}

// recover makes the files all new or all old.
func (tx *Tx) recover(j journalFile) (Recovered, error) {
	allNew := true
	for _, e := range j.Files {
		s, state, err := reopen(tx.cfg.FS, e)
		if err != nil {
			return Recovered{}, err
		}
		if s != nil {
			tx.staged = append(tx.staged, s)
		}
		allNew = allNew && state != stateOld
	}
	r := Recovered{New: allNew && j.Phase == phaseSwap, Tx: tx}
	r.Reload = r.New || j.Phase == phaseRestore
	if r.New {
		return r, settle(tx.staged)
	}
	if err := tx.restoreAll(tx.staged); err != nil {
		return r, err
	}
	for _, s := range tx.staged {
		if s.Temp != "" {
			_ = s.dir.remove(s.Temp) // A power loss may have brought it back.
		}
	}
	return r, nil
}

// fileState is what a file of a journal is now.
type fileState int

const (
	stateNew   fileState = iota
	stateOld             // not swapped, or put back
	stateOther           // changed by something else since: left alone
)

// reopen makes the staged file of a journal entry again; nil when its directory went away
// with it.
func reopen(fsys *FS, e entry) (*Staged, fileState, error) {
	e.File.FS = fsys
	dir, err := openDirectory(fsys, e.Dir, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, stateOther, nil
	}
	if err != nil {
		return nil, stateOther, err
	}
	s := &Staged{entry: e, dir: dir, undo: dir, changed: true}
	s.unsettled = !s.inPlace()
	state, err := s.look()
	if err != nil {
		s.close()
	}
	return s, state, err
}

// look finds out what is in place, and what is kept.
func (s *Staged) look() (fileState, error) {
	if s.PrevDir != "" {
		undo, err := openDirectory(s.File.FS, s.PrevDir, SymlinkFollow)
		if err != nil {
			return stateOther, err
		}
		s.undo = undo
	}
	if err := s.findKept(); err != nil {
		return stateOther, err
	}
	state, err := s.state()
	if err != nil {
		return stateOther, err
	}
	if state == stateOld && s.Temp != "" {
		_ = s.dir.remove(s.Temp)
	}
	s.swapped = state == stateNew
	if s.inPlace() && state == stateOther && s.Prev != "" {
		// A write in place was cut: the file is a mixture.
		s.swapped, state = true, stateOld
	}
	return state, nil
}

// findKept looks whether the kept old file is there.
func (s *Staged) findKept() error {
	if s.Prev == "" {
		return nil
	}
	old, _, err := s.undo.digest(s.Prev, s.File.maxSize())
	switch {
	case err == nil && old != s.Old && s.undo == s.dir && s.dir.same(s.Prev, s.Base):
		// Not swapped, and a hand wrote through both names: nothing is kept here.
		err = s.dir.remove(s.Prev)
	case err == nil && (old == s.Old || s.undo == s.dir):
		// A hand may have written through both names before the swap: what it
		// wrote is the old file.
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrNotRegular):
		err = nil
	}
	s.Prev = ""
	return err
}

// state compares what is in place with the two states of the change.
func (s *Staged) state() (fileState, error) {
	now, _, err := s.dir.digest(s.Base, s.File.maxSize())
	if errors.Is(err, fs.ErrNotExist) {
		now, err = "", nil
	}
	if err != nil {
		return stateOther, err
	}
	// The bytes can be equal where only mode or owner change: the staged
	// file shows whether it was renamed.
	staged := false
	if s.Temp != "" {
		_, err := s.dir.lstat(s.Temp)
		staged = err == nil
	}
	switch {
	case now == s.New && !staged:
		return stateNew, nil
	case now == s.Old || staged:
		return stateOld, nil
	}
	return stateOther, nil
}

// Pending reports whether the state directory has a journal of the bundle: a
// change that could not be put right, whose kept files are still needed.
func Pending(stateDir, bundle string) bool {
	if stateDir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(stateDir, journalName(bundle)))
	return err == nil
}
