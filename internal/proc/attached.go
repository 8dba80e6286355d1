package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Streams connect an attached command with a person or a script.
type Streams struct {
	In, Out, Err *os.File
	// Terminal gives the command the terminal, if this program has it: the
	// command's group is in the foreground. When somebody stops it there, this
	// program's group is stopped, too; SIGCONT on Signals goes on.
	Terminal bool
	// Signals are passed on to the command's group; nil: none.
	Signals <-chan os.Signal
	// KillAfter is the time between a passed-on INT, TERM, HUP or QUIT and KILL;
	// 0: no KILL.
	KillAfter time.Duration
}

// RunAttached is [Guard.Run] for a command of a person or a script: it reads
// and writes the given files itself, so that nothing is kept of its output,
// and it is given c.Env as its whole environment. Args[0] is looked up in
// PATH first, so that a missing program differs from one that failed: the
// error then is an [exec.Error] or a path error.
func (g Guard) RunAttached(ctx context.Context, c Command, files Streams) (Result, error) {
	if len(c.Args) == 0 {
		return Result{Code: -1}, errors.New("run command: empty argument list")
	}
	if _, err := exec.LookPath(c.Args[0]); err != nil && !errors.Is(err, exec.ErrDot) {
		return Result{Code: -1}, err
	}
	if err := context.Cause(ctx); err != nil {
		return Result{Code: -1}, fmt.Errorf("run %s: %w", program(c.Args), err)
	}
	if !time.Now().Before(g.Lease()) {
		return Result{Code: -1}, fmt.Errorf("run %s: %w", program(c.Args), ErrLease)
	}
	began := time.Now()
	run, err := g.attach(c, files)
	if err != nil {
		return Result{Code: -1}, fmt.Errorf("start guard of %s: %w", program(c.Args), plain(err))
	}
	cause := run.supervise(ctx, g, c.grace())
	r, err := run.end(c, &cause)
	r.Took = time.Since(began)
	if err != nil {
		return r, err
	}
	return r, verdict(c, &r, cause)
}

// attach starts the guard with the caller's own files.
func (g Guard) attach(c Command, files Streams) (*guarded, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, null.Close())
	}
	defer controlR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, null.Close(), controlW.Close())
	}
	defer statusW.Close()
	exe := g.Executable
	if exe == "" {
		exe = "/proc/self/exe"
	}
	cmd := &exec.Cmd{
		Path: exe, Args: []string{"zkagent", guardArg}, Dir: "/", Env: CleanEnv(nil), SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		Stdin: files.In, Stdout: files.Out, Stderr: files.Err, ExtraFiles: []*os.File{controlR, statusW},
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, null.Close(), controlW.Close(), statusR.Close())
	}
	run := &guarded{
		cmd: cmd, control: controlW, status: statusR, onPID: c.Started,
		out:     &output{tail: newTail(0), r: null}, // nothing is read from it
		signals: files.Signals,
	}
	run.wg.Go(run.readStatus)
	spec := guardSpec{
		Args: rawBytes(c.Args), Env: rawBytes(c.Env), Dir: []byte(c.Dir), Stop: c.Stop, Grace: c.grace(),
		Deadline: bootDeadline(g.Lease()), Terminal: files.Terminal, KillAfter: files.KillAfter,
	}
	_ = run.send(spec, 10*time.Second)
	return run, nil
}
