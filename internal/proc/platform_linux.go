package proc

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// supported: Linux has what a guard needs to leave nothing behind.
const supported = true

const bootClock = unix.CLOCK_BOOTTIME

// newMemFile makes an anonymous file: no other process can open it by name.
func newMemFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// waitExited waits until the process has ended without reaping it, so that
// neither its id nor its group's can be given to another while we still
// signal the group.
func waitExited(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// waitStopped waits until somebody stops the process, and returns the signal that
// did; 0: it has ended.
func waitStopped(pid int) syscall.Signal {
	// The kernel's siginfo_t of SIGCHLD, of which package unix names the start.
	var info struct {
		head struct{ signo, errno, code int32 }
		body struct {
			_         [0]uintptr
			pid, uid  int32
			status    int32
			remainder [112]byte
		}
	}
	for {
		err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WSTOPPED, nil) //nolint:gosec // The type above is as large.
		if err == nil {
			return syscall.Signal(info.body.status)
		}
		if !errors.Is(err, unix.EINTR) {
			return 0
		}
	}
}

// adoptDescendants makes the descendants that leave their group our children.
func adoptDescendants() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// dieWithParent has the kernel kill the child when its parent dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
