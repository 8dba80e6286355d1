package files_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/zktest/filestest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// host is a host with one bundle on a disk that can lose its power: a file that
// changes, one in another directory, one that is new, one that goes, and one
// that is written in place.
type host struct {
	t     *testing.T
	dir   string
	state string
	disk  *filestest.Disk
	cfg   files.TxConfig
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: memoryDir(t)}
	h.state = filepath.Join(h.dir, "state")
	for _, d := range []string{"a", "b", "shadow"} {
		h.check(os.Mkdir(filepath.Join(h.dir, d), 0o755))
	}
	for _, name := range []string{"a/changed", "b/other", "a/removed", "a/inplace"} {
		h.check(os.WriteFile(h.path(name), []byte("old old"), 0o644))
	}
	h.disk = filestest.New(h.path("shadow"))
	h.cfg = files.TxConfig{Bundle: "site", StateDir: h.state, FS: h.disk.FS()}
	return h
}

// memoryDir is a directory in memory where there is one: a real disk takes
// minutes for the syncs.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "zkagent-test-") //nolint:usetesting // t.TempDir may be on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) stage(content string) (*files.Tx, error) {
	tx := files.Begin(h.cfg)
	for _, name := range []string{"a/changed", "b/other", "a/created", "a/inplace"} {
		f := files.File{Destination: h.path(name), InPlace: name == "a/inplace", Backup: 1}
		if _, err := tx.Stage(f, []byte(content)); err != nil {
			return tx, err
		}
	}
	_, err := tx.Remove(files.File{Destination: h.path("a/removed")}, "")
	return tx, err
}

// change makes the change, and undoes it where restore says so.
func (h *host) change(restore bool) error {
	tx, err := h.stage("new")
	if err == nil {
		err = tx.Swap()
	}
	if err != nil {
		return errors.Join(err, tx.Discard())
	}
	if restore {
		err = tx.Restore()
	}
	return errors.Join(err, tx.Commit())
}

// isNew reports which of the two states the files are in, or fails.
func (h *host) isNew(when string) bool {
	h.t.Helper()
	var states []string
	for _, name := range []string{"a/changed", "b/other", "a/created", "a/removed", "a/inplace"} {
		data, err := os.ReadFile(h.path(name))
		if err != nil {
			data = []byte("-")
		}
		states = append(states, string(data))
	}
	switch got := strings.Join(states, ","); got {
	case "old old,old old,-,old old,old old":
		return false
	case "new,new,new,-,new":
		return true
	default:
		h.t.Fatalf("%s: a mixture: %s", when, got)
		return false
	}
}

// clean fails when something is left beside the files.
func (h *host) clean(when string) {
	h.t.Helper()
	for _, dir := range []string{"a", "b", "state"} {
		entries, _ := os.ReadDir(h.path(dir))
		for _, e := range entries {
			if e.Name()[0] == '.' || filepath.Ext(e.Name()) == ".journal" {
				h.t.Errorf("%s: left %s/%s", when, dir, e.Name())
			}
		}
	}
}

// start is what an agent does when it starts: it recovers, and ends what was
// recovered by committing or by restoring it.
func (h *host) start(when string, restore bool) {
	h.t.Helper()
	cfg := h.cfg
	cfg.Bundle = "" // Of all bundles.
	list, err := files.RecoverAll(cfg)
	if err != nil {
		h.t.Fatalf("%s: %v", when, err)
	}
	isNew := h.isNew(when)
	for _, r := range list {
		if r.New != isNew {
			h.t.Errorf("%s: recovered says new %v, the files are %v", when, r.New, isNew)
		}
		if restore {
			err = r.Tx.Restore()
		}
		if err := errors.Join(err, r.Tx.Commit()); err != nil {
			h.t.Fatalf("%s: %v", when, err)
		}
		if h.isNew(when) != (isNew && !restore) {
			h.t.Errorf("%s: the change ended in the other state", when)
		}
	}
	h.check(files.Sweep(h.cfg.FS, h.state, h.path("a/changed"), h.path("b/other"), h.path("a/created"), h.path("a/removed"), h.path("a/inplace")))
	h.clean(when)
}

// TestTx_PowerLossBetweenAnyTwoCalls cuts the power, or kills the process,
// ahead of each call, several times with other losses, and again while the
// change is recovered. All files are old or all are new.
func TestTx_PowerLossBetweenAnyTwoCalls(t *testing.T) {
	for _, restore := range []bool{false, true} {
		for n := 1; ; n++ {
			killed := false
			for seed := range uint64(testhelp.Rounds(2, 6)) {
				killed = cutPower(t, n, seed, restore) || killed
			}
			if !killed {
				break
			}
		}
	}
}

