package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Recovered is a change that a killed process left, put right: either all of
// its new files are in place or all of the old ones. The reload that is owed
// is to be run, then Tx.Commit called; where it fails, Tx.Restore puts the old
// files back (it does nothing when they already are).
type Recovered struct {
	Bundle string
	// New says that the new files are in place, not the old ones. They may
	// not have passed their check after the swap.
	New bool
	// Reload says that a reload may be owed.
	Reload bool
	Owed   json.RawMessage // of TxConfig
	Tx     *Tx
}

// Recover finishes what the journals in the state directory tell. Call it
// before anything is staged. A change that cannot be put right (a full disk)
// is an error, and its journal stays; the others are returned all the same.
func Recover(stateDir string) ([]Recovered, error) {
	names, err := filepath.Glob(filepath.Join(stateDir, "*"+journalExt))
	if err != nil {
		return nil, fmt.Errorf("look for journals in %s: %w", stateDir, err)
	}
	var list []Recovered
	var errs []error
	for _, name := range names {
		r, err := recoverOne(stateDir, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("recover by journal %s: %w", name, err))
			continue
		}
		list = append(list, r)
	}
	return list, errors.Join(errs...)
}

func recoverOne(stateDir, name string) (Recovered, error) {
	data, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return Recovered{}, err
	}
	var j journalFile
	if err := json.Unmarshal(data, &j); err != nil {
		// Journals appear by a rename, so this one was damaged by others or
		// by the disk. It cannot help any more, and must not stop the agent.
		return Recovered{}, errors.Join(err, os.Rename(name, name+".damaged"))
	}
	tx := &Tx{cfg: TxConfig{Bundle: j.Bundle, StateDir: stateDir, Owed: j.Owed}, phase: j.Phase}
	r := Recovered{Bundle: j.Bundle, Owed: j.Owed, Tx: tx}
	allNew := true
	for _, e := range j.Files {
		s, state, err := reopen(e)
		if err != nil {
			tx.Keep()
			return r, err
		}
		tx.staged = append(tx.staged, s)
		allNew = allNew && state != stateOld
	}
	r.New = allNew && j.Phase == phaseSwap
	r.Reload = r.New || j.Phase == phaseRestore
	if r.New {
		tx.onlyWhole()
		return r, settleAll(tx.changed())
	}
	if err := restoreAll(tx.staged); err != nil {
		tx.Keep()
		return r, err
	}
	return r, nil
}

// onlyWhole gives up restoring when a commit had begun to remove the links to
// the old files: some alone would be a mixture.
func (tx *Tx) onlyWhole() {
	for _, s := range tx.staged {
		if s.existed && s.prev == "" {
			for _, s := range tx.staged {
				s.swapped = false
			}
			return
		}
	}
}

// fileState is what a file of a journal is now.
type fileState int

const (
	stateNew   fileState = iota
	stateOld             // not swapped, or put back
	stateOther           // changed by something else since: left alone
)

// reopen makes the staged file of a journal entry again, as far as it is
// needed to restore or commit it.
func reopen(e entry) (*Staged, fileState, error) {
	file := File{Destination: e.File.Destination, InPlace: e.File.InPlace}
	dir, err := openDirectory(nil, e.Dir)
	if errors.Is(err, fs.ErrNotExist) { // The directory went away with its files.
		return &Staged{file: file}, stateOther, nil
	}
	if err != nil {
		return nil, stateOther, err
	}
	s := &Staged{
		file: file, dir: dir, base: e.Base, temp: e.Temp, existed: e.Old != "", remove: e.New == "", changed: true,
		oldAttr: attributes{mode: fs.FileMode(e.OldMode), uid: e.OldUID, gid: e.OldGID},
	}
	if e.Prev != "" {
		if s.old, err = dir.root.ReadFile(e.Prev); err == nil {
			s.prev = e.Prev
		}
	}
	state, err := s.stateOf(e)
	if err != nil {
		dir.close()
		return nil, stateOther, err
	}
	if state == stateOld && e.Temp != "" {
		_ = dir.root.Remove(e.Temp)
	}
	s.swapped = state == stateNew && (s.prev != "" || !s.existed)
	if e.File.InPlace && state != stateOld && s.prev != "" {
		// A write in place may have been cut: it is neither new nor old.
		s.swapped = true
		if state == stateOther {
			state = stateOld
		}
	}
	return s, state, nil
}

func (s *Staged) stateOf(e entry) (fileState, error) {
	now, err := s.dir.root.ReadFile(s.base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return stateOther, err
	}
	digest := ""
	if err == nil {
		digest = Digest(now)
	}
	// The bytes can be equal where only mode or owner change: the staged
	// file tells whether it was renamed.
	_, statErr := s.dir.root.Lstat(e.Temp)
	staged := e.Temp != "" && statErr == nil
	switch {
	case digest == e.New && !staged:
		return stateNew, nil
	case digest == e.Old || staged:
		return stateOld, nil
	}
	return stateOther, nil
}

// Damaged returns the journals in the state directory that could not be read
// and were put aside.
func Damaged(stateDir string) []string {
	names, _ := filepath.Glob(filepath.Join(stateDir, "*"+journalExt+".damaged"))
	return names
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
