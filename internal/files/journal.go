package files

import (
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
//	swap      the renames have begun. All files new: the change was made, its
//	          reload is owed. Otherwise it is undone from the links to the old
//	          files; nothing ran that could have read a part of the new ones.
//	restore   the old files are being put back, and a reload is owed.
//
// A crash of the host loses no more: files and directories are durable before
// the journal goes. The journal itself is made durable only when several
// files change (file systems keep the order of links and renames), for after a crash of the host every service starts anew and
// reads what is there: no reload is owed, only a mixture must be undone.
type phase string

const (
	phaseSwap    phase = "swap"
	phaseRestore phase = "restore"
)

// entry is one file of a journal.
type entry struct {
	File    fileEntry `json:"file"`
	Dir     string    `json:"dir"`
	Base    string    `json:"base"`
	Temp    string    `json:"temp,omitempty"`
	Prev    string    `json:"prev,omitempty"` // empty: there was no old file
	New     string    `json:"new,omitempty"`  // digest; empty: removed
	Old     string    `json:"old,omitempty"`  // digest; empty: absent
	OldMode uint32    `json:"old_mode,omitempty"`
	OldUID  int       `json:"old_uid"`
	OldGID  int       `json:"old_gid"`
}

type fileEntry struct {
	Destination string `json:"destination"`
	InPlace     bool   `json:"in_place,omitempty"`
}

type journalFile struct {
	Bundle string          `json:"bundle"`
	Phase  phase           `json:"phase"`
	Owed   json.RawMessage `json:"owed,omitempty"`
	Files  []entry         `json:"files"`
}

// journalExt ends the names of journals; what ends otherwise is unfinished.
const journalExt = ".journal"

func journalName(bundle string) string { return url.PathEscape(bundle) + journalExt }

// journal writes the journal of the change, replacing the former one.
func (tx *Tx) journal(p phase) error {
	if tx.cfg.StateDir == "" {
		return nil
	}
	j := journalFile{Bundle: tx.cfg.Bundle, Phase: p, Owed: tx.cfg.Owed}
	for _, s := range tx.changed() {
		j.Files = append(j.Files, s.entry())
	}
	data, err := json.Marshal(j)
	if err == nil {
		tx.phase = p // Before it is written: after an error it may exist all the same.
		err = tx.writeJournal(data, len(j.Files) > 1)
	}
	if err != nil {
		return fmt.Errorf("write the journal of bundle %s: %w", tx.cfg.Bundle, err)
	}
	return nil
}

func (tx *Tx) writeJournal(data []byte, durable bool) error {
	fsys, name := tx.cfg.FS, filepath.Join(tx.cfg.StateDir, journalName(tx.cfg.Bundle))
	temp := name + ".new"
	if err := fsys.do("mkdir", tx.cfg.StateDir, func() error { return os.MkdirAll(tx.cfg.StateDir, 0o700) }); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Clean(temp), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = fsys.do("write", temp, func() error { return writeTo(f, data) })
	if err == nil && durable {
		err = fsys.do("fsync", temp, f.Sync)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err = fsys.do("rename", name, func() error { return os.Rename(temp, name) }); err != nil || !durable {
		return err
	}
	d, err := openDirectory(fsys, tx.cfg.StateDir)
	if err != nil {
		return err
	}
	defer d.close()
	return d.sync()
}

func writeTo(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

func (s *Staged) entry() entry {
	e := entry{
		File: fileEntry{s.file.Destination, s.inPlace()}, Dir: s.dir.path, Base: s.base, Temp: s.temp, Prev: s.prev,
		OldMode: uint32(s.oldAttr.mode), OldUID: s.oldAttr.uid, OldGID: s.oldAttr.gid,
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the journal of bundle %s: %w", tx.cfg.Bundle, err)
	}
	tx.phase = ""
	return nil
}
