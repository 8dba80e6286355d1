package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// ErrTimeout is the cause of a command that was ended by its timeout.
var ErrTimeout = errors.New("timeout")

// ErrUnsupported says that this system lacks what keeps a command from outliving
// its lease.
var ErrUnsupported = errors.New("zkagent runs commands on Linux alone")

// Run runs the command and waits for it. The error is an [ExitError] when the
// command ran and did not exit with 0; the Result is valid in either case.
// When ctx ends or the timeout passes, the whole group gets TERM and after
// the grace period KILL. Whatever remains of the group when the command
// itself has ended is killed.
func Run(ctx context.Context, c Command) (Result, error) {
	if len(c.Args) == 0 {
		return Result{Code: -1}, errors.New("run command: empty argument list")
	}
	if !supported {
		return Result{Code: -1}, ErrUnsupported
	}
	if err := context.Cause(ctx); err != nil {
		return Result{Code: -1}, fmt.Errorf("run %s: %w", program(c.Args), err)
	}
	way := NoPreview
	if c.Preview != nil {
		var why error
		if way, why = FindPreview(); way == NoPreview {
			return Result{Code: -1}, &PreviewError{why.Error()}
		}
	}
	return runIn(ctx, c, way)
}

// runIn is Run in a preview of the given way, or in none.
func runIn(ctx context.Context, c Command, way PreviewWay) (Result, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
	}
	if way != NoPreview {
		return runPreview(ctx, c, way)
	}
	began := time.Now()
	cmd := build(c)
	out, err := start(cmd, c)
	if err != nil {
		return Result{Code: -1, Took: time.Since(began)}, fmt.Errorf("start %s: %w", program(c.Args), plain(err))
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	cause := supervise(ctx, cmd, c.Stop, c.grace())
	_ = cmd.Wait()
	out.finish()
	r := result(cmd.ProcessState)
	r.Took = time.Since(began)
	r.Output, r.Truncated = out.tail.text()
	return r, verdict(c, &r, cause)
}

// verdict makes the error of a run that did not succeed.
func verdict(c Command, r *Result, cause error) error {
	if r.Code == 0 && cause == nil {
		return nil
	}
	r.TimedOut = errors.Is(cause, ErrTimeout)
	return &ExitError{Program: program(c.Args), Result: *r, Cause: cause}
}

func (c Command) grace() time.Duration {
	if c.Grace > 0 {
		return c.Grace
	}
	return DefaultGrace
}

// build makes the exec.Cmd. The context is not given to it: it would kill the
// leader alone, and we end the group.
func build(c Command) *exec.Cmd {
	cmd := &exec.Cmd{Path: c.Args[0], Args: c.Args, Env: CleanEnv(c.Env), Dir: c.Dir, SysProcAttr: groupAttr()}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if p, err := exec.LookPath(c.Args[0]); err == nil {
		cmd.Path = p
	} else if !errors.Is(err, exec.ErrDot) {
		cmd.Err = err
	}
	return cmd
}

// output reads what a command writes.
type output struct {
	tail *tail
	r    *os.File
	wg   sync.WaitGroup
}

// start starts the command with its output going through one pipe of ours,
// so that waiting for the command never waits for a grandchild that holds it.
func start(cmd *exec.Cmd, c Command) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	in, err := stdin(c.Stdin)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	defer in.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, w, w
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	o := &output{tail: newTail(c.OutputLimit), r: r}
	o.tail.tee = c.Tee
	o.wg.Go(func() { o.tail.copyAll(r) })
	return o, nil
}

// finish waits for the end of the output, but not for a process that left the
// group and still holds the pipe.
func (o *output) finish() {
	_ = o.r.SetReadDeadline(time.Now().Add(pipeWait))
	o.wg.Wait()
	_ = o.r.Close()
}

// stdin is a file with the data: an unlinked memory file, so that a command
// which never reads cannot block anybody.
func stdin(data []byte) (*os.File, error) {
	if len(data) == 0 {
		return os.Open(os.DevNull)
	}
	return memFile(data)
}

// supervise waits for the command's end or ends it; it returns the cause when
// it ended it. The group is gone afterwards, the leader not yet reaped.
func supervise(ctx context.Context, cmd *exec.Cmd, stop syscall.Signal, grace time.Duration) error {
	pid := cmd.Process.Pid
	exited := make(chan struct{})
	go func() {
		waitExited(pid)
		close(exited)
	}()
	var cause error
	select {
	case <-exited:
	case <-ctx.Done():
		cause = context.Cause(ctx)
		endGroup(pid, stop, grace, exited)
	}
	signalGroup(pid, syscall.SIGKILL)
	return cause
}

// result takes exit code and signal from the process state.
func result(ps *os.ProcessState) Result {
	if ps == nil {
		return Result{Code: -1}
	}
	r := Result{Code: ps.ExitCode()}
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Signal = signalName(ws.Signal())
	}
	return r
}

// plain strips the path of an exec error that repeats the command line.
func plain(err error) error {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// memFile returns a file with the data, positioned at its beginning.
func memFile(data []byte) (*os.File, error) {
	f, err := newMemFile("zkagent-stdin")
	if err != nil {
		return nil, err
	}
	if _, err := bytes.NewReader(data).WriteTo(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
