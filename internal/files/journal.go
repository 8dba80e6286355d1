package files

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
)

// The journal of a change is one small file in the state directory. It exists
// from before the first rename until nothing is owed any more:
//
//	swap      the renames have begun. All files new: the change was made; its
//	          check and its reload are owed. Otherwise it is undone from the
//	          links to the old files, or their copies; no program has read
//	          the new ones.
//	restore   the old files are being put back, and a reload is owed.
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

// journal writes the journal of the change, replacing the former one.
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

// forget removes the journal: nothing is owed.
func (tx *Tx) forget() error {
	if tx.cfg.StateDir == "" || tx.phase == "" {
		return nil
	}
	name := filepath.Join(tx.cfg.StateDir, journalName(tx.cfg.Bundle))
	err := tx.cfg.FS.do("remove", name, func() error { return os.Remove(name) })
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = tx.settleForget()
	}
	if err != nil {
		return fmt.Errorf("remove the journal of bundle %s: %w", tx.cfg.Bundle, err)
	}
	tx.phase = ""
	return nil
}

// settleForget makes the removal of a durable journal durable: one that comes
// back after a crash of the host would undo later changes.
func (tx *Tx) settleForget() error {
	if !tx.durable {
		return nil
	}
	d, err := openDirectory(tx.cfg.FS, tx.cfg.StateDir, SymlinkFollow)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	return d.sync()
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
