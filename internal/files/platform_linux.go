package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// walked is where a path leads.
type walked struct {
	path   string // without symbolic links
	info   fs.FileInfo
	shared bool // another user can write to a directory on the way
}

// walk goes from / to a directory, one name after the other.
//
// Links in directories that only root and our own user can write are the
// administrator's, and are followed. From the first directory on that another
// user can write, a link is refused: that user could lead a privileged agent
// to any file of the host. Symlink "follow" follows them there, too.
//
// While only root and our own user can change what is on the way, the path is
// looked at by its name: it leads to the same directory again. From the first
// directory on that another user can write, each step holds the directory open,
// so nothing that is exchanged behind it has an effect.
func walk(path, symlink string) (walked, error) {
	w := walked{path: "/"}
	rest := elements(path)
	for links := 0; ; {
		link, err := w.steps(&rest, symlink)
		if err != nil || link == "" {
			return w, err
		}
		if links++; links > maxLinks {
			return w, errCircle
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(w.path, link)
		}
		rest = append(elements(link), rest...)
		w = walked{path: "/"} // It was followed: each step is looked at anew.
	}
}

func elements(path string) []string {
	return strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
}

// steps goes from / along names, and takes them out of rest. It returns the target
// of a link that is to be followed.
func (w *walked) steps(rest *[]string, symlink string) (string, error) {
	var dir *os.File // nil: the way so far is safe
	defer func() { _ = dir.Close() }()
	var err error
	if w.info, err = os.Lstat("/"); err != nil {
		return "", err
	}
	for len(*rest) > 0 {
		name := (*rest)[0]
		*rest = (*rest)[1:]
		if name == "" || name == "." {
			continue
		}
		path := filepath.Join(w.path, name)
		var info fs.FileInfo
		if dir == nil {
			if info, err = os.Lstat(path); err != nil {
				return "", &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
			}
			if writableByOthers(w.info) && !keptBySticky(w.info, info) {
				w.shared = true
				if dir, err = openPath(unix.AT_FDCWD, w.path); err != nil {
					return "", err
				}
			}
		}
		if dir != nil {
			next, err := openPath(int(dir.Fd()), name)
			link, isLink := "", false
			if err != nil {
				link, isLink = readLinkAt(int(dir.Fd()), name)
			}
			switch {
			case isLink && symlink == SymlinkFollow:
				return link, nil
			case isLink:
				return "", linkError(path, link)
			case err != nil:
				return "", &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
			}
			_ = dir.Close()
			dir = next
			if info, err = dir.Stat(); err != nil {
				return "", err
			}
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			return os.Readlink(path)
		case !info.IsDir():
			return "", &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
		}
		w.path, w.info = path, info
	}
	w.shared = w.shared || writableByOthers(w.info)
	return "", nil
}

// openPath opens a directory for passing through; it needs no right to list it.
func openPath(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func readLinkAt(at int, name string) (string, bool) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return "", false
	}
	return string(buf[:n]), true
}

// writableByOthers reports whether a user beside root and our own can make or
// replace names in a directory.
func writableByOthers(info fs.FileInfo) bool {
	return !trusted(info) || info.Mode().Perm()&0o022 != 0
}

// keptBySticky reports whether a name in such a directory is safe all the
// same: in a sticky directory of root or ours, only we can replace our names.
func keptBySticky(dir, name fs.FileInfo) bool {
	return dir.Mode()&fs.ModeSticky != 0 && trusted(dir) && trusted(name)
}

// The extended attributes that decide who may use a file.
const (
	aclName   = "system.posix_acl_access"
	labelName = "security.selinux"
)

// extended are the access list and the security label of a file. nil: none.
type extended struct {
	known      bool // it was read from a file: what is nil is to be absent
	acl, label []byte
}

func readExtended(f *os.File) (extended, error) {
	x := extended{known: true}
	var err error
	if x.acl, err = readAttribute(f, aclName); err == nil {
		x.label, err = readAttribute(f, labelName)
	}
	return x, err
}

// readAttribute returns nil when the file has no such attribute, or the file system has no attributes.
func readAttribute(f *os.File, name string) ([]byte, error) {
	for {
		n, err := unix.Fgetxattr(int(f.Fd()), name, nil)
		if err == nil && n > 0 {
			buf := make([]byte, n)
			if n, err = unix.Fgetxattr(int(f.Fd()), name, buf); err == nil {
				return buf[:n], nil
			}
		}
		switch {
		case errors.Is(err, unix.ERANGE): // It grew between the calls.
		case err == nil, errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
			return nil, nil
		default:
			return nil, fmt.Errorf("read %s of %s: %w", name, f.Name(), err)
		}
	}
}

// set gives a file the list and the label of the one that it replaces. A file
// that cannot have them would be open to others: an error.
func (x extended) set(fs *FS, f *os.File, path string) error {
	if !x.known {
		return nil
	}
	now, err := readExtended(f)
	if err != nil {
		return err
	}
	if !bytes.Equal(now.acl, x.acl) {
		if err := setAttribute(fs, f, path, aclName, x.acl); err != nil {
			return fmt.Errorf("keep the access control list: %w", err)
		}
	}
	if x.label != nil && !bytes.Equal(now.label, x.label) {
		if err := setAttribute(fs, f, path, labelName, x.label); err != nil {
			return fmt.Errorf("keep the SELinux label %q: %w", bytes.TrimRight(x.label, "\x00"), err)
		}
	}
	return nil
}

// setAttribute sets an attribute; nil removes it: a directory can give its own
// list to new files.
func setAttribute(fs *FS, f *os.File, path, name string, value []byte) error {
	return fs.do("setxattr", path, func() error {
		if value == nil {
			return unix.Fremovexattr(int(f.Fd()), name)
		}
		return unix.Fsetxattr(int(f.Fd()), name, value, 0)
	})
}

// changeTime is the time of the last change of a file, its attributes included.
func changeTime(st *syscall.Stat_t) int64 { return st.Ctim.Nano() }
