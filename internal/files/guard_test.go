//go:build linux

package files_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/files"
)

// put replaces one file.
func put(f files.File, content string) error {
	tx := files.Begin(files.TxConfig{Bundle: "x", FS: f.FS})
	_, err := tx.Stage(f, []byte(content))
	if err == nil {
		err = tx.Swap()
	}
	if err != nil {
		return errors.Join(err, tx.Discard())
	}
	return tx.Commit()
}

// acl is the list user::rw-, user:65534:rw-, group::---, mask::rw-, other::---:
// the mode shows 0660, and the group has no right.
func acl() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 6, 0xffffffff}, {0x02, 6, 65534}, {0x04, 0, 0xffffffff}, {0x10, 6, 0xffffffff}, {0x20, 0, 0xffffffff}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

func readACL(t *testing.T, path string) []byte {
	t.Helper()
	buf := make([]byte, 1024)
	n, err := unix.Getxattr(path, "system.posix_acl_access", buf)
	if errors.Is(err, unix.ENODATA) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func oldFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.conf")
	if err := os.WriteFile(path, []byte("old"), 0o660); err != nil {
		t.Fatal(err)
	}
	return path
}

// nextTick waits until a change of the file gets another time: kernels before 6.13
// count changes in ticks.
func nextTick(t *testing.T, path string) {
	t.Helper()
	changed := func(path string) syscall.Timespec {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ctim
	}
	for other := path + ".tick"; ; {
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if changed(other) != changed(path) {
			return
		}
	}
}

// What is known of a file saves reading its access list, but not while somebody sets one.
func TestStage_KnownKeepsAccessList(t *testing.T) {
	path := oldFile(t)
	var known *files.Written
	for i, set := range []func() error{
		func() error { return nil },
		func() error { return nil },
		func() error { return unix.Setxattr(path, "system.posix_acl_access", acl(), 0) },
		func() error { return nil },
		func() error { return unix.Removexattr(path, "system.posix_acl_access") },
	} {
		nextTick(t, path)
		if err := set(); err != nil {
			t.Skip("no access lists here: ", err)
		}
		want := readACL(t, path)
		tx := files.Begin(files.TxConfig{})
		s, err := tx.Stage(files.File{Destination: path, Known: known}, strconv.AppendInt(nil, int64(i), 10))
		if err == nil {
			err = tx.Swap()
		}
		if err != nil {
			t.Fatal(err)
		}
		w, err := s.Written()
		if err = errors.Join(err, tx.Commit()); err != nil {
			t.Fatal(err)
		}
		if got := readACL(t, path); !bytes.Equal(got, want) {
			t.Errorf("change %d: the list is %x, want %x", i, got, want)
		}
		known = &w
	}
}