func cutPower(t *testing.T, n int, seed uint64, restore bool) bool {
	t.Helper()
	h := newHost(t)
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	when := fmt.Sprintf("call %d, seed %d, restore %v", n, seed, restore)
	h.disk.KillAt(n)
	err := h.change(restore)
	killed := h.disk.Killed()
	if err != nil && !killed {
		t.Fatalf("%s: %v", when, err)
	}
	for cut := range 2 { // The second time while it recovers.
		if seed == 0 {
			h.disk.Restart()
		} else {
			h.disk.PowerOff(random)
		}
		if cut == 0 {
			h.disk.KillAt(1 + random.IntN(12))
			list, _ := files.RecoverAll(h.cfg)
			for _, r := range list {
				_ = r.Tx.Commit()
			}
			h.disk.KillAt(0)
			if !h.disk.Killed() {
				h.disk.PowerOff(random)
			}
		}
	}
	if !killed && h.isNew(when) == restore {
		t.Fatalf("%s: a change that was made is lost, or one that was undone is back", when)
	}
	h.start(when, restore)
	return killed
}

// TestTx_FailedRestoreKeepsEverything: the disk is full, or read-only, from the
// swap on. Whatever is called then, the old bytes and the journal stay, and the
// next try brings the old files back.
func TestTx_FailedRestoreKeepsEverything(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EACCES} {
		for _, when := range []string{"in Swap", "in Restore"} {
			t.Run(fmt.Sprintf("%v %s", fault, when), func(t *testing.T) {
				h := newHost(t)
				tx, err := h.stage("new")
				h.check(err)
				renames := 0
				broken := func(op, _ string) error {
					if op == "rename" {
						renames++
					}
					// The journal and the first file are renamed; then nothing works.
					if when == "in Restore" || renames > 2 {
						return fault
					}
					return nil
				}
				if when == "in Swap" {
					h.disk.Fail(broken)
					err = tx.Swap()
				} else {
					h.check(tx.Swap())
					h.disk.Fail(broken)
					err = tx.Restore()
				}
				if !errors.Is(err, files.ErrNotRestored) || !errors.Is(err, fault) {
					t.Fatalf("got %v", err)
				}
				end := tx.Discard
				if when == "in Restore" {
					end = tx.Commit
				}
				if err := end(); !errors.Is(err, files.ErrNotRestored) {
					t.Errorf("the end: got %v", err)
				}
				if !files.Pending(h.state, "site") {
					t.Fatal("the journal is gone")
				}
				again, err := h.stage("newer")
				if err == nil {
					err = again.Swap()
				}
				if !errors.Is(err, files.ErrPending) && !errors.Is(err, fault) {
					t.Errorf("another change: got %v", err)
				}
				_ = again.Discard()
				if r, found, err := files.Recover(h.cfg); err == nil || found {
					t.Errorf("recovered %+v, error %v on a disk that does not work", r, err)
				}
				h.disk.Fail(nil)
				again, err = h.stage("newer")
				h.check(err)
				if err := again.Swap(); !errors.Is(err, files.ErrPending) {
					t.Errorf("another change: got %v", err)
				}
				h.check(again.Discard())
				r, _, err := files.Recover(files.TxConfig{Bundle: "site", StateDir: h.state, FS: h.cfg.FS})
				h.check(err)
				h.check(errors.Join(r.Tx.Restore(), r.Tx.Commit()))
				if h.isNew("at the end") {
					t.Error("the files are new")
				}
				h.start("at the end", false)
			})
		}
	}
}

// TestTx_EndedJournalStaysAway: the journal of a change that was committed does
// not come back with a power loss, to undo what was done since.
func TestTx_EndedJournalStaysAway(t *testing.T) {
	for seed := range uint64(20) {
		h := newHost(t)
		h.check(h.change(false))
		h.check(os.WriteFile(h.path("a/inplace"), []byte("edited by hand"), 0o644))
		h.disk.PowerOff(rand.New(rand.NewPCG(seed, 1)))
		_, err := files.RecoverAll(files.TxConfig{StateDir: h.state, FS: h.cfg.FS})
		h.check(err)
		if got, _ := os.ReadFile(h.path("a/inplace")); string(got) != "edited by hand" {
			t.Fatalf("seed %d: the file became %q", seed, got)
		}
	}
}

// TestTx_FailedTriesKeepBackups: a change that fails and is tried again does not
// push the good backups out.
func TestTx_FailedTriesKeepBackups(t *testing.T) {
	h := newHost(t)
	h.check(os.WriteFile(h.path("a/changed.bak"), []byte("older"), 0o644))
	for range 3 {
		h.check(h.change(true))
	}
	if got, _ := os.ReadFile(h.path("a/changed.bak")); string(got) != "older" {
		t.Errorf("the backup became %q", got)
	}
	h.check(h.change(false))
	if got, _ := os.ReadFile(h.path("a/changed.bak")); string(got) != "old old" {
		t.Errorf("the backup is %q", got)
	}
}
