package files_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/files"
)

// obstacle is what somebody else puts at a name of ours, and takes away again.
type obstacle struct {
	name string
	put  func(t *testing.T, path string)
	fs   *files.FS // for a disk that fails
}

// obstacles lists everything that can stand at a name.
func obstacles() []obstacle {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fails := func(err error) *files.FS {
		return &files.FS{Look: func(op, path string) error {
			if op == "read" && strings.HasSuffix(path, "dest") {
				return err
			}
			return nil
		}}
	}
	regular := func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("theirs"), 0o644)) }
	return []obstacle{
		{name: "directory", put: func(t *testing.T, path string) { must(t, os.MkdirAll(filepath.Join(path, "x"), 0o755)) }},
		{name: "named pipe", put: func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o666)) }},
		{name: "socket", put: func(t *testing.T, path string) {
			t.Chdir(filepath.Dir(path)) // The path of a socket is short.
			l, err := net.Listen("unix", filepath.Base(path))
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}},
		{name: "device", put: func(t *testing.T, path string) {
			if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|5); err != nil {
				t.Skip("only root makes a device:", err)
			}
		}},
		{name: "loop of links", put: func(t *testing.T, path string) {
			must(t, os.Symlink(path+"2", path))
			must(t, os.Symlink(path, path+"2"))
		}},
		{name: "link to a device", put: func(t *testing.T, path string) { must(t, os.Symlink("/dev/zero", path)) }},
		{name: "link to a directory", put: func(t *testing.T, path string) { must(t, os.Symlink("/", path)) }},
		{name: "sparse file", put: func(t *testing.T, path string) {
			must(t, os.WriteFile(path, nil, 0o644))
			must(t, os.Truncate(path, 8<<40))
		}},
		{name: "growing file", put: regular, fs: &files.FS{Look: func(op, path string) error {
			if data, err := os.ReadFile(path); op == "read" && err == nil && string(data) == "theirs" {
				return os.Truncate(path, 8<<40)
			}
			return nil
		}}},
		{name: "failing disk", put: regular, fs: fails(syscall.EIO)},
		{name: "no permission", put: regular, fs: fails(syscall.EACCES)},
	}
}

// soon fails the test when fn does not return. A file that grows is read up to 64 MB, which
// takes seconds with the race detector on a busy machine.
func soon(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatal("the reader hangs")
	}
}

// Every reader of a destination ends soon, whatever stands there, and reports it.
func TestForeign_EveryReader(t *testing.T) {
	stage := func(f files.File) error {
		tx := files.Begin(files.TxConfig{Bundle: "x", FS: f.FS})
		_, err := tx.Stage(f, []byte("new"))
		return errors.Join(err, tx.Discard())
	}
	readers := map[string]func(f files.File, w files.Written) error{
		"stage": func(f files.File, _ files.Written) error { return stage(f) },
		"stage in place": func(f files.File, _ files.Written) error {
			f.InPlace = true
			return stage(f)
		},
		"read": func(f files.File, _ files.Written) error { _, _, err := files.Read(f); return err },
		"remove": func(f files.File, _ files.Written) error {
			tx := files.Begin(files.TxConfig{Bundle: "x", FS: f.FS})
			ours, err := tx.Remove(f, files.Digest([]byte("ours")))
			if !ours {
				err = errors.Join(err, errors.New("kept"))
			}
			return errors.Join(err, tx.Discard())
		},
		"drift": func(f files.File, w files.Written) error {
			d, err := w.Drift(f)
			if d != files.DriftNone {
				err = errors.Join(err, errors.New(string(d)))
			}
			return err
		},
		"sweep": func(f files.File, _ files.Written) error {
			return errors.Join(files.Sweep(f.FS, "", f.Destination), errors.New("reads no bytes"))
		},
	}
	for _, o := range obstacles() {
		for name, reader := range readers {
			t.Run(o.name+"/"+name, func(t *testing.T) {
				f := files.File{Destination: filepath.Join(t.TempDir(), "dest")}
				tx := files.Begin(files.TxConfig{Bundle: "x"})
				s, err := tx.Stage(f, []byte("ours-1"))
				if err == nil {
					err = tx.Swap()
				}
				if err != nil {
					t.Fatal(err)
				}
				w, err := s.Written()
				if err = errors.Join(err, tx.Commit(), os.Remove(f.Destination)); err != nil {
					t.Fatal(err)
				}
				o.put(t, f.Destination)
				f.FS = o.fs
				soon(t, func() {
					if err := reader(f, w); err == nil {
						t.Error("no error")
					}
				})
			})
		}
	}
}

