package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Others can put anything at a name in a directory that they can write: a named pipe
// that blocks its reader, a device that never ends, a sparse file of terabytes. So every
// read of such a name goes through this file. It follows no link that [File.Symlink]
// does not allow, opens regular files only, never waits for another process, and reads
// a bounded number of bytes.

// MaxSize is how many bytes of a file are read when the caller sets no other limit.
const MaxSize = 64 << 20

var (
	// ErrNotRegular means that a directory, pipe, socket or device has the name of the file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge means that the file has more bytes than its reader takes.
	ErrTooLarge = errors.New("the file is too large")
	// ErrExposed means that another user can write one of the agent's own files or directories.
	ErrExposed = errors.New("another user can write it")
)

// Read returns the bytes of the file that a destination names, and what the file is.
// The error is [fs.ErrNotExist] without a file, [ErrNotRegular] or [ErrTooLarge].
func Read(f File) ([]byte, fs.FileInfo, error) {
	dir, base, err := locate(f)
	if err != nil {
		return nil, nil, err
	}
	defer dir.close()
	return dir.read(base, f.maxSize())
}

// Real returns the path that a destination means, without symbolic links.
func Real(destination string) (string, error) {
	dir, base, err := locate(File{Destination: destination})
	if err != nil {
		return "", err
	}
	defer dir.close()
	return dir.join(base), nil
}

// Look returns what stands at a destination, of whatever kind, without opening it.
func Look(f File) (fs.FileInfo, error) {
	dir, base, err := locate(f)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	return dir.lstat(base)
}

// Examine returns the error that staging a file would have because of what stands at its
// destination or on the way there. shared reports whether another user can write its
// directory, so that links there are refused.
func Examine(f File) (shared bool, err error) { //nolint:nonamedreturns // says what the bool is.
	dir, base, err := locate(f)
	if err != nil {
		return false, err
	}
	defer dir.close()
	flag := os.O_RDONLY
	if f.InPlace {
		flag = os.O_WRONLY
	}
	file, _, err := dir.open(base, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return dir.shared, nil
	}
	if err != nil {
		return dir.shared, err
	}
	return dir.shared, file.Close()
}

// ReadNamed returns the bytes of a file that a user or an administrator names. It follows
// links, and is otherwise as careful as [Read].
func ReadNamed(path string, limit int64) ([]byte, error) { return readNamed(path, 0, limit) }

// readOwn returns the bytes of one of the agent's own files. A file that another user
// owns or can write is refused: it decides what the agent writes.
func readOwn(path string) ([]byte, error) { return readNamed(path, syscall.O_NOFOLLOW, MaxSize) }

func readNamed(path string, flag int, limit int64) ([]byte, error) {
	stat := os.Stat
	if flag == syscall.O_NOFOLLOW {
		stat = os.Lstat
	}
	if info, err := stat(path); err == nil && regular(info) != nil { // To open a device can start it.
		return nil, fmt.Errorf("%s: %w", path, regular(info))
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flag, 0) //nolint:gosec // the caller's user names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if flag == syscall.O_NOFOLLOW {
		if err := exposed(path, info); err != nil {
			return nil, err
		}
	}
	return (*FS)(nil).bytes(f, info, path, limit)
}

// CheckOwn returns an error that is [ErrExposed] when another user can change what is in
// a directory of the agent, or in one directly below it. It ignores a missing directory.
func CheckOwn(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = exposed(dir, info)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Lstat(path); err == nil && exposed(path, info) != nil {
			return exposed(path, info)
		}
	}
	return err
}

func exposed(path string, info fs.FileInfo) error {
	switch {
	case !trusted(info):
		return fmt.Errorf("%s belongs to user %d, who could act as the agent: %w: chown -R %d %s", path, statOf(info).Uid, ErrExposed, os.Geteuid(), path)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s has mode %04o, so others could act as the agent: %w: chmod go-w %s", path, info.Mode().Perm(), ErrExposed, path)
	}
	return nil
}

// maxSize is how many bytes of a present file are read.
func (f File) maxSize() int64 { return max(MaxSize, f.MaxSize) }

// regular returns an error that says what stands at a name instead of a file.
func regular(info fs.FileInfo) error {
	kind := "a device"
	switch m := info.Mode(); {
	case m.IsRegular():
		return nil
	case m.IsDir():
		kind = "a directory"
	case m&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case m&fs.ModeSocket != 0:
		kind = "a socket"
	case m&fs.ModeSymlink != 0:
		kind = "a symbolic link"
	}
	return fmt.Errorf("%w but %s", ErrNotRegular, kind)
}

func (d *directory) lstat(name string) (fs.FileInfo, error) {
	return look(d.fs, "stat", d.join(name), func() (fs.FileInfo, error) { return d.root.Lstat(name) })
}

// exchanges is how often a name may mean another file before open gives up: others may
// rename files over it.
const exchanges = 5

// open opens a regular file. Lstat comes first, because to open a device can start it.
// The comparison afterwards shows a link or another file that has come in between.
func (d *directory) open(name string, flag int) (*os.File, fs.FileInfo, error) {
	for range exchanges {
		seen, err := d.lstat(name)
		if err == nil {
			err = regular(seen)
		}
		if err != nil {
			return nil, nil, err
		}
		f, err := look(d.fs, "open", d.join(name), func() (*os.File, error) {
			return d.root.OpenFile(name, flag|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		})
		if err != nil {
			return nil, nil, err
		}
		info, err := f.Stat()
		if err == nil && os.SameFile(seen, info) {
			return f, info, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("%s was exchanged %d times while it was opened", d.join(name), exchanges)
}

// read returns the bytes of a regular file of at most limit bytes.
func (d *directory) read(name string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := d.fs.bytes(f, info, d.join(name), limit)
	return data, info, err
}

// digest returns the digest of a regular file of at most limit bytes. It holds a part of
// them at a time.
func (d *directory) digest(name string, limit int64) (string, fs.FileInfo, error) {
	f, info, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	err = d.fs.copy(sum, f, info, d.join(name), limit)
	return digestOf(sum.Sum(nil)), info, err
}

func (f *FS) bytes(file *os.File, info fs.FileInfo, path string, limit int64) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 0, min(info.Size(), limit)+bytes.MinRead))
	err := f.copy(buf, file, info, path, limit)
	return buf.Bytes(), err
}

// copy reads an open file. Its size is compared first, and the file may grow meanwhile.
func (f *FS) copy(to io.Writer, file *os.File, info fs.FileInfo, path string, limit int64) error {
	size, err := info.Size(), error(nil)
	if size <= limit {
		size, err = look(f, "read", path, func() (int64, error) { return io.Copy(to, io.LimitReader(file, limit+1)) })
	}
	if err == nil && size > limit {
		err = fmt.Errorf("%w: %s has more than the %d bytes that are read", ErrTooLarge, path, limit)
	}
	return err
}

// list calls fn with each name of the directory. It holds a few names at a time: another
// user chooses how many there are.
func (d *directory) list(fn func(fs.DirEntry)) error {
	f, err := look(d.fs, "list", d.path, func() (*os.File, error) { return d.root.Open(".") })
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		entries, err := f.ReadDir(1000)
		for _, e := range entries {
			fn(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
