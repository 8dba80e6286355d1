package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// FS is the one seam of the file operations. A nil FS or function changes
// nothing. Package internal/zktest/filestest has a disk that fails, is cut off between two
// calls, and loses what was not made durable.
type FS struct {
	// Before is called ahead of every system call that changes something or
	// makes it durable. Its error is the error of the call, which is not made
	// then. op is create, write, chmod, chown, setxattr, fsync, link, rename,
	// remove, fsyncdir, truncate or mkdir.
	Before func(op, path string) error
	// After is called when the call was made, with or without success.
	After func(op, path string)
	// Look is called ahead of every call that reads. Its error is the error of the
	// call, which is not made then. It may block, as a network disk does. op is
	// opendir, stat, readlink, open, read or list.
	Look func(op, path string) error
	// Watch is called ahead of every call, and what it returns when the call has ended.
	Watch func(op, path string) (end func())
}

// look is a call that reads.
func look[T any](f *FS, op, path string, fn func() (T, error)) (T, error) {
	var v T
	f = cmp.Or(f, &FS{})
	err := f.call(f.Look, op, path, func() error {
		var err error
		v, err = fn()
		return err
	})
	return v, err
}

// do is a call that changes something or makes it durable.
func (f *FS) do(op, path string, fn func() error) error {
	f = cmp.Or(f, &FS{})
	return f.call(f.Before, op, path, func() error {
		if f.After != nil {
			defer f.After(op, path)
		}
		return fn()
	})
}

// call makes a call, unless first has an error for it.
func (f *FS) call(first func(op, path string) error, op, path string, fn func() error) error {
	if f.Watch != nil {
		defer f.Watch(op, path)()
	}
	if first != nil {
		if err := first(op, path); err != nil {
			return &fs.PathError{Op: op, Path: path, Err: err}
		}
	}
	// An error of [os.Root] names the last element alone.
	err := fn()
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: op, Path: path, Err: e.Err}
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && !filepath.IsAbs(e.Path) {
		return &fs.PathError{Op: op, Path: path, Err: e.Err}
	}
	return err
}

// directory is an open directory in which files are replaced. Names are
// single elements, so nothing outside of it can be reached by a link that
// appears between two calls.
type directory struct {
	fs   *FS
	path string // without symbolic links
	root *os.Root
	info fs.FileInfo
	// shared says that another user can write to the directory, or to one on
	// the way to it.
	shared bool
	more   int // users beyond the first: the files of a transaction share it
}

