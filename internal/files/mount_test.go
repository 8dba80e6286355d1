//go:build linux

package files_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/files"
)

// A real disk that is full, and then read-only: the old file stays whole, nothing is left
// beside it, and the change succeeds when there is room again.
func TestTx_FullAndReadOnlyMount(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("cannot mount a disk:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	dest, ballast := filepath.Join(dir, "dest"), filepath.Join(dir, "ballast")
	old, next := bytes.Repeat([]byte("1"), 4000), bytes.Repeat([]byte("2"), 30000)
	change := func(data []byte) error {
		tx := files.Begin(files.TxConfig{Bundle: "x", StateDir: t.TempDir(), Durable: true})
		if _, err := tx.Stage(files.File{Destination: dest}, data); err != nil {
			return errors.Join(err, tx.Discard())
		}
		if err := tx.Swap(); err != nil {
			return errors.Join(err, tx.Discard())
		}
		return tx.Commit()
	}
	if err := errors.Join(change(old), os.WriteFile(ballast, make([]byte, 44000), 0o600)); err != nil {
		t.Fatal(err)
	}
	refused := func(why syscall.Errno) {
		t.Helper()
		if err := change(next); !errors.Is(err, why) {
			t.Errorf("got %v, want %v", err, why)
		}
		entries, err := os.ReadDir(dir)
		if got, _ := os.ReadFile(dest); !bytes.Equal(got, old) || len(entries) != 2 || err != nil {
			t.Errorf("%d bytes of the old file and %v are left, %v", len(got), entries, err)
		}
	}
	refused(syscall.ENOSPC)
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=64k"); err != nil {
		t.Fatal(err)
	}
	refused(syscall.EROFS)
	if err := errors.Join(syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=64k"), os.Remove(ballast), change(next)); err != nil {
		t.Error(err)
	}
}
