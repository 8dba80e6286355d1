package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// Exit codes of a shell, for commands that could not be run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// heldCommand is a hold that a command runs under: a lock, a permit or a term.
type heldCommand struct {
	what  string // for messages: "lock /locks/x"
	ctx   context.Context
	s     *session.Session
	fence int64
	env   []string
	// killAfter is the time between the signal that ends the command and KILL; 0:
	// the default.
	killAfter time.Duration
}

// killAfter is how long a command may take to end after a signal.
const killAfter = 10 * time.Second

// runHeld runs the command while the hold lasts. It returns an error with the exit
// code, or nil for 0. The command owns the terminal and gets the signals that this
// process gets. A guard process ends the command when the lease runs out, even if
// this process has died. So the command is gone before another process can get the
// hold.
func runHeld(ctx context.Context, g *globals, h heldCommand, args []string) error {
	fence := strconv.FormatInt(h.fence, 10)
	env := append(os.Environ(), "ZKAGENT_FENCE="+fence, "ZKAGENT_TERM="+fence, "ZKAGENT_LOCK_EXPIRES="+h.s.Lease().UTC().Format(time.RFC3339Nano))
	// The lease leaves a third of the timeout; the child must be gone well within it.
	command := proc.Command{Args: args, Env: append(env, h.env...), Grace: min(proc.DefaultGrace, h.s.Timeout()/5)}
	return attached(ctx, g, h, proc.Guard{Lease: h.s.Lease, Every: h.s.Timeout() / 12}, command)
}

// attached runs the command of a hold on our terminal until it ends or the context of
// the hold does. From here on, signals go to the command.
func attached(ctx context.Context, g *globals, h heldCommand, guard proc.Guard, command proc.Command) error {
	signals := make(chan os.Signal, 16) // size 16: a person presses no more keys meanwhile
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(h.ctx, func() {
		if cause := context.Cause(h.ctx); !isSignal(cause) {
			cancel(cause)
		}
	})
	defer stop()
	dir, err := os.Getwd()
	command.Dir = dir
	if err != nil {
		command.Dir = "/"
	}
	streams := childStreams(&g.Console, signals, cmp.Or(h.killAfter, killAfter))
	if h.s == nil && g.IsJSON() {
		streams.Out = streams.Err // standard output is for the document
	}
	r, err := guard.RunAttached(own, command, streams)
	if h.s == nil && own.Err() != nil {
		return context.Cause(own)
	}
	return childError(own, g, h, command.Args, r, err)
}

// freeLease is the longest time that a command without a hold outlives a killed
// zkagent.
const freeLease = time.Hour

// runFree runs a command like runHeld, but without a hold. The command ends by
// itself or with ctx. Signals go to the command.
func runFree(ctx context.Context, g *globals, args []string) error {
	guard := proc.Guard{Lease: func() time.Time { return time.Now().Add(freeLease) }, Every: freeLease / 12}
	return attached(ctx, g, heldCommand{ctx: ctx}, guard, proc.Command{Args: args, Env: os.Environ(), Grace: proc.DefaultGrace})
}

// passedOn lists the signals that we pass to a command. CONT means that the shell
// has continued us; the command must continue, too.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// childStreams connects a child with our standard files, the terminal and signals. In
// tests, streams that are not files stay unset.
func childStreams(console *term.Console, signals <-chan os.Signal, killAfter time.Duration) proc.Streams {
	file := func(stream any, def *os.File) *os.File {
		if f, ok := term.File(stream); ok {
			return f
		}
		return def
	}
	return proc.Streams{
		In: file(console.In, nil), Out: file(console.Out, os.Stdout), Err: file(console.Err, os.Stderr),
		Terminal: true, Signals: signals, KillAfter: killAfter,
	}
}

func childError(ctx context.Context, g *globals, h heldCommand, args []string, r proc.Result, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return fail(exitNotFound, fmt.Errorf("%s: command not found", args[0]))
	case errors.Is(err, fs.ErrPermission):
		return fail(exitNotExecutable, fmt.Errorf("%s: cannot be executed", args[0]))
	case errors.Is(err, proc.ErrLease) || h.ctx.Err() != nil && cause != nil:
		// Print it before the release, which may take a while.
		return codeError(g.notify(&cliError{
			code: exitLost, err: fmt.Errorf("%s was lost, %s was ended: %w", h.what, args[0], cmp.Or(context.Cause(h.ctx), err)),
			hints: []string{"another may hold it now; what the command had done stays"},
		}))
	}
	exit, ok := errors.AsType[*proc.ExitError](err)
	switch {
	case !ok:
		return fail(exitNotExecutable, err)
	case r.Signal != "":
		if s, perr := proc.ParseSignal(r.Signal); perr == nil {
			return codeError(exitSignal + int(s))
		}
	case exit.Result.Code > 0:
		return codeError(exit.Result.Code)
	}
	return fail(exitFailed, err)
}

func isSignal(err error) bool {
	_, ok := errors.AsType[signalError](err)
	return ok
}

// commandAfter splits "NAME -- CMD ARG..." at the dashes.
func commandAfter(args []string, dash int) ([]string, []string) {
	if dash < 0 {
		return args, nil
	}
	return args[:dash], args[dash:]
}

// become replaces this process by the command. It returns only on failure.
func become(args, env []string) error {
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return failf(exitNotExecutable, "%s: cannot be executed", args[0])
	case err != nil:
		return failf(exitNotFound, "%s: command not found", args[0])
	}
	if err := syscall.Exec(path, args, env); err != nil { //nolint:gosec // the command of the command line.
		return fail(exitNotExecutable, fmt.Errorf("execute %s: %w", path, err))
	}
	return nil
}
