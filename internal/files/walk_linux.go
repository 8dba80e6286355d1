package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
// Each step holds the directory open, so nothing that is exchanged behind it
// has an effect.
func walk(path, symlink string) (walked, error) {
	rest := strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	w := walked{path: "/"}
	dir, err := openPath(unix.AT_FDCWD, "/")
	if err != nil {
		return w, err
	}
	defer func() { _ = dir.Close() }()
	for links := 0; ; {
		if w.info, err = dir.Stat(); err != nil {
			return w, err
		}
		if len(rest) == 0 {
			w.shared = w.shared || writableByOthers(w.info)
			return w, nil
		}
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		w.shared = w.shared || writableByOthers(w.info) && !keptBySticky(dir, w.info, name)
		next, err := openPath(int(dir.Fd()), name)
		if err == nil {
			_ = dir.Close()
			dir, w.path = next, filepath.Join(w.path, name)
			continue
		}
		link, isLink := readLinkAt(int(dir.Fd()), name)
		if !isLink {
			return w, &fs.PathError{Op: "open", Path: filepath.Join(w.path, name), Err: errors.Unwrap(err)}
		}
		if w.shared && symlink != SymlinkFollow {
			return w, linkError(filepath.Join(w.path, name), link)
		}
		if links++; links > maxLinks {
			return w, errCircle
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(w.path, link)
		}
		rest = append(strings.Split(strings.Trim(filepath.Clean(link), "/"), "/"), rest...)
		if next, err = openPath(unix.AT_FDCWD, "/"); err != nil {
			return w, err
		}
		_ = dir.Close()
		dir, w.path, w.shared = next, "/", false // It was followed: each step is looked at anew.
	}
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
func keptBySticky(dir *os.File, info fs.FileInfo, name string) bool {
	if info.Mode()&fs.ModeSticky == 0 || !trusted(info) {
		return false
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
}

func trusted(info fs.FileInfo) bool {
	uid, ok := owner(info)
	return !ok || uid == 0 || uid == os.Geteuid()
}
