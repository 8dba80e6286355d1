package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// swap puts the staged file in place. On an error the old file is still there,
// but for one that is written in place.
func (s *Staged) swap() error {
	var err error
	switch {
	case s.New == "":
		err = s.dir.remove(s.Base)
	case s.Temp == "":
		s.swapped = true // A failed write in place has changed the file, too.
		err = s.overwrite(s.data, s.Attr)
	default:
		err = s.dir.rename(s.Temp, s.Base)
	}
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%w: the file is a mount, which cannot be replaced; set in_place = true", err)
	}
	if err != nil {
		return fmt.Errorf("swap %s: %w", s.File.Destination, err)
	}
	s.swapped, s.unsettled = true, !s.inPlace()
	return nil
}

func (s *Staged) inPlace() bool { return s.File.InPlace && s.Old != "" && s.New != "" }

// back puts the old file back, or removes the new one when there was none. It
// does nothing when the file was not swapped.
func (s *Staged) back() error {
	if !s.swapped {
		return nil
	}
	var old []byte
	var err error
	if s.Old != "" && (s.inPlace() || s.Prev == "") {
		old, err = s.kept()
	}
	switch {
	case err != nil:
	case s.inPlace():
		err = s.overwrite(old, s.OldAttr)
	case s.Old == "":
		if err = s.dir.remove(s.Base); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	default:
		if s.Prev == "" {
			err = s.writeKept(old, s.OldAttr)
		}
		if err == nil {
			err = s.dir.rename(s.Prev, s.Base)
		}
		if err == nil {
			s.Prev = ""
		}
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", s.File.Destination, err)
	}
	s.swapped, s.unsettled = false, !s.inPlace()
	return nil
}

func (s *Staged) kept() ([]byte, error) {
	if s.Prev == "" && s.old == nil {
		return nil, errors.New("the kept old file is gone")
	}
	if s.Prev == "" {
		return s.old, nil
	}
	old, _, err := s.undo.read(s.Prev, s.File.maxSize())
	return old, err
}

// keep keeps the old file, so that it can be restored without space on the
// disk, and by another process: by a second link, or by a copy. alone is a file without
// a journal: no other process could find what is kept of it, so it is held in memory.
func (s *Staged) keep(cfg TxConfig, alone bool) error {
	if s.Old == "" {
		return nil
	}
	if !s.inPlace() && !alone {
		if name := tempName(s.Base, "old"); s.dir.link(s.Base, name) == nil {
			s.Prev = name
			return nil
		}
	}
	err := s.copyOld(cfg, alone)
	if err != nil {
		return fmt.Errorf("keep the old %s: %w", s.File.Destination, err)
	}
	return nil
}

// copyOld copies the old file: where there are no links beside it, and for a file that is
// written in place into the state directory.
func (s *Staged) copyOld(cfg TxConfig, alone bool) error {
	old, _, err := s.dir.read(s.Base, s.File.maxSize())
	if err != nil {
		return err
	}
	s.Old = Digest(old)
	if alone || s.inPlace() && cfg.StateDir == "" {
		s.old = old
		return nil
	}
	if !s.inPlace() {
		return s.writeKept(old, s.OldAttr)
	}
	if err := cfg.FS.makeOwn(cfg.StateDir); err != nil {
		return err
	}
	if s.undo, err = openDirectory(cfg.FS, cfg.StateDir, SymlinkFollow); err != nil {
		s.undo = s.dir
		return err
	}
	s.PrevDir = s.undo.path
	return s.writeKept(old, private) // The journal's sync of the directory makes its name durable.
}

// writeKept writes a file with the old bytes.
func (s *Staged) writeKept(old []byte, attr attributes) error {
	name := tempName(s.Base, "old")
	_, err := s.undo.create(name, old, attr, false)
	if err != nil {
		_ = s.undo.remove(name)
		return err
	}
	s.Prev = name
	return nil
}

