package files

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

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
	return list, errors.Join(append(errs, sweepCopies(cfg))...)
}

func sweepCopies(cfg TxConfig) error {
	d, err := openDirectory(cfg.FS, cfg.StateDir, SymlinkFollow)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	return d.sweep(func(string) bool { return true }, journaled(cfg.StateDir))
}

// recover makes the files all new or all old.
func (tx *Tx) recover(j journalFile) (Recovered, error) {
	allNew := true
	for _, e := range j.Files {
		s, state, err := reopen(tx.cfg.FS, e)
		if err != nil {
			return Recovered{}, err
		}
		tx.staged = append(tx.staged, s)
		allNew = allNew && state != stateOld
	}
	r := Recovered{New: allNew && j.Phase == phaseSwap, Tx: tx}
	r.Reload = r.New || j.Phase == phaseRestore
	if r.New {
		return r, settleAll(tx.changed())
	}
	if err := tx.restoreAll(tx.staged); err != nil {
		return r, err
	}
	for _, s := range tx.staged {
		if s.temp != "" && s.dir != nil {
			_ = s.dir.remove(s.temp) // A power loss may have brought it back.
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

// reopen makes the staged file of a journal entry again.
func reopen(fsys *FS, e entry) (*Staged, fileState, error) {
	file := File{Destination: e.File.Destination, InPlace: e.File.InPlace, Backup: e.Backup, MaxSize: e.MaxSize, FS: fsys}
	dir, err := openDirectory(fsys, e.Dir, "")
	if errors.Is(err, fs.ErrNotExist) { // The directory went away with its files.
		return &Staged{file: file}, stateOther, nil
	}
	if err != nil {
		return nil, stateOther, err
	}
	s := &Staged{
		file: file, dir: dir, undo: dir, base: e.Base, temp: e.Temp, existed: e.Old != "", remove: e.New == "", changed: true,
		sum: e.New, oldSum: e.Old, oldAttr: attributes{mode: fs.FileMode(e.OldMode), uid: e.OldUID, gid: e.OldGID},
		attr: attributes{mode: fs.FileMode(e.Mode), uid: -1, gid: -1},
	}
	state, err := s.look(fsys, e)
	if err != nil {
		s.close()
	}
	return s, state, err
}

// look finds out what is in place, and what is kept.
func (s *Staged) look(fsys *FS, e entry) (fileState, error) {
	if e.PrevDir != "" {
		undo, err := openDirectory(fsys, e.PrevDir, SymlinkFollow)
		if err != nil {
			return stateOther, err
		}
		s.undo = undo
	}
	if e.Prev != "" {
		old, _, err := s.undo.read(e.Prev, s.file.maxSize())
		switch {
		case err == nil && Digest(old) != e.Old && s.undo == s.dir && s.dir.same(e.Prev, s.base):
			// Not swapped, and a hand wrote through both names: nothing is kept here.
			if err := s.dir.remove(e.Prev); err != nil {
				return stateOther, err
			}
		case err == nil && (Digest(old) == e.Old || s.undo == s.dir):
			// A hand may have written through both names before the swap: what it
			// wrote is the old file.
			s.old, s.prev = old, e.Prev
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotRegular):
			return stateOther, err
		}
	}
	state, err := s.stateOf(e)
	if err != nil {
		return stateOther, err
	}
	if state == stateOld && e.Temp != "" {
		_ = s.dir.remove(e.Temp)
	}
	s.swapped = state == stateNew
	if e.File.InPlace && state == stateOther && s.prev != "" {
		// A write in place was cut: the file is a mixture.
		s.swapped, state = true, stateOld
	}
	return state, nil
}

func (s *Staged) stateOf(e entry) (fileState, error) {
	now, _, err := s.dir.read(s.base, s.file.maxSize())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return stateOther, err
	}
	digest := ""
	if err == nil {
		digest = Digest(now)
	}
	// The bytes can be equal where only mode or owner change: the staged
	// file shows whether it was renamed.
	staged := false
	if e.Temp != "" {
		_, err := s.dir.lstat(e.Temp)
		staged = err == nil
	}
	switch {
	case digest == e.New && !staged:
		s.data = now
		return stateNew, nil
	case digest == e.Old || staged:
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
