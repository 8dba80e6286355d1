package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != content {
		t.Errorf("%s: got %q, want %q", path, got, content)
	}
}

// names returns the entries of a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// change is a change of one file, without a state directory.
type change struct {
	*Tx
	file *Staged
}

func tryBegin(f File, content string) (change, error) {
	c := change{Tx: Begin(TxConfig{Bundle: "x", FS: f.FS})}
	var err error
	c.file, err = c.Stage(f, []byte(content))
	return c, err
}

func begin(t *testing.T, f File, content string) change {
	t.Helper()
	c, err := tryBegin(f, content)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStage_SwapRestoreCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	put(t, path, "old")
	s := begin(t, File{Destination: path, Mode: 0o640}, "new")
	want(t, path, "old")
	want(t, s.file.Path(""), "new")
	if matched, _ := filepath.Match("*.conf", filepath.Base(s.file.Path(""))); matched || s.file.Path("")[len(dir)+1] != '.' {
		t.Errorf("an include would read the staged file %s", s.file.Path(""))
	}
	if err := s.Swap(); err != nil {
		t.Fatal(err)
	}
	want(t, path, "new")
	info, _ := os.Stat(path)
	if got := info.Mode().Perm(); got != 0o640 {
		t.Errorf("mode is %v", got)
	}
	if err := s.Restore(); err != nil {
		t.Fatal(err)
	}
	want(t, path, "old")
	info, _ = os.Stat(path)
	if got := info.Mode().Perm(); got != 0o644 {
		t.Errorf("mode after the restore is %v", got)
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

func TestStage_EqualWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conf")
	put(t, path, "same")
	calls := 0
	s := begin(t, File{Destination: path, FS: &FS{Before: func(string, string) error { calls++; return nil }}}, "same")
	if err := errors.Join(s.Swap(), s.Restore(), s.Commit()); err != nil {
		t.Fatal(err)
	}
	if s.Changed() || calls != 0 {
		t.Errorf("changed %v, %d calls", s.Changed(), calls)
	}
}

func TestStage_SystemCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conf")
	put(t, path, "old")
	var ops []string
	s := begin(t, File{Destination: path, FS: &FS{Before: func(op, _ string) error { ops = append(ops, op); return nil }}}, "new")
	if err := errors.Join(s.Swap(), s.Commit()); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ops, " "), "create write chmod fsync rename fsyncdir"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStage_Refusals(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("target", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("circle", filepath.Join(dir, "circle")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file File
		text string
	}{
		{File{Destination: "relative"}, "not an absolute path"},
		{File{Destination: filepath.Join(dir, "none", "a")}, "does not exist: create it"},
		{File{Destination: dir}, "a directory"},
		{File{Destination: filepath.Join(dir, "fifo")}, "a named pipe"},
		{File{Destination: filepath.Join(dir, "link"), Symlink: SymlinkRefuse}, "symbolic link to target"},
		{File{Destination: filepath.Join(dir, "circle")}, "circle of symbolic links"},
		{File{Destination: filepath.Join(dir, "a"), Owner: "no-such-user-here"}, "no-such-user-here"},
	} {
		if _, err := tryBegin(c.file, "x"); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %q", c.file.Destination, err, c.text)
		}
	}
	if got := len(names(t, dir)); got != 3 {
		t.Errorf("left: %v", names(t, dir))
	}
}

func TestStage_FollowsSymlink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "second"} { // The first time the target is not there.
		s := begin(t, File{Destination: link}, content)
		if err := errors.Join(s.Swap(), s.Commit()); err != nil {
			t.Fatal(err)
		}
		want(t, target, content)
		if info, _ := os.Lstat(link); info.Mode()&fs.ModeSymlink == 0 {
			t.Error("the link was replaced")
		}
	}
}

func TestStage_Backups(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	for _, content := range []string{"1", "2", "3", "4"} {
		s := begin(t, File{Destination: path, Backup: 2}, content)
		if err := errors.Join(s.Swap(), s.Commit()); err != nil {
			t.Fatal(err)
		}
	}
	want(t, path, "4")
	want(t, path+".bak", "3")
	want(t, path+".bak.2", "2")
	if got := names(t, dir); len(got) != 3 {
		t.Errorf("left: %v", got)
	}
}

func TestStage_InPlaceKeepsInode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	put(t, path, "a longer old text")
	before, _ := os.Stat(path)
	s := begin(t, File{Destination: path, InPlace: true, Backup: 1}, "new")
	if err := s.Swap(); err != nil {
		t.Fatal(err)
	}
	want(t, path, "new")
	if err := s.Restore(); err != nil {
		t.Fatal(err)
	}
	want(t, path, "a longer old text")
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	after, _ := os.Stat(path)
	if !os.SameFile(before, after) {
		t.Error("the file was replaced")
	}
}

// TestStage_Owner: root sets the owner before the rename. Other users get an error, and
// the file stays.
func TestStage_Owner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conf")
	put(t, path, "old")
	s, err := tryBegin(File{Destination: path, Owner: "65534", Group: "65534"}, "new")
	if os.Getuid() != 0 {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("got %v", err)
		}
		want(t, path, "old")
		return
	}
	if err = errors.Join(err, s.Swap(), s.Commit()); err != nil {
		t.Fatal(err)
	}
	again := begin(t, File{Destination: path}, "newer") // No owner named: it stays.
	if err := errors.Join(again.Swap(), again.Commit()); err != nil {
		t.Fatal(err)
	}
	info, _ := os.Stat(path)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 65534 || st.Gid != 65534 {
		t.Errorf("owner became %d:%d", st.Uid, st.Gid)
	}
}

