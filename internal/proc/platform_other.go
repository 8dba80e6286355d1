//go:build !linux

package proc

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// supported: elsewhere a command could outlive its lease, so that none is run.
const supported = false

const bootClock = unix.CLOCK_MONOTONIC

func newMemFile(string) (*os.File, error) { return nil, ErrUnsupported }

func waitExited(int) {}

func waitStopped(int) syscall.Signal { return 0 }

func adoptDescendants() {}

func dieWithParent(*syscall.SysProcAttr) {}

func previewAttr(PreviewWay) *syscall.SysProcAttr { return groupAttr() }

func previewHint() error { return nil }

func previewMain() int { return 1 }

// Put writes the file below root.
func (f *PreviewFile) Put(*os.Root, bool) error { return ErrUnsupported }

// CopyDir copies a directory.
func CopyDir(string, string, bool) error { return ErrUnsupported }
