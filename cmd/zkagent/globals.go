package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// globals are the streams and the flags that all commands share.
type globals struct {
	in       io.Reader
	out, err io.Writer

	config  []string
	zk      string
	chroot  string
	addr    string
	output  string
	json    bool
	quiet   bool
	verbose bool
	noColor bool
	color   string
	timeout time.Duration
	session time.Duration
	yes     bool

	started bool // the command itself has begun: errors are no longer usage errors
	shown   bool // the diagnostics have been printed
}

func newGlobals(in io.Reader, out, errOut io.Writer) *globals {
	return &globals{in: in, out: out, err: errOut, output: "text"}
}

// flags adds the common flags to the root command.
func (g *globals) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArrayVarP(&g.config, "config", "c", nil, "settings file or directory; may be given more than once (default $ZKAGENT_CONFIG, /etc/zkagent)")
	f.StringVar(&g.zk, "zk", "", "ZooKeeper as host:port,host:port/chroot (default $ZKAGENT_ZK, else the settings)")
	f.StringVar(&g.chroot, "chroot", "", "chroot to use instead of the one of --zk or the settings")
	f.StringVar(&g.addr, "addr", "", "socket of the agent (default $ZKAGENT_ADDR, else the settings, else /run/zkagent/zkagent.sock)")
	f.StringVarP(&g.output, "output", "o", "text", "text, wide, json or ndjson")
	f.BoolVar(&g.json, "json", false, "the same as --output json")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "no talk on standard error, errors only")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "log what is done to standard error")
	f.BoolVar(&g.noColor, "no-color", false, "no colour (also $NO_COLOR)")
	f.StringVar(&g.color, "color", "auto", "auto, always or never")
	f.DurationVar(&g.timeout, "timeout", 0, "give up after this time (default 10s for ZooKeeper to answer; waits have none)")
	f.DurationVar(&g.session, "session-timeout", 0, "session timeout to ask ZooKeeper for (default 10s, or the settings)")
	f.BoolVarP(&g.yes, "yes", "y", false, "answer every question with yes")
}

// prepare checks the common flags before a command runs.
func (g *globals) prepare() error {
	if g.json {
		g.output = "json"
	}
	switch g.output {
	case "text", "wide", "json", "ndjson":
	default:
		bad := g.output
		g.output = "text"
		return usagef("--output %q is not one of text, wide, json, ndjson", bad)
	}
	switch g.color {
	case "auto", "always", "never":
	default:
		return usagef("--color %q is not one of auto, always, never", g.color)
	}
	if g.timeout < 0 || g.session < 0 {
		return usagef("a timeout must not be negative")
	}
	g.started = true
	return nil
}

// isTerminal reports whether the stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// useColor reports whether the stream gets colour.
func (g *globals) useColor(stream any) bool {
	switch {
	case g.color == "always":
		return true
	case g.color == "never" || g.noColor || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb":
		return false
	}
	return isTerminal(stream)
}

// say talks on standard error, unless --quiet.
func (g *globals) say(format string, args ...any) {
	if !g.quiet {
		_, _ = fmt.Fprintf(g.err, format+"\n", args...)
	}
}

// printf prints data. That a reader has gone away is seen by the signal of it.
func (g *globals) printf(format string, args ...any) { _, _ = fmt.Fprintf(g.out, format, args...) }

// errorf prints an error line.
func (g *globals) errorf(format string, args ...any) {
	word := "error:"
	if g.useColor(g.err) {
		word = "\x1b[31merror:\x1b[0m"
	}
	_, _ = fmt.Fprintf(g.err, word+" "+format+"\n", args...)
}

// warnf prints a warning, unless --quiet.
func (g *globals) warnf(format string, args ...any) { g.say("warning: "+format, args...) }

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