func (s *Staged) drop() error {
	if s.Prev == "" {
		return nil
	}
	err := s.undo.remove(s.Prev)
	s.Prev = ""
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the kept old %s: %w", s.File.Destination, err)
	}
	return nil
}

// discard removes what was written for a swap.
func (s *Staged) discard() {
	if s.Temp != "" {
		_ = s.dir.remove(s.Temp)
	}
	_ = s.drop()
	s.close()
}

func (s *Staged) close() {
	if s.closed {
		return
	}
	s.closed = true
	if s.undo != s.dir {
		s.undo.close()
	}
	s.dir.close()
}

// backup moves the kept backups on by one and adds the old file. It runs when
// the change has proved good: a change that fails and is tried again must not
// push the good ones out.
func (s *Staged) backup() error {
	if s.File.Backup <= 0 || s.Old == "" || !s.swapped {
		return nil
	}
	err := s.rotate()
	for n := 1; n <= s.File.Backup && err == nil; n++ {
		err = s.tighten(s.backupName(n))
	}
	if err != nil {
		return fmt.Errorf("keep a backup of %s: %w", s.File.Destination, err)
	}
	return nil
}

func (s *Staged) backupName(n int) string {
	if n == 1 {
		return s.Base + ".bak"
	}
	return s.Base + ".bak." + strconv.Itoa(n)
}

func (s *Staged) rotate() error {
	name := s.backupName
	linked := s.Prev != "" && s.undo == s.dir
	if linked && s.dir.same(s.Prev, name(1)) {
		return nil // A process that was killed here has done it.
	}
	for n := s.File.Backup - 1; n >= 1; n-- {
		if _, err := s.dir.lstat(name(n)); err != nil {
			continue
		}
		if err := s.dir.rename(name(n), name(n+1)); err != nil {
			return err
		}
	}
	if err := s.dir.remove(name(1)); err != nil && !errors.Is(err, fs.ErrNotExist) { // With one backup it is replaced.
		return err
	}
	if linked && s.dir.link(s.Prev, name(1)) == nil {
		return nil
	}
	old, err := s.kept()
	if err == nil {
		_, err = s.dir.create(name(1), old, s.OldAttr, false)
	}
	return err
}

// tighten takes from a backup the permissions that the new file does not give: its old
// text may be as secret as the new one.
func (s *Staged) tighten(name string) error {
	f, info, err := s.dir.open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotRegular) || errors.Is(err, fs.ErrPermission) {
		return nil // Nothing that the agent could change.
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	mode, names := permissions(info.Mode()), statOf(info).Nlink
	onlyOurs := names == 1 || names == 2 && s.dir.same(name, s.Prev) // It may have a name elsewhere on the host.
	if mode&s.Attr.Mode == mode || !onlyOurs {
		return nil
	}
	err = s.dir.fs.do("chmod", s.dir.join(name), func() error { return f.Chmod(mode & s.Attr.Mode) })
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// overwrite writes into the present file, for bind mounts.
func (s *Staged) overwrite(data []byte, attr attributes) error {
	path := s.dir.join(s.Base)
	f, info, err := s.dir.open(s.Base, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if statOf(info).Nlink > 1 && s.dir.shared {
		return errors.New("the file has several names and another user can write to its directory: it could be any file of the host")
	}
	fsys := s.dir.fs
	if err := fsys.do("write", path, func() error { _, err := f.WriteAt(data, 0); return err }); err != nil {
		return err
	}
	if err := fsys.do("truncate", path, func() error { return f.Truncate(int64(len(data))) }); err != nil {
		return err
	}
	if attr.differs(attributesOf(info)) {
		attr.extended = extended{} // Those of the file stay.
		if err := s.dir.dress(f, s.Base, attr, permissions(info.Mode())); err != nil {
			return err
		}
	}
	return fsys.do("fsync", path, f.Sync)
}
