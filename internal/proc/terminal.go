package proc

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal, lent to the group of a command as a shell
// lends it: what the person types, Ctrl-C and Ctrl-Z go to the command. It is used
// by the guard, the parent of the command.
type terminal struct {
	file   *os.File
	child  int // group of the command
	caller int // group of the program that started the guard
	// stopped receives the signal that has stopped the command.
	stopped chan syscall.Signal
}

// takeTerminal puts the group that pid leads into the foreground, if the caller has
// the terminal. A job in the background takes it when its shell brings it to the
// foreground: somebody may have stopped the caller since the command started.
// Nil: there is no terminal.
func takeTerminal(pid int) *terminal {
	caller, err := unix.Getpgid(os.Getppid())
	if err != nil {
		return nil
	}
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	t := &terminal{file: file, child: pid, caller: caller, stopped: make(chan syscall.Signal)}
	// A background process may change the foreground only while it ignores
	// TTOU. The command has started already, so it does not inherit that.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN)
	t.resume()
	go t.watch()
	return t
}

// foreground is the group that has the terminal; 0: not known.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// lend gives the terminal to a group, and continues it: it may have been stopped
// because it had no terminal.
func (t *terminal) lend(group int) {
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
	if group == t.child {
		signalGroup(group, syscall.SIGCONT)
	}
}

// watch reports each stop of the command, until it has ended.
func (t *terminal) watch() {
	for sig := waitStopped(t.child); sig != 0; sig = waitStopped(t.child) {
		t.stopped <- sig
	}
}

// stops receives the signal that has stopped the command.
func (t *terminal) stops() <-chan syscall.Signal {
	if t == nil {
		return nil
	}
	return t.stopped
}

// suspend stops the caller, too, so that its shell continues. A command that used
// the terminal just before it had it is continued instead.
func (t *terminal) suspend(sig syscall.Signal) {
	if t.foreground() != t.child {
		return // It waits in the background.
	}
	if sig == syscall.SIGTTIN || sig == syscall.SIGTTOU {
		t.lend(t.child)
		return
	}
	t.lend(t.caller)
	_ = syscall.Kill(-t.caller, syscall.SIGTSTP)
}

// resume gives the command the terminal again, if the caller has it.
func (t *terminal) resume() {
	if t != nil && t.foreground() == t.caller {
		t.lend(t.child)
	}
}

func (t *terminal) release() {
	if t == nil {
		return
	}
	if group := t.foreground(); group == t.child || group == 0 {
		t.lend(t.caller)
	}
	_ = t.file.Close()
}
