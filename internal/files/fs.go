package files

import (
	"fmt"
	"os"
)

// FS is the one seam of the file operations: Before is called ahead of every
// system call that changes something or makes it durable, and an error from
// it is the error of that call. A nil FS or Before changes nothing.
type FS struct {
	// Before gets the operation (create, write, chmod, chown, fsync, link,
	// rename, remove, fsyncdir, truncate, mkdir) and the path.
	Before func(op, path string) error
}

func (fs *FS) do(op, path string, fn func() error) error {
	if fs != nil && fs.Before != nil {
		if err := fs.Before(op, path); err != nil {
			return fmt.Errorf("%s %s: %w", op, path, err)
		}
	}
	return fn()
}

// directory is an open directory in which files are replaced. Names are
// single elements, so nothing outside of it can be reached by a link that
// appears between two calls.
type directory struct {
	fs   *FS
	path string
	root *os.Root
}

func openDirectory(fs *FS, path string) (*directory, error) {
	root, err := os.OpenRoot(path)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("directory %s does not exist: create it, or correct the destination: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	return &directory{fs, path, root}, nil
}

func (d *directory) join(name string) string { return d.path + string(os.PathSeparator) + name }

func (d *directory) close() { _ = d.root.Close() }

func (d *directory) rename(from, to string) error {
	return d.fs.do("rename", d.join(to), func() error { return d.root.Rename(from, to) })
}

func (d *directory) link(from, to string) error {
	return d.fs.do("link", d.join(to), func() error { return d.root.Link(from, to) })
}

func (d *directory) remove(name string) error {
	return d.fs.do("remove", d.join(name), func() error { return d.root.Remove(name) })
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
	mode     os.FileMode
	uid, gid int  // -1: as it comes
	forced   bool // the settings name an owner: not being able to set it is an error
}

// write creates a new file with its mode and owner set, durable before it is
// closed. O_EXCL: a file or link that somebody put there is never followed.
func (d *directory) write(name string, data []byte, attr attributes, like string) (err error) {
	var f *os.File
	err = d.fs.do("create", d.join(name), func() error {
		f, err = d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := d.fs.do("write", d.join(name), func() error { _, err := f.Write(data); return err }); err != nil {
		return err
	}
	if err := d.dress(f, name, attr, like); err != nil {
		return err
	}
	return d.fs.do("fsync", d.join(name), f.Sync)
}

// dress sets owner, mode and security label of a file before it is renamed.
func (d *directory) dress(f *os.File, name string, attr attributes, like string) error {
	uid, gid := attr.uid, attr.gid
	if uid == os.Getuid() {
		uid = -1
	}
	if gid == os.Getgid() {
		gid = -1
	}
	if uid >= 0 || gid >= 0 {
		err := d.fs.do("chown", d.join(name), func() error { return f.Chown(uid, gid) })
		if err != nil && (attr.forced || !os.IsPermission(err)) {
			return err
		}
	}
	if attr.mode != 0o600 {
		if err := d.fs.do("chmod", d.join(name), func() error { return f.Chmod(attr.mode) }); err != nil {
			return err
		}
	}
	if like != "" {
		copyLabel(d.join(like), d.join(name))
	}
	return nil
}
