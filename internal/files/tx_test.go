package files

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// bundle is a directory with three files: one changed, one new, one removed.
type bundle struct{ dir, state string }

func newBundle(t *testing.T) bundle {
	t.Helper()
	b := bundle{t.TempDir(), filepath.Join(t.TempDir(), "state")}
	put(t, filepath.Join(b.dir, "changed"), "old")
	put(t, filepath.Join(b.dir, "removed"), "old")
	return b
}

// stage stages the change.
func (b bundle) stage(fsys *FS) (*Tx, error) {
	tx := Begin(TxConfig{Bundle: "site/a", StateDir: b.state, FS: fsys})
	for _, name := range []string{"changed", "created"} {
		if _, err := tx.Stage(File{Destination: filepath.Join(b.dir, name)}, []byte("new")); err != nil {
			return tx, err
		}
	}
	_, err := tx.Remove(File{Destination: filepath.Join(b.dir, "removed")}, Digest([]byte("old")))
	return tx, err
}

// is returns which of the two states the files are in, or fails.
func (b bundle) is(t *testing.T) bool {
	t.Helper()
	var states []string
	for _, name := range []string{"changed", "created", "removed"} {
		data, err := os.ReadFile(filepath.Join(b.dir, name))
		if err != nil {
			data = []byte("-")
		}
		states = append(states, string(data))
	}
	switch strings.Join(states, " ") {
	case "old - old":
		return false
	case "new new -":
		return true
	}
	t.Fatalf("a mixture: %s", states)
	return false
}

func (b bundle) clean(t *testing.T) {
	t.Helper()
	for _, dir := range []string{b.dir, b.state} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name()[0] == '.' || filepath.Ext(e.Name()) == journalExt {
				t.Errorf("left: %s", e.Name())
			}
		}
	}
}

func TestTx_SwapCommit(t *testing.T) {
	b := newBundle(t)
	tx, err := b.stage(nil)
	if err != nil {
		t.Fatal(err)
	}
	staged := t.TempDir()
	if err := errors.Join(tx.Materialize(staged), tx.Swap()); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(staged, b.dir, "created"), "new")
	if got, _ := filepath.Glob(filepath.Join(b.state, "*")); len(got) != 1 {
		t.Errorf("journals: %v", got)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if !b.is(t) {
		t.Error("the files are old")
	}
	b.clean(t)
}

func TestTx_Restore(t *testing.T) {
	b := newBundle(t)
	tx, err := b.stage(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tx.Swap(), tx.Restore(), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	if b.is(t) {
		t.Error("the files are new")
	}
	b.clean(t)
}

func TestTx_RemoveLeavesWhatOthersWrote(t *testing.T) {
	b := newBundle(t)
	tx := Begin(TxConfig{Bundle: "x"})
	ok, err := tx.Remove(File{Destination: filepath.Join(b.dir, "removed")}, Digest([]byte("what we wrote")))
	if ok || err != nil || tx.Changed() {
		t.Errorf("got %v %v, changed %v", ok, err, tx.Changed())
	}
	ok, err = tx.Remove(File{Destination: filepath.Join(b.dir, "no", "such")}, "")
	if !ok || err != nil || tx.Changed() {
		t.Errorf("got %v %v, changed %v", ok, err, tx.Changed())
	}
}

func TestTx_SameDestinationTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	tx := Begin(TxConfig{Bundle: "x"})
	if _, err := tx.Stage(File{Destination: path}, []byte("1")); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Stage(File{Destination: path + "/../a"}, []byte("2")); err == nil {
		t.Error("two templates have one destination")
	}
	if err := tx.Discard(); err != nil {
		t.Fatal(err)
	}
}

// TestTx_FaultAtEachCall fails each system call once: all old or all new.
func TestTx_FaultAtEachCall(t *testing.T) {
	for n := 0; ; n++ {
		b := newBundle(t)
		count := 0
		fsys := &FS{Before: func(string, string) error {
			if count++; count == n+1 {
				return syscall.ENOSPC
			}
			return nil
		}}
		tx, err := b.stage(fsys)
		if err == nil {
			err = tx.Swap()
		}
		isNew := b.is(t)
		if isNew != (err == nil) {
			t.Fatalf("call %d: new %v, error %v", n, isNew, err)
		}
		if err != nil {
			err = tx.Discard()
		} else {
			err = tx.Commit()
		}
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("call %d: %v", n, err)
		}
		if count <= n {
			b.clean(t)
			return
		}
		if err == nil {
			b.clean(t)
		}
	}
}

// killedEnv makes the test binary a child that dies at a system call.
const killedEnv = "ZKAGENT_TEST_KILLED"

