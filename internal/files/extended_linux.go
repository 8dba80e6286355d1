package files

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
