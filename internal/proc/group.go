package proc

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// groupAttr puts a child into a process group of its own.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends sig to every process of the group that pid leads.
func signalGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

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

// endGroup sends stop, TERM when it is 0, to the group and KILL after grace unless exited is
// closed before.
func endGroup(pid int, stop syscall.Signal, grace time.Duration, exited <-chan struct{}) {
	if stop == 0 {
		stop = syscall.SIGTERM
	}
	signalGroup(pid, stop)
	// A stopped process would see TERM only when it is continued.
	signalGroup(pid, syscall.SIGCONT)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
		signalGroup(pid, syscall.SIGKILL)
		<-exited
	}
}