// TestTx_Killed kills a process at each of its system calls. Afterwards
// Recover must find all files old or all new, and know of a pending reload
// whenever the new ones may have been reloaded.
func TestTx_Killed(t *testing.T) {
	if spec := os.Getenv(killedEnv); spec != "" {
		killedChild(t, spec)
		return
	}
	for _, restore := range []bool{false, true} {
		t.Run(fmt.Sprintf("restore=%v", restore), func(t *testing.T) {
			for n := 1; ; n++ {
				b := newBundle(t)
				if killAt(t, b, n, restore) {
					return
				}
				recoverKilled(t, b, n, restore)
			}
		})
	}
}

// killAt runs the child; it returns true when it had fewer calls than n.
func killAt(t *testing.T, b bundle, n int, restore bool) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTx_Killed$")
	cmd.Env = append(os.Environ(), killedEnv+"="+strconv.Itoa(n), "DIR="+b.dir, "STATE="+b.state, "RESTORE="+strconv.FormatBool(restore))
	out, err := cmd.CombinedOutput()
	if err == nil {
		if b.is(t) == restore {
			t.Errorf("the child ended with the wrong files")
		}
		b.clean(t)
		return true
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || !exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("call %d: %v: %s", n, err, out)
	}
	return false
}

func killedChild(t *testing.T, spec string) {
	t.Helper()
	n, err := strconv.Atoi(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := bundle{os.Getenv("DIR"), os.Getenv("STATE")}
	tx, err := b.stage(&FS{Before: func(string, string) error {
		if n--; n == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}})
	if err == nil {
		err = tx.Swap()
	}
	if err == nil && os.Getenv("RESTORE") == "true" {
		err = tx.Restore()
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func recoverKilled(t *testing.T, b bundle, n int, restore bool) {
	t.Helper()
	list, err := RecoverAll(TxConfig{StateDir: b.state})
	if err != nil {
		t.Fatalf("call %d: %v", n, err)
	}
	isNew := b.is(t)
	for _, r := range list {
		if r.Tx.cfg.Bundle != "site/a" || r.New != isNew {
			t.Errorf("call %d: recovered %+v, files new %v", n, r, isNew)
		}
		if isNew && !r.Reload {
			t.Errorf("call %d: the reload of the new files is not pending", n)
		}
		if err := errors.Join(r.Tx.Restore(), r.Tx.Commit()); err != nil {
			t.Errorf("call %d: %v", n, err)
		}
		b.is(t)
	}
	if isNew && len(list) == 0 && restore {
		t.Errorf("call %d: the files are new and nothing is known of it", n)
	}
	if again, err := RecoverAll(TxConfig{StateDir: b.state}); err != nil || len(again) != 0 {
		t.Errorf("call %d: recovered again: %v %v", n, again, err)
	}
	if err := Sweep(nil, b.state, filepath.Join(b.dir, "changed"), filepath.Join(b.dir, "created"), filepath.Join(b.dir, "removed")); err != nil {
		t.Error(err)
	}
	b.clean(t)
}

// A hand that writes through the kept link before the swap leaves nothing to keep.
func TestRecover_EditThroughTheKeptLink(t *testing.T) {
	b := newBundle(t)
	tx, err := b.stage(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tx.changed() {
		if err := s.keep(tx.cfg, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.journal(phaseSwap); err != nil {
		t.Fatal(err)
	}
	tx.Keep() // The process is killed here.
	put(t, filepath.Join(b.dir, "changed"), "hand")
	list, err := RecoverAll(TxConfig{StateDir: b.state})
	if err != nil || len(list) != 1 || list[0].New {
		t.Fatalf("recovered %+v: %v", list, err)
	}
	if err := list[0].Tx.Commit(); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(b.dir, "changed"), "hand")
	want(t, filepath.Join(b.dir, "removed"), "old")
	b.clean(t)
}

// A hand that writes through the kept link just before the swap: what it wrote is the
// old file. It comes back, or goes with the change.
func TestRecover_EditBetweenTheLinkAndTheSwap(t *testing.T) {
	for _, restore := range []bool{false, true} {
		b := newBundle(t)
		fsys, edited := &FS{}, false
		fsys.Before = func(op, _ string) error {
			if op == "rename" && !edited && Pending(b.state, "site/a") {
				edited = true
				put(t, filepath.Join(b.dir, "changed"), "hand")
			}
			return nil
		}
		tx, err := b.stage(fsys)
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Swap(); err != nil || !edited {
			t.Fatalf("edited: %v, %v", edited, err)
		}
		tx.Keep() // The process is killed here.
		list, err := RecoverAll(TxConfig{StateDir: b.state})
		if err != nil || len(list) != 1 || !list[0].New {
			t.Fatalf("recovered %+v: %v", list, err)
		}
		content := "new"
		if restore {
			content = "hand"
			if err := list[0].Tx.Restore(); err != nil {
				t.Fatal(err)
			}
		}
		if err := list[0].Tx.Commit(); err != nil {
			t.Fatal(err)
		}
		want(t, filepath.Join(b.dir, "changed"), content)
		b.clean(t)
	}
}

func TestRecover_DamagedJournal(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "x.journal"), "{")
	if _, err := RecoverAll(TxConfig{StateDir: dir}); err == nil {
		t.Error("no error")
	}
	if list, err := RecoverAll(TxConfig{StateDir: dir}); err != nil || len(list) != 0 || len(damaged(dir)) != 1 {
		t.Errorf("got %v %v, damaged %v", list, err, damaged(dir))
	}
}

// TestTx_ManyFiles: a change of more files than the process may open leaves
// descriptors for everything else.
// One of many files cannot be written: nothing is left of the others.
func TestTx_OneOfManyFails(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	full := errors.New("no space left")
	fsys := &FS{Before: func(op, path string) error {
		if op == "fsync" && strings.Contains(path, "file0070") {
			return full
		}
		return nil
	}}
	var list []Content
	for i := range 200 {
		list = append(list, Content{File{Destination: filepath.Join(dir, fmt.Sprintf("file%04d", i))}, []byte("new")})
	}
	tx := Begin(TxConfig{Bundle: "b", StateDir: state, FS: fsys})
	if _, err := tx.StageAll(list); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if err := tx.Discard(); err != nil {
		t.Error(err)
	}
	tx = Begin(TxConfig{Bundle: "b", StateDir: state})
	if _, err := tx.StageAll(append(list, list[3])); err == nil {
		t.Error("two templates with one destination")
	}
	if err := tx.Discard(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %d files, %v", len(left), err)
	}
	tx = Begin(TxConfig{Bundle: "b", StateDir: state})
	staged, err := tx.StageAll(list)
	if err != nil || len(staged) != len(list) || staged[199].Destination() != list[199].File.Destination {
		t.Fatalf("%d files, %v", len(staged), err)
	}
	if err := errors.Join(tx.Swap(), tx.Commit()); err != nil {
		t.Error(err)
	}
	want(t, filepath.Join(dir, "file0199"), "new")
}

func TestTx_ManyFiles(t *testing.T) {
	dir := t.TempDir()
	open := func() int {
		t.Helper()
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for round := range 2 { // new files, then changed ones
		before := open()
		tx := Begin(TxConfig{StateDir: t.TempDir(), Bundle: "b"})
		for i := range 300 {
			if _, err := tx.Stage(File{Destination: filepath.Join(dir, fmt.Sprint(i))}, []byte(fmt.Sprint(round, i))); err != nil {
				t.Fatal(err)
			}
		}
		if n := open() - before; n > 20 {
			t.Errorf("300 staged files of one directory hold %d descriptors", n)
		}
		if _, err := tx.Stage(File{Destination: filepath.Join(dir, "7")}, nil); err == nil {
			t.Error("a destination was staged twice")
		}
		if err := tx.Swap(); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := open() - before; n > 5 {
			t.Errorf("the change has left %d descriptors", n)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "299")); err != nil || string(data) != fmt.Sprint(round, 299) {
			t.Errorf("got %q, %v", data, err)
		}
	}
}

// The old contents of a change stay on the disk: its writer chooses neither how many files
// others have put there nor how large.
func TestTx_HoldsNoOldContents(t *testing.T) {
	dir := t.TempDir()
	const files, size = 8, 4 << 20
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	tx := Begin(TxConfig{StateDir: t.TempDir(), Bundle: "b"})
	for i := range files {
		put(t, filepath.Join(dir, strconv.Itoa(i)), strings.Repeat("x", size))
	}
	before := heap()
	for i := range files {
		f := File{Destination: filepath.Join(dir, strconv.Itoa(i)), InPlace: i%2 == 0, Backup: i % 3}
		if _, err := tx.Stage(f, []byte("new")); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Swap(); err != nil {
		t.Fatal(err)
	}
	if after := heap(); after > before+size {
		t.Errorf("the change holds %d bytes", after-before)
	}
	if err := errors.Join(tx.Restore(), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(dir, "0"), strings.Repeat("x", size))
}

// damaged returns the journals in the state directory that could not be read
// and were put aside.
func damaged(stateDir string) []string {
	names, _ := filepath.Glob(filepath.Join(stateDir, "*"+journalExt+".damaged"))
	return names
}
