// Command zkagent is the agent of a host that uses Apache ZooKeeper, and the
// commands that manage a fleet of such hosts.
//
// Rules of its output: data goes to standard output, everything else to
// standard error; an error is one line that begins with "error:" and says what
// failed, and "hint:" lines that say what to do; the exit codes are those of
// exit.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
)

// version is set at link time.
var version string

func main() { os.Exit(mainCode()) }

// mainCode is main with an exit code, for the tests that run this program.
func mainCode() int {
	proc.GuardMain()
	return run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// run runs one command line to its end and returns the exit code.
func run(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := interrupt(cancel)
	defer stop()
	g := newGlobals(in, term.Guard(out), term.Guard(errOut))
	g.stopSignals = stop
	root := newRoot(g)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return g.finish(ctx, err)
}

// interrupt cancels on the first SIGINT or SIGTERM. A later signal kills the
// program, because the handler is removed by then. Signals within agent.Together
// count as one.
func interrupt(cancel context.CancelCauseFunc) func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-signals:
			cancel(signalError{s.(syscall.Signal)})
			together := time.NewTimer(agent.Together)
			defer together.Stop()
			select {
			case <-together.C:
				signal.Stop(signals)
			case <-done: // the program ends: a late twin of the signal must not change the exit
			}
		case <-done:
			signal.Stop(signals)
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		<-ended
	})
}
