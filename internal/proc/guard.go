package proc

import (
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	// shared lock; see [Lock].
	LockFile string
	// Executable is the program to execute; empty means this one.
	Executable string
}

// Streams connect an attached command with a person or a script.
type Streams struct {
	In, Out, Err *os.File
	// Terminal gives the command the terminal, if this program has it: the
	// command's group is in the foreground. When somebody stops it there, this
	// program's group is stopped, too; SIGCONT on Signals continues it.
	Terminal bool
	// Signals are passed on to the command's group; nil: none.
	Signals <-chan os.Signal
	// KillAfter is the time between a passed-on INT, TERM, HUP or QUIT and KILL;
	// 0: no KILL.
	KillAfter time.Duration
}

// spec is the first order on the control pipe of a guard or a preview.
type spec struct {
	Args, Env []string // no Args: only try whether a preview is possible
	Dir       string

	// Of a guard.
	Stop      syscall.Signal
	Grace     time.Duration
	Deadline  int64
	Terminal  bool          // the command owns the terminal
	KillAfter time.Duration // between a signal that asks for the end and KILL

	Preview Preview
	User    bool // the preview is in a user namespace
}

// command is the command as the process that gets the specification runs it.
func (s *spec) command() *exec.Cmd {
	cmd := build(Command{Args: s.Args, Dir: s.Dir})
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Env, os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// guardOrder is every further order on the control pipe.
type guardOrder struct {
	Deadline int64
	Signal   syscall.Signal // for the command
}

// report is what comes on the status pipe: of a guard first the process id, at the end
// the result.
type report struct {
	PID       int
	Result    *Result
	Lease     bool   // the lease ran out
	Error     string // the command could not be started
	NoPreview string // why there was no preview
}

// Run runs the command under a guard, as [Run] does without one. Command.Grace
// must fit between the end of the lease and the moment at which another host
// may take over.
func (g Guard) Run(ctx context.Context, c Command) (Result, error) { return g.run(ctx, c, nil) }

// RunAttached is [Guard.Run] for a command of a person or a script: it reads
// and writes the given files itself, so that nothing is kept of its output,
// and it is given c.Env as its whole environment. Args[0] is looked up in
// PATH first, so that a missing program differs from one that failed: the
// error then is an [exec.Error] or a path error.
func (g Guard) RunAttached(ctx context.Context, c Command, files Streams) (Result, error) {
	if len(c.Args) > 0 {
		if _, err := exec.LookPath(c.Args[0]); err != nil && !errors.Is(err, exec.ErrDot) {
			return Result{Code: -1}, err
		}
	}
	return g.run(ctx, c, &files)
}

// run runs the command; attached to files unless that is nil.
func (g Guard) run(ctx context.Context, c Command, files *Streams) (Result, error) {
	err := c.refused(ctx)
	if err == nil && !time.Now().Before(g.Lease()) {
		err = fmt.Errorf("run %s: %w", program(c.Args), ErrLease)
	}
	if err != nil {
		return Result{Code: -1}, err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	began := time.Now()
	run, err := g.start(c, files)
	if err != nil {
		return Result{Code: -1, Took: time.Since(began)}, fmt.Errorf("start guard of %s: %w", program(c.Args), plain(err))
	}
	cause := run.supervise(ctx, g, c.grace())
	signalGroup(run.cmd.Process.Pid, syscall.SIGKILL)
	_ = run.cmd.Wait()
	r, err := run.end(c, cause)
	r.Took = time.Since(began)
	return r, err
}

// start executes this program as a guard and sends it the command.
func (g Guard) start(c Command, files *Streams) (*child, error) {
	run, err := newChild(g.Executable, guardArg, groupAttr())
	if err != nil {
		return nil, err
	}
	if g.LockFile != "" {
		lock, err := lock(g.LockFile, unix.LOCK_SH) // It belongs to the open file, which the guard inherits.
		if err != nil {
			return nil, run.started(err, nil)
		}
		run.cmd.ExtraFiles = append(run.cmd.ExtraFiles, lock)
	}
	s := spec{Args: c.Args, Env: CleanEnv(c.Env), Dir: c.Dir, Stop: c.Stop, Grace: c.grace(), Deadline: bootDeadline(g.Lease())}
	if files == nil {
		run.out, err = start(run.cmd, c)
	} else {
		s.Env, s.Terminal, s.KillAfter, run.signals = c.Env, files.Terminal, files.KillAfter, files.Signals
		run.cmd.Stdin, run.cmd.Stdout, run.cmd.Stderr = files.In, files.Out, files.Err
		err = run.cmd.Start()
	}
	if err := run.started(err, c.Started); err != nil {
		return nil, err
	}
	// A specification larger than the pipe is read as it is written.
	_ = run.send(s, 10*time.Second)
	return run, nil
}

// supervise passes on the lease until the guard has ended; when ctx ends it
// closes the pipe and gives the guard its grace.
func (r *child) supervise(ctx context.Context, g Guard, grace time.Duration) error {
	exited := exitOf(r.cmd.Process.Pid)
	every := cmp.Or(max(g.Every, 0), 200*time.Millisecond)
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
func (r *child) stop(grace time.Duration, exited <-chan struct{}) {
	_ = r.control.Close()
	timer := time.NewTimer(grace + 3*time.Second)
	defer timer.Stop()
	select {
	case <-exited:
		return
	case <-timer.C:
	}
	r.mu.Lock()
	command := r.report.PID
	r.mu.Unlock()
	if command > 0 {
		signalGroup(command, syscall.SIGKILL)
	}
	signalGroup(r.cmd.Process.Pid, syscall.SIGKILL)
	<-exited
}

// child is this program executed again, as a guard or as a preview. It reads what to do
// from the control pipe, ends with that pipe, and answers on the status pipe. Both carry
// gobs: arguments need not be UTF-8.
type child struct {
	cmd             *exec.Cmd
	control, status *os.File // our ends
	orders          *gob.Encoder
	out             *output          // nil: of an attached command
	signals         <-chan os.Signal // to be passed on; nil: none
	wg              sync.WaitGroup   // what uses the pipes

	mu     sync.Mutex // mu guards report, which the status reader fills.
	report report
}

func newChild(executable, arg string, attr *syscall.SysProcAttr) (*child, error) {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, controlR.Close(), controlW.Close())
	}
	return &child{control: controlW, status: statusR, orders: gob.NewEncoder(controlW), cmd: &exec.Cmd{
		Path: cmp.Or(executable, "/proc/self/exe"), Args: []string{"zkagent", arg}, Dir: "/", Env: CleanEnv(nil),
		SysProcAttr: attr, ExtraFiles: []*os.File{controlR, statusW},
	}}, nil
}

// started closes the files of the other process, and after the error of a start also our
// own. Otherwise it follows the status pipe to its end.
func (r *child) started(err error, started func(pid int)) error {
	for _, f := range r.cmd.ExtraFiles {
		_ = f.Close()
	}
	if err != nil {
		return errors.Join(err, r.control.Close(), r.status.Close())
	}
	r.wg.Go(func() {
		dec := gob.NewDecoder(r.status)
		for {
			var rep report
			if dec.Decode(&rep) != nil {
				return
			}
			if rep.PID != 0 && started != nil {
				started(rep.PID)
			}
			r.mu.Lock()
			rep.PID = cmp.Or(rep.PID, r.report.PID)
			r.report = rep
			r.mu.Unlock()
		}
	})
	return nil
}

func (r *child) send(v any, patience time.Duration) error {
	_ = r.control.SetWriteDeadline(time.Now().Add(patience))
	return r.orders.Encode(v)
}

// end waits for the last report of a process that has ended. cause is why the command was
// ended.
func (r *child) end(c Command, cause error) (Result, error) {
	_ = r.control.Close()
	_ = r.status.SetReadDeadline(time.Now().Add(pipeWait))
	r.wg.Wait()
	_ = r.status.Close()
	result, rep := Result{Code: -1}, r.report
	if rep.Result != nil {
		result = *rep.Result
	}
	r.out.finish(&result)
	switch {
	case rep.NoPreview != "":
		return result, &PreviewError{rep.NoPreview}
	case rep.Error != "":
		return result, fmt.Errorf("start %s: %s", program(c.Args), rep.Error)
	case rep.Lease:
		cause = ErrLease
	case rep.Result == nil && cause == nil && c.Preview != nil:
		return result, &PreviewError{"its process died"}
	case rep.Result == nil && cause == nil:
		if rep.PID > 0 {
			signalGroup(rep.PID, syscall.SIGKILL)
		}
		return result, fmt.Errorf("run %s: its guard died", program(c.Args))
	}
	return result, verdict(c, &result, cause)
}
