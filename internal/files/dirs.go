package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// MakeDirs makes the missing directories on the way to a file, with the mode 0755 and
// the owner of the file. It returns their paths, the innermost first. It follows links
// as [File.Symlink] says, and never one that appears while it works.
func MakeDirs(f File) ([]string, error) {
	path := filepath.Dir(filepath.Clean(f.Destination))
	made, err := makeDirs(f, path)
	if err != nil {
		err = fmt.Errorf("make directory %s: %w", path, err)
	}
	return made, err
}

func makeDirs(f File, path string) ([]string, error) {
	uid, gid, err := ids(f.Owner, f.Group)
	if err != nil {
		return nil, err
	}
	var missing []string
	dir, err := openDirectory(f.FS, path, f.Symlink)
	for ; errors.Is(err, fs.ErrNotExist) && path != "/"; dir, err = openDirectory(f.FS, path, f.Symlink) {
		missing = append(missing, filepath.Base(path))
		path = filepath.Dir(path)
	}
	if err != nil {
		return nil, err
	}
	defer dir.close()
	at, err := dir.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }()
	var made []string
	path = dir.path
	for _, name := range slices.Backward(missing) {
		path = filepath.Join(path, name)
		next, isNew, err := f.FS.makeDir(at, name, path, attributes{mode: 0o755, uid: uid, gid: gid, forced: true})
		if isNew {
			made = slices.Insert(made, 0, path)
		}
		if err != nil {
			return made, err
		}
		_ = at.Close()
		at = next
	}
	return made, nil
}

// makeDir makes and opens one directory below an open one. A name that exists by now is
// opened as it is, unless it is a link.
func (f *FS) makeDir(at *os.File, name, path string, attr attributes) (*os.File, bool, error) {
	err := f.do("mkdir", path, func() error { return unix.Mkdirat(int(at.Fd()), name, 0o700) })
	isNew := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	fd, err := unix.Openat(int(at.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, isNew, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	if isNew {
		err = f.dressDir(dir, path, attr)
	}
	if err != nil {
		_ = dir.Close()
		return nil, isNew, err
	}
	return dir, isNew, nil
}

// dressDir gives a new directory its owner and mode. Another user may have put
// another directory in its place: one with files in it, or of somebody else.
func (f *FS) dressDir(dir *os.File, path string, attr attributes) error {
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	_, err = dir.ReadDir(1)
	if !errors.Is(err, io.EOF) || int(statOf(info).Uid) != os.Geteuid() {
		return fmt.Errorf("%s was exchanged while it was made", path)
	}
	if err := (&directory{fs: f, path: filepath.Dir(path)}).chown(dir, filepath.Base(path), attr); err != nil {
		return err
	}
	return f.do("chmod", path, func() error { return dir.Chmod(attr.mode) })
}

// RemoveDirs removes directories that MakeDirs made, as far as they are empty.
func RemoveDirs(made []string) {
	for _, path := range made {
		if d, err := openDirectory(nil, filepath.Dir(path), SymlinkRefuse); err == nil {
			if at, err := d.root.Open("."); err == nil {
				_ = unix.Unlinkat(int(at.Fd()), filepath.Base(path), unix.AT_REMOVEDIR)
				_ = at.Close()
			}
			d.close()
		}
	}
}
