package proc

import (
	"syscall"
	"time"
)

// groupAttr puts a child into a process group of its own.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends sig to every process of the group that pid leads.
func signalGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

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
