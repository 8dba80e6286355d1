package main

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/term"
)

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

// flags adds the common flags to the root command.
func (g *globals) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArrayVarP(&g.config, "config", "c", nil, "settings file or directory; may be given more than once (default $ZKAGENT_CONFIG, /etc/zkagent)")
	f.StringVar(&g.zk, "zk", "", "ZooKeeper as host:port,host:port/chroot (default $ZKAGENT_ZK, else the settings)")
	f.StringVar(&g.chroot, "chroot", "", "chroot to use instead of the one of --zk or the settings")
	f.StringVar(&g.addr, "addr", "", "socket of the agent (default $ZKAGENT_ADDR, else the settings, else /run/zkagent/zkagent.sock)")
	f.StringVarP(&g.Format, "output", "o", "text", "text, wide, json, yaml or ndjson")
	f.BoolVar(&g.json, "json", false, "the same as --output json")
	f.BoolVar(&g.NoHeaders, "no-headers", false, "print tables without headers")
	f.BoolVarP(&g.Quiet, "quiet", "q", false, "print only errors on standard error")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "log each step on standard error")
	f.BoolVar(&g.NoColor, "no-color", false, "no colour (also $NO_COLOR)")
	f.StringVar(&g.Color, "color", "auto", "auto, always or never")
	f.DurationVar(&g.timeout, "timeout", 0, "give up after this time (default 10s for ZooKeeper to answer and 30s for the whole; none for what waits for others)")
	f.DurationVar(&g.session, "session-timeout", 0, "session timeout to ask ZooKeeper for (default 10s, or the settings)")
	f.BoolVarP(&g.yes, "yes", "y", false, "answer every question with yes")
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
