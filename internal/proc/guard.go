package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// guardArg is the hidden first argument that makes this program a guard.
const guardArg = "__guard"

// ErrLease is the cause of a command that its guard ended because the lease
// ran out.
var ErrLease = errors.New("lease ran out")

// Guard runs commands that may run only as long as a lease holds: those of a
// term or a lock. The command is a child of this program executed again,
// which holds a pipe from us and the deadline of the lease. When the pipe ends
// (we died, were killed, or executed another program) or the deadline passes
// (we were stopped, or did not extend it), it ends the command: TERM, after
// Grace KILL, to its group and to every descendant.
//
// It cannot help when it is stopped itself; that is what fencing tokens are
// for. The zero value of an optional field means its default.
type Guard struct {
	// Lease returns the deadline as of now. Required.
	Lease func() time.Time
	// Every is how often a new deadline is passed on; 0 means 200 ms.
	Every time.Duration
	// LockFile, when set, is a file on which every running guard holds a
	// shared lock; see [WaitGuards].
	LockFile string
	// Executable is the program to execute; empty means this one.
	Executable string
}

// guardSpec is the first line on the control pipe. Arguments are bytes, for they
// need not be UTF-8.
type guardSpec struct {
	Args     [][]byte       `json:"args"`
	Env      [][]byte       `json:"env"`
	Dir      []byte         `json:"dir"`
	Stop     syscall.Signal `json:"stop,omitempty"`
	Grace    time.Duration  `json:"grace"`
	Deadline int64          `json:"deadline"`
	Terminal bool           `json:"terminal,omitempty"` // the command owns the terminal
	// KillAfter is the time between a signal that asks for the end and KILL.
	KillAfter time.Duration `json:"kill_after,omitempty"`
}

// guardOrder is every further line on the control pipe.
type guardOrder struct {
	Deadline int64          `json:"deadline,omitempty"`
	Signal   syscall.Signal `json:"signal,omitempty"` // for the command
}

// rawBytes and rawText carry texts over JSON as they are.
func rawBytes(list []string) [][]byte {
	raw := make([][]byte, len(list))
	for i, s := range list {
		raw[i] = []byte(s)
	}
	return raw
}

func rawText(raw [][]byte) []string {
	list := make([]string, len(raw))
	for i, b := range raw {
		list[i] = string(b)
	}
	return list
}

// guardReport is a line on the status pipe: first the process id, at the end
// the result.
type guardReport struct {
	PID    int     `json:"pid,omitempty"`
	Result *Result `json:"result,omitempty"`
	Lease  bool    `json:"lease,omitempty"` // the lease ran out
	Error  string  `json:"error,omitempty"` // it could not be started
}

// Run runs the command under a guard, as [Run] does without one. Command.Grace
// must fit between the end of the lease and the moment at which another host
// may take over.
func (g Guard) Run(ctx context.Context, c Command) (Result, error) {
	if len(c.Args) == 0 {
		return Result{Code: -1}, errors.New("run command: empty argument list")
	}
	if !time.Now().Before(g.Lease()) {
		return Result{Code: -1}, fmt.Errorf("run %s: %w", program(c.Args), ErrLease)
	}
	if err := context.Cause(ctx); err != nil {
		return Result{Code: -1}, fmt.Errorf("run %s: %w", program(c.Args), err)
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
	}
	began := time.Now()
	run, err := g.start(c)
	if err != nil {
		return Result{Code: -1, Took: time.Since(began)}, fmt.Errorf("start guard of %s: %w", program(c.Args), plain(err))
	}
	cause := run.supervise(ctx, g, c.grace())
	r, err := run.end(c, &cause)
	r.Took = time.Since(began)
	r.Output, r.Truncated = run.out.tail.text()
	if err != nil {
		return r, err
	}
	return r, verdict(c, &r, cause)
}

// guarded is one guard process as its starter sees it.
type guarded struct {
	cmd     *exec.Cmd
	out     *output
	control *os.File
	status  *os.File
	wg      sync.WaitGroup

	signals <-chan os.Signal // to be passed on; nil: none

	mu     sync.Mutex // mu guards report, which the status reader fills.
	report guardReport
	onPID  func(int)
}

