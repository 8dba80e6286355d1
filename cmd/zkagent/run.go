package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/dev"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
)

func newRunCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run the agent",
		Long: `Run the agent in the foreground until SIGTERM or SIGINT. SIGHUP loads the
settings again; if they are invalid, the agent reports it and keeps the old ones.
The agent resumes the session that a previous process left in the state directory.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			level := &slog.LevelVar{}
			s, err := g.loadSettings(settings.Options{})
			if err != nil {
				return err
			}
			cfg := s.Config
			setLevel(level, cfg.Log.Level, g.verbose)
			cfg.Logger = slog.New(logHandler(&g.Console, cfg.Log.Format, level))
			cfg.Version = buildVersion()
			cfg.Load = func() (agent.Config, error) { return reloadSettings(g, cfg.Logger, level) }
			a, err := agent.New(cfg)
			if err != nil {
				return fail(exitConfig, err)
			}
			defer time.AfterFunc(settled, dropText).Stop()
			// The agent has handlers of its own for the signals that end it.
			g.stopSignals()
			if c.Context().Err() != nil { // it was ended before it began
				return context.Cause(c.Context())
			}
			switch err := a.RunSignals(context.WithoutCancel(c.Context())); {
			case err == nil:
				return nil
			case errors.Is(err, agent.ErrUpgrade):
				return agent.Exec()
			case errors.Is(err, agent.ErrForced):
				return fail(exitFailed, err)
			default:
				return childOf(err)
			}
		},
	}
}

// childOf returns the exit code of a supervised program whose end has ended the agent.
func childOf(err error) error {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) && coded.ExitCode() > 0 {
		return &cliError{code: coded.ExitCode(), err: err}
	}
	return err
}

func reloadSettings(g *globals, logger *slog.Logger, level *slog.LevelVar) (agent.Config, error) {
	s, err := settings.Load(g.configPaths(), settings.Options{})
	for _, d := range s.Diagnostics {
		logger.Warn("settings", "diagnostic", settings.Line(d))
	}
	if err != nil {
		return agent.Config{}, err
	}
	setLevel(level, s.Config.Log.Level, g.verbose)
	s.Config.Version = buildVersion()
	return s.Config, nil
}

func setLevel(v *slog.LevelVar, text string, verbose bool) {
	if v.UnmarshalText([]byte(text)) != nil {
		v.Set(slog.LevelInfo)
	}
	if verbose {
		v.Set(slog.LevelDebug)
	}
}

// logHandler is where and how the agent logs: standard error, as text, or as JSON.
// Under systemd, entries go to the journal with their fields. Without the journal's
// socket they are lines with the level as a number in front; the journal adds the
// time.
func logHandler(console *term.Console, format string, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: clipped}
	if format == "json" {
		return slog.NewJSONHandler(console.Err, options)
	}
	if under, _ := journal.StderrIsJournalStream(); under && format == "auto" {
		if journal.Enabled() {
			return journalHandler{out: console.Err, level: level, send: journal.Send}
		}
		return journalHandler{out: console.Err, level: level}
	}
	return slog.NewTextHandler(console.Err, options)
}

// maxLogged is how many bytes of one attribute are logged: a path or a text of ZooKeeper
// can have a megabyte.
const maxLogged = 8 << 10

func clipped(_ []string, a slog.Attr) slog.Attr {
	if text := a.Value.String(); len(text) > maxLogged {
		a.Value = slog.StringValue(fleet.Clip(text, maxLogged))
	}
	return a
}

// settled is the time after which an agent has finished its start-up work.
const settled = 15 * time.Second

// dropText releases the memory pages of the program's code. A start touches most of
// the code, an idle agent little. The kernel keeps the pages in its cache and maps
// them again on use, without reading the disk. Code pages are never written, so no
// data is lost. If dropText cannot read the layout of the process, it does nothing.
func dropText() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for start, end := range textRanges(maps, exe) {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED)
	}
}

// textRanges yields the address ranges of a program's code, from /proc/self/maps.
func textRanges(maps []byte, exe string) func(func(start, end uintptr) bool) {
	return func(yield func(uintptr, uintptr) bool) {
		for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) != 6 || f[1] != "r-xp" || f[5] != exe {
				continue
			}
			from, to, _ := strings.Cut(f[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && start < end && !yield(uintptr(start), uintptr(end)) {
				return
			}
		}
	}
}

// journalHandler writes entries for the journal. With send, an entry has fields: PRIORITY,
// MESSAGE (the line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. Without send, and when the journal rejects an entry,
// it is a line on out with its level in front.
type journalHandler struct {
	out   io.Writer
	level slog.Leveler
	send  func(message string, level journal.Priority, fields map[string]string) error
	wraps []func(slog.Handler) slog.Handler // attributes and groups of the logger
}

// Enabled implements slog.Handler.
func (h journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle implements slog.Handler. The line is "message key=value", without time and level,
// which the journal adds. The attributes are fields, a group as a prefix; the first of a
// name counts.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	fields := map[string]string{"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": fleet.Clip(r.Message, maxLogged)}
	line := bytes.NewBufferString(term.Printable(fleet.Clip(r.Message, maxLogged)))
	if r.NumAttrs() > 0 || len(h.wraps) > 0 {
		line.WriteByte(' ')
	}
	var text slog.Handler = slog.NewTextHandler(line, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		key := fieldName(strings.Join(append(slices.Clone(groups), a.Key), "_"))
		a = clipped(groups, a)
		if _, taken := fields[key]; key != "" && !taken {
			fields[key] = a.Value.String()
		}
		return a
	}})
	for _, wrap := range h.wraps {
		text = wrap(text)
	}
	err := text.Handle(ctx, r)
	if err != nil || h.send != nil && h.send(strings.TrimSuffix(line.String(), "\n"), priority(r.Level), fields) == nil {
		return err
	}
	_, err = fmt.Fprintf(h.out, "<%d>%s", priority(r.Level), line) // one write a line: lines do not mix
	return err
}

func (h journalHandler) with(fn func(slog.Handler) slog.Handler) slog.Handler {
	h.wraps = append(slices.Clip(h.wraps), fn)
	return h
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })
}

// priority is the level as syslog numbers it.
func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

func fieldName(name string) string {
	if name == "" {
		return ""
	}
	field := "ZKAGENT_" + strings.ToUpper(notVariable.ReplaceAllString(name, "_"))
	return field[:min(64, len(field))]
}

const devListen = "127.0.0.1:2181"

type devFlags struct {
	dev.Options

	members []string
	outage  string
	hooks   string
}

func newDevCommand(g *globals) *cobra.Command {
	var o devFlags
	c := &cobra.Command{
		Use: "dev [DIR|FILE]...", Short: "Try settings with a ZooKeeper in memory",
		Long: `Start a ZooKeeper in memory on loopback, and run an agent with your settings on it.
