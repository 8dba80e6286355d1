package proc

import (
	"encoding/gob"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The files that a guard inherits beside the command's own three.
const (
	guardControlFD = 3
	guardStatusFD  = 4
)

// GuardMain makes this process a guard, or that of a preview, and never returns when it
// was executed as one by [Guard.Run] or [Run]; otherwise it does nothing. It must be the first
// thing that main does.
func GuardMain() {
	reexecuted.Store(true)
	if len(os.Args) == 2 && os.Args[1] == previewArg {
		os.Exit(previewMain())
	}
	if len(os.Args) != 2 || os.Args[1] != guardArg {
		return
	}
	// The death signal of the command is tied to the thread that started it.
	runtime.LockOSThread()
	unix.CloseOnExec(guardStatusFD + 1)
	m := &guardMain{}
	_, m.control, m.status = inherited()
	os.Exit(m.run())
}

// inherited are the pipes that a guard or a preview has from the process that started it.
func inherited() (control *os.File, orders *gob.Decoder, status *gob.Encoder) { //nolint:nonamedreturns // says which is which.
	unix.CloseOnExec(guardControlFD)
	unix.CloseOnExec(guardStatusFD)
	control = os.NewFile(guardControlFD, "control")
	return control, gob.NewDecoder(control), gob.NewEncoder(os.NewFile(guardStatusFD, "status"))
}

type guardMain struct {
	control *gob.Decoder
	status  *gob.Encoder
	spec    spec
	tty     *terminal // nil: the command has none
}

// run starts the command and ends it when its time has come.
func (m *guardMain) run() int {
	if m.control.Decode(&m.spec) != nil || len(m.spec.Args) == 0 {
		return 1
	}
	// Descendants that leave the group become our children, so that we can
	// find and end them.
	adoptDescendants()
	cmd := m.spec.command()
	dieWithParent(cmd.SysProcAttr)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	orders, gone := make(chan guardOrder), make(chan struct{})
	go m.readOrders(orders, gone)
	deadline := m.extended(orders)
	if bootNow() >= deadline {
		_ = m.status.Encode(report{Lease: true})
		return 1
	}
	if err := cmd.Start(); err != nil {
		_ = m.status.Encode(report{Error: plain(err).Error()})
		return 1
	}
	if m.spec.Terminal {
		m.tty = takeTerminal(cmd.Process.Pid)
	}
	_ = m.status.Encode(report{PID: cmd.Process.Pid})
	lease := m.watch(cmd, deadline, orders, gone, signals)
	signalGroup(cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	killDescendants()
	m.tty.release()
	r := result(cmd.ProcessState)
	_ = m.status.Encode(report{Result: &r, Lease: lease})
	return 0
}

// orderWait is how long a guard that was slow to start waits for deadlines that
// were sent meanwhile: they are in the pipe already.
const orderWait = 100 * time.Millisecond

// extended returns the latest deadline. On a busy host the first one may have
// passed before this process runs, and been extended.
func (m *guardMain) extended(orders <-chan guardOrder) int64 {
	deadline := m.spec.Deadline
	timer := time.NewTimer(orderWait)
	defer timer.Stop()
	for bootNow() >= deadline {
		select {
		case o := <-orders:
			deadline = max(deadline, o.Deadline)
		case <-timer.C:
			return deadline
		}
	}
	return deadline
}

// watch waits for the command's end, or ends it: when the pipe ends, on a
// signal, or when the deadline has passed; the last is reported as true.
func (m *guardMain) watch(cmd *exec.Cmd, deadline int64, orders <-chan guardOrder, gone <-chan struct{}, signals <-chan os.Signal) bool {
	pid := cmd.Process.Pid
	exited := exitOf(pid)
	timer := time.NewTimer(untilBoot(deadline))
	defer timer.Stop()
	var kill <-chan time.Time // after a signal that asks for the end
	for {
		select {
		case <-exited:
			return false
		case sig := <-m.tty.stops():
			m.tty.suspend(sig)
		case <-kill:
			signalGroup(pid, syscall.SIGKILL)
		case <-gone:
			endGroup(pid, m.spec.Stop, m.spec.Grace, exited)
		case <-signals:
			endGroup(pid, m.spec.Stop, m.spec.Grace, exited)
		case o := <-orders:
			if o.Signal != 0 {
				kill = m.pass(pid, o.Signal, kill)
				continue
			}
			deadline = o.Deadline
			timer.Reset(untilBoot(deadline))
		case <-timer.C:
			if left := deadline - bootNow(); left > 0 {
				timer.Reset(untilBoot(deadline))
				continue
			}
			endGroup(pid, m.spec.Stop, m.spec.Grace, exited)
			return true
		}
	}
}

// pass gives a signal to the command, and returns when it is to be killed should
// it live on.
func (m *guardMain) pass(pid int, sig syscall.Signal, kill <-chan time.Time) <-chan time.Time {
	if sig == syscall.SIGCONT {
		m.tty.resume()
	}
	signalGroup(pid, sig)
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		signalGroup(pid, syscall.SIGCONT) // a stopped process would see it only then
		if kill == nil && m.spec.KillAfter > 0 {
			return time.NewTimer(m.spec.KillAfter).C
		}
	default: // the others do not ask for the end
	}
	return kill
}

// readOrders passes on new deadlines until the pipe ends.
func (m *guardMain) readOrders(orders chan<- guardOrder, gone chan<- struct{}) {
	defer close(gone)
	for {
		var o guardOrder
		if m.control.Decode(&o) != nil {
			return
		}
		orders <- o
	}
}

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
	go func() { // until the command has ended
		for sig := waitStopped(t.child); sig != 0; sig = waitStopped(t.child) {
			t.stopped <- sig
		}
	}()
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
