package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// Swap puts the staged file in place: backups, rename, fsync of the
// directory. On an error the old file is still there.
func (s *Staged) Swap() error {
	if err := s.swap(); err != nil {
		return err
	}
	return s.settle()
}

// swap is Swap without making it durable.
func (s *Staged) swap() error {
	if !s.changed || s.swapped {
		return nil
	}
	err := s.backup()
	switch {
	case err != nil:
	case s.remove:
		err = s.dir.remove(s.base)
	case s.temp == "":
		s.swapped = true // A failed write in place has changed the file, too.
		err = s.overwrite(s.data, s.attr)
	default:
		err = s.dir.rename(s.temp, s.base)
	}
	if err != nil {
		return fmt.Errorf("swap %s: %w", s.file.Destination, err)
	}
	s.swapped = true
	return nil
}

// settle makes the swap durable.
func (s *Staged) settle() error {
	if !s.changed || s.inPlace() {
		return nil
	}
	if err := s.dir.sync(); err != nil {
		return fmt.Errorf("swap %s: %w", s.file.Destination, err)
	}
	return nil
}

func (s *Staged) inPlace() bool { return s.file.InPlace && s.existed && !s.remove }

// Restore puts the old file back, or removes the new one when there was none.
// It is nothing when the file was not swapped.
func (s *Staged) Restore() error {
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
	}
	name := tempName(s.base, "back")
	if err := s.dir.write(name, s.old, s.oldAttr, ""); err != nil {
		_ = s.dir.root.Remove(name)
		return err
	}
	return s.dir.rename(name, s.base)
}

// keep makes a second link to the old file, so that it can be restored
// without space on the disk, and by another process.
func (s *Staged) keep() error {
	if !s.changed || !s.existed || s.prev != "" {
		return nil
	}
	name := tempName(s.base, "old")
	err := s.dir.link(s.base, name)
	if err != nil || s.inPlace() { // No links here, or the one file is overwritten: a copy.
		_ = s.dir.root.Remove(name)
		err = s.dir.write(name, s.old, s.oldAttr, s.base)
	}
	if err != nil {
		_ = s.dir.root.Remove(name)
		return fmt.Errorf("keep the old %s: %w", s.file.Destination, err)
	}
	s.prev = name
	return nil
}

// Commit ends a swap for good: there is nothing left to restore from.
func (s *Staged) Commit() error {
	err := s.drop()
	s.close()
	return err
}

func (s *Staged) drop() error {
	if s.prev == "" {
		return nil
	}
	err := s.dir.remove(s.prev)
	s.prev = ""
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the kept old %s: %w", s.file.Destination, err)
	}
	return nil
}

// Discard removes the staged file. After a swap it only lets go of it.
func (s *Staged) Discard() {
	if s.temp != "" && !s.swapped && s.dir != nil {
		_ = s.dir.root.Remove(s.temp)
	}
	if s.prev != "" && !s.swapped && s.dir != nil {
		_ = s.dir.root.Remove(s.prev)
	}
	s.close()
}

func (s *Staged) close() {
	if s.copied != "" {
		_ = os.Remove(s.copied)
		s.copied = ""
	}
	if s.dir != nil {
		s.dir.close()
	}
}

// backup moves the kept old files on by one and links the present one.
func (s *Staged) backup() error {
	if s.file.Backup <= 0 || !s.existed {
		return nil
	}
	name := func(n int) string {
		if n == 1 {
			return s.base + ".bak"
		}
		return s.base + ".bak." + strconv.Itoa(n)
	}
	for n := s.file.Backup - 1; n >= 1; n-- {
		if _, err := s.dir.root.Lstat(name(n)); err != nil {
			continue
		}
		if err := s.dir.rename(name(n), name(n+1)); err != nil {
			return err
		}
	}
	_ = s.dir.root.Remove(name(1)) // With one backup it is replaced.
	if !s.inPlace() && s.dir.link(s.base, name(1)) == nil {
		return nil
	}
	_ = s.dir.root.Remove(name(1))
	return s.dir.write(name(1), s.old, s.oldAttr, s.base)
}

// overwrite writes into the present file, for bind mounts.
func (s *Staged) overwrite(data []byte, attr attributes) error {
	path := s.dir.join(s.base)
	f, err := s.dir.root.OpenFile(s.base, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fsys := s.file.FS
	if err := fsys.do("write", path, func() error { _, err := f.WriteAt(data, 0); return err }); err != nil {
		return err
	}
	if err := fsys.do("truncate", path, func() error { return f.Truncate(int64(len(data))) }); err != nil {
		return err
	}
	if attr.differs(s.oldAttr) {
		if err := s.dir.dress(f, s.base, attr, ""); err != nil {
			return err
		}
	}
	return fsys.do("fsync", path, f.Sync)
}

// stageCopy writes the bytes of an in-place file where a check can read them:
// its own directory may be read-only.
func (s *Staged) stageCopy() error {
	f, err := os.CreateTemp("", "zkagent-staged-*")
	if err != nil {
		return err
	}
	s.copied = f.Name()
	_, err = f.Write(s.data)
	return errors.Join(err, f.Close())
}