// A journal whose file has become something else: recovery ends soon, says what stands
// in the way, and finishes when that has gone.
func TestForeign_Recover(t *testing.T) {
	for _, o := range obstacles() {
		for _, killed := range []string{"before the swap", "after the swap", "with the kept file exchanged"} {
			t.Run(o.name+"/"+killed, func(t *testing.T) {
				dir, state := t.TempDir(), t.TempDir()
				f := files.File{Destination: filepath.Join(dir, "dest")}
				if err := os.WriteFile(f.Destination, []byte("old"), 0o644); err != nil {
					t.Fatal(err)
				}
				renames := 0
				cfg := files.TxConfig{Bundle: "x", StateDir: state, Durable: true, FS: &files.FS{Before: func(op, _ string) error {
					if op == "rename" {
						renames++ // The first one puts the journal in place.
					}
					if renames > 1 && killed == "before the swap" {
						return errors.New("killed")
					}
					return nil
				}}}
				tx := files.Begin(cfg)
				if _, err := tx.Stage(f, []byte("new")); err != nil {
					t.Fatal(err)
				}
				if err := tx.Swap(); err != nil && killed != "before the swap" {
					t.Fatal(err)
				}
				tx.Keep()
				at := f.Destination
				if killed == "with the kept file exchanged" {
					at = filepath.Join(dir, keptName(t, dir))
				}
				if err := os.Remove(at); err != nil {
					t.Fatal(err)
				}
				o.put(t, at)
				soon(t, func() {
					list, err := files.RecoverAll(files.TxConfig{StateDir: state, FS: o.fs})
					if killed != "with the kept file exchanged" && err == nil {
						t.Errorf("no error: %+v", list)
					}
					for _, r := range list {
						r.Tx.Keep()
					}
				})
				if err := os.RemoveAll(at); err != nil {
					t.Fatal(err)
				}
				list, err := files.RecoverAll(files.TxConfig{StateDir: state})
				if err != nil || len(list) != 1 {
					t.Fatalf("afterwards: %+v, %v", list, err)
				}
				if err := list[0].Tx.Commit(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// keptName is the name of the link to the old file.
func keptName(t *testing.T, dir string) string {
	t.Helper()
	kept, err := filepath.Glob(filepath.Join(dir, ".dest.zkagent-old-*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	return filepath.Base(kept[0])
}

// A directory of another user: a link in it leads no new directory elsewhere, and what
// is new is given away only where it was made.
func TestMakeDirs_FollowsNobody(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := t.TempDir()
	root, theirs := filepath.Join(dir, "root"), filepath.Join(dir, "theirs")
	for _, d := range []string{root, theirs} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(theirs, 65534, 65534), os.Symlink(root, filepath.Join(theirs, "x"))); err != nil {
		t.Fatal(err)
	}
	f := files.File{Destination: filepath.Join(theirs, "x", "cron.d", "f"), Owner: "65534"}
	if made, err := files.MakeDirs(f); err == nil || len(made) > 0 {
		t.Errorf("made %v, %v", made, err)
	}
	// The link comes between the look and the call.
	f.Destination = filepath.Join(theirs, "y", "cron.d", "f")
	f.FS = &files.FS{Before: func(op, path string) error {
		if op == "mkdir" && filepath.Base(path) == "cron.d" {
			return errors.Join(os.Rename(filepath.Join(theirs, "y"), filepath.Join(theirs, "z")), os.Symlink(root, filepath.Join(theirs, "y")))
		}
		return nil
	}}
	_, err := files.MakeDirs(f)
	if left, _ := os.ReadDir(root); len(left) > 0 {
		t.Errorf("a directory of root has %v now, %v", left, err)
	}
	// A directory of root takes the place of the new one.
	f.Destination = filepath.Join(theirs, "v", "f")
	f.FS = &files.FS{After: func(op, path string) {
		if op == "mkdir" {
			if err := errors.Join(os.WriteFile(filepath.Join(root, "secret"), nil, 0o600), os.Remove(path), os.Rename(root, path)); err != nil {
				t.Error(err)
			}
		}
	}}
	_, err = files.MakeDirs(f)
	info, statErr := os.Stat(filepath.Join(theirs, "v"))
	if err == nil || statErr != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("a directory of root was given away: %v, %v", err, statErr)
	}
}

// The agent's own files decide what it writes. One that another user could have written
// is not read, and a directory of such files is refused.
func TestOwn_ExposedIsRefused(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "journal")
	path := filepath.Join(sub, "site.journal")
	if err := files.Save(path, []byte(`{"bundle":"site","phase":"swap"}`)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(files.CheckOwn(dir), files.CheckOwn(sub), files.CheckOwn(filepath.Join(dir, "none"))); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, sub} {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := files.CheckOwn(dir); !errors.Is(err, files.ErrExposed) || !strings.Contains(err.Error(), "chmod go-w "+at) {
			t.Errorf("%s: %v", at, err)
		}
		if err := os.Chmod(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	recovered := func() error {
		list, err := files.RecoverAll(files.TxConfig{StateDir: sub})
		if err == nil || len(list) > 0 {
			t.Errorf("an exposed journal was used: %v, %v", list, err)
		}
		return err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := recovered(); !errors.Is(err, files.ErrExposed) {
		t.Error(err)
	}
	if err := files.LoadJSON(path, &struct{}{}); !errors.Is(err, files.ErrExposed) {
		t.Error(err)
	}
	if os.Getuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if err := recovered(); !errors.Is(err, files.ErrExposed) {
		t.Error(err)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := files.CheckOwn(dir); !errors.Is(err, files.ErrExposed) || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Error(err)
	}
}

// Backups never give more permissions than the file that replaced them.
func TestBackup_NotWiderThanTheFile(t *testing.T) {
	f := files.File{Destination: filepath.Join(t.TempDir(), "dest"), Mode: 0o644, Backup: 3}
	write := func(text string) {
		t.Helper()
		tx := files.Begin(files.TxConfig{Bundle: "x"})
		_, err := tx.Stage(f, []byte(text))
		if err == nil {
			err = errors.Join(tx.Swap(), tx.Commit())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"1", "2", "3"} {
		write(text)
	}
	f.Mode = 0o600
	write("3")
	for _, name := range []string{"dest", "dest.bak", "dest.bak.2", "dest.bak.3"} {
		info, err := os.Stat(filepath.Join(filepath.Dir(f.Destination), name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// A file of somebody else that has the name of a destination or a backup as a second
// name keeps its mode and its content.
func TestBackup_HardLinkElsewhere(t *testing.T) {
	for _, name := range []string{"dest", "dest.bak", "dest.bak.2", "dest.bak.3"} {
		dir := t.TempDir()
		theirs := filepath.Join(dir, "theirs")
		f := files.File{Destination: filepath.Join(dir, "dest"), Mode: 0o600, Backup: 3}
		if err := errors.Join(os.WriteFile(theirs, []byte("theirs"), 0o644), os.Link(theirs, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"1", "2", "3", "4"} {
			tx := files.Begin(files.TxConfig{Bundle: "x"})
			_, err := tx.Stage(f, []byte(text))
			if err = errors.Join(err, tx.Swap(), tx.Commit()); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(theirs)
			data, readErr := os.ReadFile(theirs)
			if errors.Join(err, readErr) != nil || info.Mode().Perm() != 0o644 || string(data) != "theirs" {
				t.Fatalf("as %s, after %q: %v %q", name, text, info.Mode(), data)
			}
		}
	}
}

// The error of one of the agent's own files has its whole path, and no name of one try.
func TestSave_ErrorNamesThePlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "note.json")
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := files.Save(path, nil); err == nil || !strings.Contains(err.Error(), " "+path+": ") || strings.Contains(err.Error(), "zkagent-new") {
		t.Error(err)
	}
}

// ReadNamed opens nothing but regular files: to open a device can start it. Its error says
// what is there instead.
func TestReadNamed_OpensNoDevice(t *testing.T) {
	for _, o := range obstacles() {
		path := filepath.Join(t.TempDir(), "file")
		t.Run(o.name, func(t *testing.T) {
			if o.fs != nil {
				t.Skip("for calls that have an FS")
			}
			o.put(t, path)
			soon(t, func() {
				_, err := files.ReadNamed(path, files.MaxSize)
				if err == nil || !strings.Contains(err.Error(), path) || errors.Is(err, syscall.ENXIO) {
					t.Error(err)
				}
				if err := files.LoadJSON(path, new(int)); err == nil || errors.Is(err, syscall.ENXIO) || strings.HasPrefix(o.name, "link") && errors.Is(err, syscall.ELOOP) {
					t.Error(err)
				}
			})
		})
	}
}

// A new file can be read by its owner alone until its mode is set, and the journal of a
// change of several files is durable before the first of them is renamed.
func TestTx_OrderOfCalls(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	synced := false
	fsys := &files.FS{}
	fsys.Before = func(op, path string) error {
		switch {
		case op == "chmod":
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s is %v before its mode is set", path, info.Mode())
			}
		case op == "fsync" && strings.Contains(path, ".journal"):
			synced = true
		case op == "rename" && filepath.Dir(path) == dir && !synced:
			t.Errorf("%s is in place before the journal is durable", path)
		}
		return nil
	}
	tx := files.Begin(files.TxConfig{Bundle: "x", StateDir: state, FS: fsys})
	var err error
	for _, name := range []string{"a", "b"} {
		_, stageErr := tx.Stage(files.File{Destination: filepath.Join(dir, name), Mode: 0o644}, []byte("new"))
		err = errors.Join(err, stageErr)
	}
	if err = errors.Join(err, tx.Swap(), tx.Commit()); err != nil || !synced {
		t.Error(synced, err)
	}
}
