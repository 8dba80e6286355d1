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
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
)

// version is set at link time.
var version string

func main() {
	proc.GuardMain()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
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
	c, err := root.ExecuteContextC(ctx)
	if e, ok := errors.AsType[*cliError](err); ok && e.code == exitUsage && len(e.hints) == 0 {
		e.hints = []string{usageHint(c)}
	}
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
			time.AfterFunc(agent.Together, func() { signal.Stop(signals) }) // a twin of the signal must not change the exit
		case <-done:
			signal.Stop(signals)
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		<-ended
	})
}

// endWithReader calls end when nobody reads standard output or error any more. SIGPIPE
// does not tell: the kernel sends it for a write to any connection that a client has reset.
func (g *globals) endWithReader(end func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else it kills the program
	g.Out, g.Err = untilRead(g.Out, end), untilRead(g.Err, end)
}

// readStream is a stream that calls end when its reader is gone.
type readStream struct {
	io.Writer

	end func()
}

// untilRead leaves a terminal as it is: its end is SIGHUP.
func untilRead(w io.Writer, end func()) io.Writer {
	if term.IsTerminal(w) {
		return w
	}
	return readStream{w, end}
}

func (s readStream) Write(p []byte) (int, error) {
	n, err := s.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		s.end()
	}
	return n, err
}

// globals are the console and the flags that all commands share. A command is a
// function of it, or of the console alone; globals has methods only for what all
// commands need: settings, a session, the agent, a question, the exit.
type globals struct {
	term.Console

	config  []string
	zk      string
	chroot  string
	addr    string
	json    bool
	verbose bool
	timeout time.Duration
	session time.Duration
	yes     bool

	bound time.Duration // of a command that waits for no event; 0: no bound

	stopSignals func() // gives SIGINT and SIGTERM back; they end the context until then
	started     bool   // the command itself has begun: errors are no longer usage errors
	shown       bool   // the diagnostics have been printed
}

func newGlobals(in io.Reader, out, errOut io.Writer) *globals {
	g := &globals{stopSignals: func() {}, Console: term.Console{In: in, Out: out, Err: errOut, Format: "text"}}
	g.Here = g.here
	return g
}

func (g *globals) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArrayVarP(&g.config, "config", "c", nil, "settings file or directory; may be given more than once (default $ZKAGENT_CONFIG, /etc/zkagent)")
	f.StringVar(&g.zk, "zk", "", "ZooKeeper as host:port,host:port/chroot (default $ZKAGENT_ZK, else the settings)")
	f.StringVar(&g.chroot, "chroot", "", "put this path before all znode paths (default: the chroot of --zk, else of the settings)")
	f.StringVar(&g.addr, "addr", "", "socket of the agent (default $ZKAGENT_ADDR, else the settings, else /run/zkagent/zkagent.sock)")
	f.StringVarP(&g.Format, "output", "o", "text", "text, wide, json, yaml or ndjson")
	f.BoolVar(&g.json, "json", false, "the same as --output json")
	f.BoolVar(&g.NoHeaders, "no-headers", false, "print tables without headers, for scripts")
	f.BoolVarP(&g.Quiet, "quiet", "q", false, "print only errors on standard error, no progress or warnings")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "log each step on standard error")
	f.BoolVar(&g.NoColor, "no-color", false, "the same as --color never; $NO_COLOR does it, too")
	f.StringVar(&g.Color, "color", "auto", "auto, always or never; auto colours only on a terminal")
	f.DurationVar(&g.timeout, "timeout", 0, "give up after this time (default 10s for ZooKeeper to answer and 30s for the whole; none for what waits for others)")
	f.DurationVar(&g.session, "session-timeout", 0, "session timeout to ask ZooKeeper for (default 10s, or the settings)")
	f.BoolVarP(&g.yes, "yes", "y", false, "answer every question with yes; scripts need it for commands that ask")
}

// prepare checks the common flags before a command runs.
func (g *globals) prepare() error {
	if g.json {
		g.Format = "json"
	}
	if !slices.Contains(term.Formats, g.Format) {
		bad := g.Format
		g.Format = "text"
		return usagef("--output %q is not one of %s", bad, strings.Join(term.Formats, ", "))
	}
	switch g.Color {
	case "auto", "always", "never":
	default:
		return usagef("--color %q is not one of auto, always, never", g.Color)
	}
	if g.timeout < 0 || g.session < 0 {
		return usagef("a timeout must not be negative")
	}
	g.started = true
	return nil
}