// openDirectory opens the directory that a path leads to under the policy of
// symlink (see walk).
func openDirectory(fsys *FS, path, symlink string) (*directory, error) {
	w, err := look(fsys, "opendir", path, func() (walked, error) { return walk(path, symlink) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("directory %s does not exist: create it, or correct the destination: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(w.path)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && w.info != nil && !os.SameFile(info, w.info) {
		err = fmt.Errorf("directory %s was exchanged while it was opened", path)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &directory{fs: fsys, path: w.path, root: root, info: info, shared: w.shared}, nil
}

func (d *directory) join(name string) string { return d.path + string(os.PathSeparator) + name }

// close ends one use, and the last use closes it.
func (d *directory) close() {
	if d.more > 0 {
		d.more--
		return
	}
	_ = d.root.Close()
}

func (d *directory) rename(from, to string) error {
	return d.fs.do("rename", d.join(to), func() error { return d.root.Rename(from, to) })
}

func (d *directory) link(from, to string) error {
	return d.fs.do("link", d.join(to), func() error { return d.root.Link(from, to) })
}

func (d *directory) remove(name string) error {
	return d.fs.do("remove", d.join(name), func() error { return d.root.Remove(name) })
}

func (d *directory) same(a, b string) bool {
	x, err := d.lstat(a)
	if err != nil {
		return false
	}
	y, err := d.lstat(b)
	return err == nil && os.SameFile(x, y)
}

// sync makes renames and removals in the directory durable.
func (d *directory) sync() error {
	return d.fs.do("fsyncdir", d.path, func() error {
		f, err := d.root.Open(".")
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		return f.Sync()
	})
}

// attributes are what a file has beside its bytes.
type attributes struct {
	Mode     fs.FileMode `json:"mode"`
	UID      int         `json:"uid"` // -1: as it comes
	GID      int         `json:"gid"` // likewise
	forced   bool        // the settings name an owner: not being able to set it is an error
	extended extended
}

// private are the attributes of the agent's own files.
var private = attributes{Mode: 0o600, UID: -1, GID: -1}

// create writes a new file with its attributes set, and durable unless volatile. It
// returns what the file is then. O_EXCL: a file or link that somebody put there is never
// followed.
func (d *directory) create(name string, data []byte, attr attributes, volatile bool) (fs.FileInfo, error) {
	var f *os.File
	err := d.fs.do("create", d.join(name), func() error {
		var err error
		f, err = d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = d.fs.do("write", d.join(name), func() error { _, err := f.Write(data); return err })
	if err == nil {
		err = d.dress(f, name, attr, 0o600)
	}
	if err == nil && !volatile {
		err = d.fs.do("fsync", d.join(name), f.Sync)
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return info, err
}

// dress sets owner, access list, security label and mode of an open file. The
// list comes before the mode: the group bits of the mode limit it.
func (d *directory) dress(f *os.File, name string, attr attributes, mode fs.FileMode) error {
	if err := d.chown(f, name, attr); err != nil {
		return err
	}
	if err := attr.extended.set(d.fs, f, d.join(name)); err != nil {
		return err
	}
	if attr.Mode == mode && attr.extended.acl == nil {
		return nil
	}
	return d.fs.do("chmod", d.join(name), func() error { return f.Chmod(attr.Mode) })
}

// The user and group of this process, which owns what it creates.
var ourUID, ourGID = os.Getuid(), os.Getgid()

func (d *directory) chown(f *os.File, name string, attr attributes) error {
	uid, gid := attr.UID, attr.GID
	if uid == ourUID {
		uid = -1
	}
	if gid == ourGID {
		gid = -1
	}
	if uid < 0 && gid < 0 {
		return nil
	}
	err := d.fs.do("chown", d.join(name), func() error { return f.Chown(uid, gid) })
	if err != nil && (attr.forced || !os.IsPermission(err)) {
		return err
	}
	return nil
}

// MakeOwn makes a directory of the agent with its parents.
func MakeOwn(path string) error { return (*FS)(nil).makeOwn(path) }

func (f *FS) makeOwn(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	return f.do("mkdir", path, func() error { return os.MkdirAll(path, 0o700) })
}

// statOf is what the system says about a file.
func statOf(info fs.FileInfo) *syscall.Stat_t {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st
	}
	return &syscall.Stat_t{} // Of no file of a Unix system.
}

// trusted reports whether a file belongs to root or to our own user.
func trusted(info fs.FileInfo) bool {
	uid := int(statOf(info).Uid)
	return uid == 0 || uid == os.Geteuid()
}

// ids returns the numbers of a user and a group given by name or number; -1
// for an empty name.
func ids(owner, group string) (int, int, error) {
	uid, err := id("owner", owner, func(name string) (string, error) {
		u, err := user.Lookup(name)
		return cmp.Or(u, &user.User{}).Uid, err
	})
	if err != nil {
		return -1, -1, err
	}
	gid, err := id("group", group, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		return cmp.Or(g, &user.Group{}).Gid, err
	})
	return uid, gid, err
}

func id(what, name string, lookup func(string) (string, error)) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	number, err := lookup(name)
	if err != nil {
		return -1, fmt.Errorf("%s %q: %w", what, name, err)
	}
	return strconv.Atoi(number)
}

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
		next, isNew, err := f.FS.makeDir(at, name, path, attributes{Mode: 0o755, UID: uid, GID: gid, forced: true})
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
		return fmt.Errorf("%s was exchanged while it was being created", path)
	}
	if err := (&directory{fs: f, path: filepath.Dir(path)}).chown(dir, filepath.Base(path), attr); err != nil {
		return err
	}
	return f.do("chmod", path, func() error { return dir.Chmod(attr.Mode) })
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