func TestWritten_Drift(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conf")
	s := begin(t, File{Destination: path}, "ours")
	if err := s.Swap(); err != nil {
		t.Fatal(err)
	}
	w, err := s.file.Written()
	if err != nil {
		t.Fatal(err)
	}
	if err = s.Commit(); err != nil {
		t.Fatal(err)
	}
	expect := func(want Drift) {
		t.Helper()
		if got, err := w.Drift(File{}); err != nil || got != want {
			t.Errorf("got %q %v, want %q", got, err, want)
		}
	}
	expect(DriftNone)
	put(t, path, "THEM")
	later(t, path)
	expect(DriftContent)
	put(t, path, "ours")
	expect(DriftNone)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(DriftMode)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect(DriftMissing)
}

// later makes the time of a file another one: the clock of a file system may be
// too coarse for two writes of one test.
func later(t *testing.T, path string) {
	t.Helper()
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
}

// A file that is as it was written last is not read again; any other is. What is
// staged and restored is the same.
func TestStage_Known(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conf")
	first := begin(t, File{Destination: path}, "one")
	if err := first.Swap(); err != nil {
		t.Fatal(err)
	}
	w, err := first.file.Written()
	if err != nil || w.Digest != Digest([]byte("one")) {
		t.Fatalf("got %+v, %v", w, err)
	}
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		do   func()
		old  string
		read bool
	}{
		{func() {}, "one", false},
		{func() { put(t, path, "two"); later(t, path) }, "two", true},
		{func() { put(t, path, "three") }, "three", true},
		{func() {
			_ = os.Remove(path)
			put(t, path+".new", "one")
			_ = os.Rename(path+".new", path)
			later(t, path)
		}, "one", true},
	} {
		c.do()
		reads := 0
		s := begin(t, File{Destination: path, Known: &w, FS: &FS{Look: func(op, _ string) error {
			if op == "read" {
				reads++
			}
			return nil
		}}}, "new")
		if s.file.Old != Digest([]byte(c.old)) || !s.Changed() {
			t.Errorf("got %s, want %q", s.file.Old, c.old)
		}
		if read := reads > 0; read != c.read {
			t.Errorf("%s: read: %v, want %v", c.old, read, c.read)
		}
		if err := errors.Join(s.Swap(), s.Restore(), s.Commit()); err != nil {
			t.Fatal(err)
		}
		want(t, path, c.old)
	}
	_ = os.Remove(path)
	gone := begin(t, File{Destination: path, Known: &w}, "new")
	if gone.file.Existed() {
		t.Error("a file that is gone is known")
	}
	gone.Discard()
}

// TestStage_FaultAtEachCall fails each system call once, as a full disk or a
// broken one does: the old file must stay, and nothing may be left behind.
func TestStage_FaultAtEachCall(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for n := 0; ; n++ {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.conf")
			put(t, path, "old")
			count := 0
			fsys := &FS{Before: func(string, string) error {
				if count++; count == n+1 {
					return fault
				}
				return nil
			}}
			s, err := tryBegin(File{Destination: path, Mode: 0o600, FS: fsys}, "new")
			if err == nil {
				if err = s.Swap(); err != nil {
					if back := s.Restore(); back != nil {
						t.Fatal(back)
					}
					s.Discard()
				} else if c := s.Commit(); c != nil {
					t.Fatal(c)
				}
			}
			if count <= n { // Every call has failed once.
				if err != nil || n == 0 {
					t.Fatalf("%d calls, error %v", n, err)
				}
				want(t, path, "new")
				break
			}
			if !errors.Is(err, fault) {
				t.Fatalf("call %d: got %v, want %v", n, err, fault)
			}
			want(t, path, "old")
			if got := names(t, dir); len(got) != 1 {
				t.Errorf("call %d: left %v", n, got)
			}
		}
	}
}

// TestMakeDirs makes missing directories with the mode, returns them, and leaves
// existing ones as they are.
func TestMakeDirs(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b")
	made, err := MakeDirs(File{Destination: filepath.Join(dir, "f")})
	if err != nil || len(made) != 2 || made[0] != dir {
		t.Fatalf("got %v %v", made, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("got %v %v", info, err)
	}
	if again, err := MakeDirs(File{Destination: filepath.Join(dir, "f")}); err != nil || len(again) != 0 {
		t.Errorf("again: %v %v", again, err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeDirs(File{Destination: filepath.Join(file, "x", "f")}); err == nil {
		t.Error("a directory below a file was made")
	}
	if _, err := MakeDirs(File{Destination: filepath.Join(base, "c", "f"), Owner: "no such user of zkagent"}); err == nil {
		t.Error("an owner that does not exist was taken")
	}
	RemoveDirs(made)
	if _, err := os.Stat(filepath.Join(base, "a")); !os.IsNotExist(err) {
		t.Errorf("not removed: %v", err)
	}
}
