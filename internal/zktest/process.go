package zktest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a child that cannot outlive the test process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the process was waited for
}

// startProcess starts cmd with its output appended to logFile.
//
// The kernel kills the child when the thread that started it ends, so that
// thread is kept: one goroutine, locked to it, starts the child and waits for
// it.
func startProcess(cmd *exec.Cmd, logFile string) (*process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // In a test's own directory.
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer func() { _ = out.Close() }()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// signal sends sig; an error means that the process has ended.
func (p *process) signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the process to end, kills it after grace, and waits for its end.
func (p *process) stop(grace time.Duration) {
	if grace > 0 {
		_ = p.signal(syscall.SIGTERM)
		_ = p.signal(syscall.SIGCONT) // a frozen process cannot see SIGTERM
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
			return
		case <-timer.C:
		}
	}
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}