// start executes this program as a guard and sends it the command.
func (g Guard) start(c Command) (*guarded, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	exe := g.Executable
	if exe == "" {
		exe = "/proc/self/exe"
	}
	cmd := &exec.Cmd{Path: exe, Args: []string{"zkagent", guardArg}, Dir: "/", Env: CleanEnv(nil), SysProcAttr: groupAttr()}
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer controlR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, controlW.Close())
	}
	defer statusW.Close()
	cmd.ExtraFiles = []*os.File{controlR, statusW}
	if g.LockFile != "" {
		lock, lockErr := lockShared(g.LockFile)
		if lockErr != nil {
			return nil, errors.Join(lockErr, controlW.Close(), statusR.Close())
		}
		defer lock.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, lock)
	}
	run := &guarded{cmd: cmd, control: controlW, status: statusR, onPID: c.Started}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	spec := guardSpec{Args: rawBytes(c.Args), Env: rawBytes(CleanEnv(c.Env)), Dir: []byte(dir), Stop: c.Stop, Grace: c.grace(), Deadline: bootDeadline(g.Lease())}
	if run.out, err = start(cmd, c); err != nil {
		return nil, errors.Join(err, controlW.Close(), statusR.Close())
	}
	run.wg.Go(run.readStatus)
	// A specification larger than the pipe is read as it is written.
	_ = run.send(spec, 10*time.Second)
	return run, nil
}

// send writes one line; a guard that is stopped must not block us.
func (r *guarded) send(v any, patience time.Duration) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = r.control.SetWriteDeadline(time.Now().Add(patience))
	_, err = r.control.Write(append(line, '\n'))
	return err
}

// readStatus follows the status pipe to its end.
func (r *guarded) readStatus() {
	dec := json.NewDecoder(r.status)
	for {
		var rep guardReport
		if dec.Decode(&rep) != nil {
			return
		}
		if rep.PID != 0 && r.onPID != nil {
			r.onPID(rep.PID)
		}
		r.mu.Lock()
		if rep.PID != 0 {
			r.report.PID = rep.PID
		} else {
			rep.PID = r.report.PID
			r.report = rep
		}
		r.mu.Unlock()
	}
}

// supervise passes on the lease until the guard has ended; when ctx ends it
// closes the pipe and gives the guard its grace.
func (r *guarded) supervise(ctx context.Context, g Guard, grace time.Duration) error {
	exited := make(chan struct{})
	pid := r.cmd.Process.Pid
	r.wg.Go(func() {
		waitExited(pid)
		close(exited)
	})
	every := g.Every
	if every <= 0 {
		every = 200 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := g.Lease()
	for {
		select {
		case <-exited:
			return nil
		case <-ctx.Done():
			r.stop(grace, exited)
			return context.Cause(ctx)
		case <-ticker.C:
			if next := g.Lease(); next.After(last) && r.send(guardOrder{Deadline: bootDeadline(next)}, every) == nil {
				last = next
			}
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok {
				_ = r.send(guardOrder{Signal: sig}, every) // a guard that is gone has no command
			}
		}
	}
}

// stop closes the pipe, which makes the guard end its command, and kills
// both when that takes longer than it should.
func (r *guarded) stop(grace time.Duration, exited <-chan struct{}) {
	_ = r.control.Close()
	timer := time.NewTimer(grace + 3*time.Second)
	defer timer.Stop()
	select {
	case <-exited:
		return
	case <-timer.C:
	}
	r.mu.Lock()
	child := r.report.PID
	r.mu.Unlock()
	if child > 0 {
		signalGroup(child, syscall.SIGKILL)
	}
	signalGroup(r.cmd.Process.Pid, syscall.SIGKILL)
	<-exited
}

// end reaps the guard and reads its report.
func (r *guarded) end(c Command, cause *error) (Result, error) {
	signalGroup(r.cmd.Process.Pid, syscall.SIGKILL)
	_ = r.cmd.Wait()
	_ = r.control.Close()
	_ = r.status.SetReadDeadline(time.Now().Add(pipeWait))
	r.wg.Wait()
	_ = r.status.Close()
	r.out.finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.report
	switch {
	case rep.Error != "":
		return Result{Code: -1}, fmt.Errorf("start %s: %s", program(c.Args), rep.Error)
	case rep.Lease:
		*cause = ErrLease
	case rep.Result == nil && *cause == nil:
		if rep.PID > 0 {
			signalGroup(rep.PID, syscall.SIGKILL)
		}
		return Result{Code: -1}, fmt.Errorf("run %s: its guard died", program(c.Args))
	}
	if rep.Result == nil {
		return Result{Code: -1}, nil
	}
	return *rep.Result, nil
}