Without an argument, run a built-in example and explain each step.

The command prints members, leaders, hooks and the difference of every file as they
change. It fills the ZooKeeper from the directory "seed" next to the settings, and
reads settings and templates again when you edit them. Any ZooKeeper client can
connect. With --hosts 3 three agents run, as on three hosts.

All data are gone at the end. The command changes nothing on this host: it writes
rendered files below a new directory unless you give --in-place, and only prints the
commands of hooks and reloads unless you give --hooks run. It runs checks. If no
service listens at the address of a health check, a stand-in answers.`,
		RunE: func(c *cobra.Command, args []string) error {
			if g.IsJSON() {
				return usagef("dev talks to people: --output %s is not possible", g.Format)
			}
			if c.Flags().Changed("zk") {
				return usagef("dev starts its own ZooKeeper: --listen HOST:PORT is its address, not --zk")
			}
			if err := o.parse(c, args); err != nil {
				return err
			}
			// A closed terminal ends dev like Ctrl-C, so it cleans up.
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGHUP)
			defer stop()
			g.endWithReader(stop)
			o.Console, o.Version, o.Verbose = &g.Console, buildVersion(), g.verbose
			o.Load = func(paths []string, opts settings.Options) (*settings.Settings, error) {
				g.config = paths
				return g.loadSettings(opts)
			}
			return childOf(dev.Run(ctx, &o.Options))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Listen, "listen", devListen, "address of the ZooKeeper server; port 0 takes a free port")
	f.StringArrayVar(&o.members, "members", nil, "simulate members, as in web=5, where web is a group block or the path of a group; may be given more than once")
	f.DurationVar(&o.Churn, "churn", 0, "replace one simulated member by another each time this time has passed (default: never)")
	f.StringVar(&o.outage, "outage", "", "stop the server again and again, as in 30s/5m: for 30s every 5m (default: never)")
	f.DurationVar(&o.ExitAfter, "exit-after", 0, "end after this time, but not before the story has ended (default: at Ctrl-C)")
	f.StringVar(&o.hooks, "hooks", "", "run or print the commands of hooks and reloads (default: run for the built-in example, otherwise print)")
	f.StringVar(&o.ServerVersion, "zk-version", dev.DefaultZooKeeper, "ZooKeeper version to emulate, as in 3.9")
	f.BoolVar(&o.InPlace, "in-place", false, "write the files where the settings say; by default below a new directory, so that nothing here changes")
	f.BoolVar(&o.StandIn, "stand-in", true, "answer the health checks of services that do not run here")
	f.IntVar(&o.Hosts, "hosts", 1, "number of agents to run, each as a host; more than one to try votes and rollouts")
	f.BoolVar(&o.Story, "story", false, "explain each step of the agent (default: with the built-in example)")
	return c
}

func (o *devFlags) parse(c *cobra.Command, args []string) error {
	o.Paths = args
	if len(args) == 0 {
		o.Story = !c.Flags().Changed("story") || o.Story
	}
	switch o.hooks {
	case "run", "print":
		o.RunHooks = o.hooks == "run"
	case "":
		o.RunHooks = len(args) == 0
	default:
		return usagef("--hooks %q is not one of run, print", o.hooks)
	}
	switch _, _, err := net.SplitHostPort(o.Listen); {
	case err != nil:
		return usagef("--listen %q: want host:port, as in 127.0.0.1:2182", o.Listen)
	case o.Hosts < 1 || o.Hosts > dev.MaxHosts:
		return usagef("--hosts %d: want 1 to %d", o.Hosts, dev.MaxHosts)
	case o.Hosts > 1 && o.Story:
		return usagef("--story shows one host: leave out --hosts")
	case o.Churn < 0 || o.ExitAfter < 0:
		return usagef("a time must not be negative")
	}
	var err error
	if o.ServerVersion, err = dev.ServerVersion(o.ServerVersion); err != nil {
		return usagef("--zk-version: %v", err)
	}
	if o.Members, err = parseMembers(o.members); err != nil {
		return err
	}
	if o.outage == "" {
		return nil
	}
	first, second, _ := strings.Cut(o.outage, "/")
	var bad error
	o.Down, err = time.ParseDuration(first)
	o.Every, bad = time.ParseDuration(second)
	if err != nil || bad != nil || o.Down <= 0 || o.Every <= o.Down {
		return usagef("--outage %q: want DOWN/EVERY with EVERY longer than DOWN, as in 30s/5m", o.outage)
	}
	return nil
}

func parseMembers(list []string) ([]dev.Members, error) {
	specs := make([]dev.Members, 0, len(list))
	for _, text := range list {
		name, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 || n > dev.MaxMembers {
			return nil, usagef("--members %q: want GROUP=COUNT with at most %d, as in web=5", text, dev.MaxMembers)
		}
		specs = append(specs, dev.Members{Group: name, Count: n})
	}
	return specs, nil
}
