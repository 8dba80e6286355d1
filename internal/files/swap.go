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
	if !s.changed || s.swapped {
		return nil
	}
	var err error
	switch {
	case s.remove:
		err = s.dir.remove(s.base)
	case s.temp == "":
		s.swapped = true // A failed write in place has changed the file, too.
		err = s.overwrite(s.data, s.attr)
	default:
		err = s.dir.rename(s.temp, s.base)
	}
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%w: the file is a mount, which cannot be replaced; set in_place = true", err)
	}
	if err != nil {
		return fmt.Errorf("swap %s: %w", s.file.Destination, err)
	}
	s.swapped = true
	return nil
}

func (s *Staged) inPlace() bool { return s.file.InPlace && s.existed && !s.remove }

// back puts the old file back, or removes the new one when there was none. It
// does nothing when the file was not swapped.
func (s *Staged) back() error {
	if !s.swapped {
		return nil
	}
	err := s.restore()
	if err == nil && !s.inPlace() {
		err = s.dir.sync()
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", s.file.Destination, err)
	}
	s.swapped = false
	return nil
}

func (s *Staged) restore() error {
	switch {
	case s.inPlace():
		return s.overwrite(s.old, s.oldAttr)
	case !s.existed:
		if err := s.dir.remove(s.base); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case s.prev != "":
		err := s.dir.rename(s.prev, s.base)
		if err == nil {
			s.prev = ""
		}
		return err
	case s.old == nil:
		return errors.New("the kept old file is gone")
	}
	name := tempName(s.base, "back")
	err := s.dir.write(name, s.old, s.oldAttr, false)
	if err == nil {
		err = s.dir.rename(name, s.base)
	}
	if err != nil {
		_ = s.dir.remove(name)
	}
	return err
}

// keep keeps the old file, so that it can be restored without space on the
// disk, and by another process: by a second link, or by a copy in the state
// directory for a file that is written in place.
func (s *Staged) keep(cfg TxConfig) error {
	if !s.changed || !s.existed || s.prev != "" {
		return nil
	}
	if s.inPlace() && cfg.StateDir == "" {
		return nil // No other process could find the copy.
	}
	name := tempName(s.base, "old")
	err := s.keepAs(name, cfg)
	if err != nil {
		_ = s.undo.remove(name)
		return fmt.Errorf("keep the old %s: %w", s.file.Destination, err)
	}
	s.prev = name
	return nil
}

func (s *Staged) keepAs(name string, cfg TxConfig) error {
	if !s.inPlace() {
		if s.dir.link(s.base, name) == nil {
			return nil
		}
		return s.dir.write(name, s.old, s.oldAttr, false) // No links here.
	}
	err := cfg.FS.makeOwn(cfg.StateDir)
	if err == nil && s.undo == s.dir {
		var undo *directory
		if undo, err = openDirectory(cfg.FS, cfg.StateDir, SymlinkFollow); err == nil {
			s.undo = undo
		}
	}
	if err == nil {
		err = s.undo.write(name, s.old, attributes{mode: 0o600, uid: -1, gid: -1}, false)
	}
	return err // The journal's sync of the directory makes its name durable.
}

func (s *Staged) drop() error {
	if s.prev == "" {
		return nil
	}
	err := s.undo.remove(s.prev)
	s.prev = ""
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the kept old %s: %w", s.file.Destination, err)
	}
	return nil
}

// discard removes the staged file. After a swap it only lets go of it.
func (s *Staged) discard() {
	if s.temp != "" && !s.swapped && s.dir != nil {
		_ = s.dir.remove(s.temp)
	}
	if s.prev != "" && !s.swapped && s.undo != nil {
		_ = s.undo.remove(s.prev)
	}
	s.close()
}

func (s *Staged) close() {
	if s.closed {
		return
	}
	s.closed = true
	if s.undo != nil && s.undo != s.dir {
		s.undo.close()
	}
	if s.dir != nil {
		s.dir.close()
	}
}

// backup moves the kept backups on by one and adds the old file. It runs when
// the change has proved good: a change that fails and is tried again must not
// push the good ones out.
func (s *Staged) backup() error {
	if s.file.Backup <= 0 || !s.existed || !s.swapped {
		return nil
	}
	err := s.rotate()
	for n := 1; n <= s.file.Backup && err == nil; n++ {
		err = s.tighten(s.backupName(n))
	}
	if err != nil {
		return fmt.Errorf("keep a backup of %s: %w", s.file.Destination, err)
	}
	return nil
}

func (s *Staged) backupName(n int) string {
	if n == 1 {
		return s.base + ".bak"
	}
	return s.base + ".bak." + strconv.Itoa(n)
}

func (s *Staged) rotate() error {
	name := s.backupName
	if s.prev != "" && s.undo == s.dir && s.dir.same(s.prev, name(1)) {
		return nil // A process that was killed here has done it.
	}
	for n := s.file.Backup - 1; n >= 1; n-- {
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
	if s.prev != "" && s.undo == s.dir && s.dir.link(s.prev, name(1)) == nil {
		return nil
	}
	return s.dir.write(name(1), s.old, s.oldAttr, false)
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
	onlyOurs := names == 1 || names == 2 && s.dir.same(name, s.prev) // It may have a name elsewhere on the host.
	if s.remove || mode&s.attr.mode == mode || !onlyOurs {
		return nil
	}
	err = s.dir.fs.do("chmod", s.dir.join(name), func() error { return f.Chmod(mode & s.attr.mode) })
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// overwrite writes into the present file, for bind mounts.
func (s *Staged) overwrite(data []byte, attr attributes) error {
	path := s.dir.join(s.base)
	f, info, err := s.dir.open(s.base, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if statOf(info).Nlink > 1 && s.dir.shared {
		return errors.New("the file has several names and another user can write to its directory: it could be any file of the host")
	}
	fsys := s.file.FS
	if err := fsys.do("write", path, func() error { _, err := f.WriteAt(data, 0); return err }); err != nil {
		return err
	}
	if err := fsys.do("truncate", path, func() error { return f.Truncate(int64(len(data))) }); err != nil {
		return err
	}
	if attr.differs(attributesOf(info)) {
		attr.extended = extended{} // Those of the file stay.
		if err := s.dir.dress(f, s.base, attr, permissions(info.Mode())); err != nil {
			return err
		}
	}
	return fsys.do("fsync", path, f.Sync)
}
