package zktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// Zkagent builds zkagent, without the race detector, and returns its path. The packages
// of one run share the build: the first one links it, and the others find it up to date.
//
// go test does not know that a test depends on the program: a cached result may be one of
// an older program. Give it -count=1, as scripts/test does.
func Zkagent() (string, error) {
	root, err := testhelp.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "test")
	built, program := filepath.Join(dir, "build", "zkagent"), filepath.Join(dir, "bin", "zkagent")
	if err := errors.Join(os.MkdirAll(filepath.Dir(built), 0o750), os.MkdirAll(filepath.Dir(program), 0o750)); err != nil {
		return "", fmt.Errorf("make the directory of the program: %w", err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock")) //nolint:gosec // Below the module.
	if err != nil {
		return "", fmt.Errorf("open the lock of the program: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the program: %w", err)
	}
	build := exec.Command("go", "build", "-o", built, "./cmd/zkagent") //nolint:gosec,noctx // It ends by itself.
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build zkagent: %w\n%s", err, out)
	}
	// go build removes its target for a moment, while tests of another package start it.
	next := filepath.Join(dir, "next")
	_ = os.Remove(next)
	if err := errors.Join(os.Link(built, next), os.Rename(next, program)); err != nil {
		return "", fmt.Errorf("place the program: %w", err)
	}
	return program, nil
}