// A file that somebody wrote after the swap is not taken for ours.
func TestWritten_SeesALaterEdit(t *testing.T) {
	path := oldFile(t)
	tx := files.Begin(files.TxConfig{})
	s, err := tx.Stage(files.File{Destination: path}, []byte("new"))
	if err == nil {
		err = tx.Swap()
	}
	if err == nil {
		err = os.WriteFile(path, []byte("odd"), 0o660)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Written()
	if err = errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	if d, err := w.Drift(files.File{}); d != files.DriftContent || err != nil {
		t.Errorf("drift is %q, %v", d, err)
	}
}

func TestSwap_KeepsAccessList(t *testing.T) {
	path := oldFile(t)
	if err := unix.Setxattr(path, "system.posix_acl_access", acl(), 0); err != nil {
		t.Skip("no access lists here: ", err)
	}
	if err := put(files.File{Destination: path, Backup: 1}, "new"); err != nil {
		t.Fatal(err)
	}
	if got := readACL(t, path); !bytes.Equal(got, acl()) {
		t.Errorf("the list became %x", got)
	}
	// A list that cannot be carried over: nothing is swapped.
	fsys := &files.FS{Before: func(op, _ string) error {
		if op == "setxattr" {
			return unix.EPERM
		}
		return nil
	}}
	if err := put(files.File{Destination: path, FS: fsys}, "newer"); err == nil || !strings.Contains(err.Error(), "access control list") {
		t.Errorf("got %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "new" {
		t.Errorf("the file became %q", got)
	}
}

// TestSwap_InheritsNoAccessList: a directory gives new files a list, which the
// replaced file did not have.
func TestSwap_InheritsNoAccessList(t *testing.T) {
	path := oldFile(t)
	if err := unix.Setxattr(filepath.Dir(path), "system.posix_acl_default", acl(), 0); err != nil {
		t.Skip("no access lists here: ", err)
	}
	if err := put(files.File{Destination: path}, "new"); err != nil {
		t.Fatal(err)
	}
	if got := readACL(t, path); got != nil {
		t.Errorf("the file got the list %x", got)
	}
}

func TestSwap_KeepsLabel(t *testing.T) {
	path := oldFile(t)
	label := []byte("system_u:object_r:httpd_config_t:s0\x00")
	if err := unix.Setxattr(path, "security.selinux", label, 0); err != nil {
		t.Skip("no labels here: ", err)
	}
	if err := put(files.File{Destination: path}, "new"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	if n, err := unix.Getxattr(path, "security.selinux", buf); err != nil || !bytes.Equal(buf[:n], label) {
		t.Errorf("the label became %q, %v", buf[:max(n, 0)], err)
	}
}

// TestInPlace_ReadOnlyDirectory: only the file can be written, which is what
// in_place is for. Without it the error names it.
func TestInPlace_ReadOnlyDirectory(t *testing.T) {
	for _, restore := range []bool{false, true} {
		path := oldFile(t)
		state := t.TempDir()
		fsys := &files.FS{Before: func(op, p string) error {
			if (op == "create" || op == "link" || op == "rename" || op == "remove") && filepath.Dir(p) == filepath.Dir(path) {
				return syscall.EROFS
			}
			return nil
		}}
		if err := put(files.File{Destination: path, FS: fsys}, "new"); !errors.Is(err, syscall.EROFS) {
			t.Errorf("got %v", err)
		}
		tx := files.Begin(files.TxConfig{Bundle: "x", StateDir: state, FS: fsys})
		if _, err := tx.Stage(files.File{Destination: path, InPlace: true, Mode: 0o600}, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if err := tx.Swap(); err != nil {
			t.Fatal(err)
		}
		want, mode := "new", os.FileMode(0o600)
		if restore {
			want, mode = "old", 0o640
			if err := tx.Restore(); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		got, _ := os.ReadFile(path)
		info, _ := os.Stat(path)
		if string(got) != want || info.Mode().Perm()&^0o020 != mode {
			t.Errorf("got %q, mode %v", got, info.Mode())
		}
		if left, _ := os.ReadDir(state); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	}
}

func TestSwap_BusyNamesInPlace(t *testing.T) {
	path := oldFile(t)
	fsys := &files.FS{Before: func(op, _ string) error {
		if op == "rename" {
			return syscall.EBUSY
		}
		return nil
	}}
	if err := put(files.File{Destination: path, FS: fsys}, "new"); err == nil || !strings.Contains(err.Error(), "in_place = true") {
		t.Errorf("got %v", err)
	}
}

// TestLinks_OfAnotherUser: root writes into a directory that another user owns.
// A link there, as the file or on the way to it, leads to no other file, unless
// the settings follow it. The links of the administrator are followed.
func TestLinks_OfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := t.TempDir()
	victim := filepath.Join(dir, "etc", "victim")
	theirs := filepath.Join(dir, "theirs")
	for _, d := range []string{"etc", "theirs", "theirs/sub"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(victim, []byte("secret"), 0o644))
	check(os.Symlink(victim, filepath.Join(theirs, "file")))
	check(os.Symlink(filepath.Dir(victim), filepath.Join(theirs, "way")))
	check(os.Symlink("../../etc", filepath.Join(theirs, "sub", "way")))
	check(os.Link(victim, filepath.Join(theirs, "hard")))
	check(os.Symlink(filepath.Dir(victim), filepath.Join(dir, "admin")))
	check(os.Chown(theirs, 65534, 65534))
	attacks := []files.File{
		{Destination: filepath.Join(theirs, "file")},
		{Destination: filepath.Join(theirs, "way", "victim")},
		{Destination: filepath.Join(theirs, "sub", "way", "victim")},
		{Destination: filepath.Join(theirs, "way", "victim"), Symlink: files.SymlinkRefuse},
		{Destination: filepath.Join(theirs, "way", "victim"), InPlace: true},
		{Destination: filepath.Join(theirs, "hard"), InPlace: true},
	}
	for _, f := range attacks {
		if err := put(f, "attack"); err == nil {
			t.Errorf("%+v: no error", f)
		}
		if got, _ := os.ReadFile(victim); string(got) != "secret" {
			t.Fatalf("%+v: the file became %q", f, got)
		}
	}
	check(put(files.File{Destination: filepath.Join(theirs, "way", "victim"), Symlink: files.SymlinkFollow}, "followed"))
	check(put(files.File{Destination: filepath.Join(dir, "admin", "victim")}, "of the administrator"))
	if got, _ := os.ReadFile(victim); string(got) != "of the administrator" {
		t.Errorf("the file is %q", got)
	}
}
