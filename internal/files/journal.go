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

type entry struct {
	File    fileEntry `json:"file"`
	Dir     string    `json:"dir"`
	Base    string    `json:"base"`
	Temp    string    `json:"temp,omitempty"`
	Prev    string    `json:"prev,omitempty"`     // empty: there was no old file
	PrevDir string    `json:"prev_dir,omitempty"` // empty: Dir
	New     string    `json:"new,omitempty"`      // digest; empty: removed
	Old     string    `json:"old,omitempty"`      // digest; empty: absent
	Backup  int       `json:"backup,omitempty"`
	Mode    uint32    `json:"mode,omitempty"` // of the new file
	MaxSize int64     `json:"max_size,omitempty"`
	OldMode uint32    `json:"old_mode,omitempty"`
	OldUID  int       `json:"old_uid"`
	OldGID  int       `json:"old_gid"`
}

type fileEntry struct {
	Destination string `json:"destination"`
	InPlace     bool   `json:"in_place,omitempty"`
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
		j.Files = append(j.Files, s.entry())
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

func (s *Staged) entry() entry {
	e := entry{
		File: fileEntry{s.file.Destination, s.inPlace()}, Dir: s.dir.path, Base: s.base, Temp: s.temp, Prev: s.prev,
		Backup: s.file.Backup, Mode: uint32(s.attr.mode), MaxSize: s.file.maxSize(), OldMode: uint32(s.oldAttr.mode), OldUID: s.oldAttr.uid, OldGID: s.oldAttr.gid,
	}
	if s.undo != s.dir {
		e.PrevDir = s.undo.path
	}
	if !s.remove {
		if s.sum == "" {
			s.sum = Digest(s.data)
		}
		e.New = s.sum
	}
	if s.existed {
		if s.oldSum == "" {
			s.oldSum = Digest(s.old)
		}
		e.Old = s.oldSum
	}
	return e
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
