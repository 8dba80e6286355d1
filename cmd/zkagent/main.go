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
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
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
	if c, ok := errors.AsType[codeError](err); ok || err == nil {
		if err = g.Failed(); err == nil {
			return int(c)
		}
	}
	e := classify(err)
	if !g.started && e.code == exitFailed {
		e = &cliError{code: exitUsage, err: err, hints: []string{"see \"zkagent help\""}}
	}
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok && (errors.Is(err, context.Canceled) || errors.Is(err, s)) {
		return exitSignal + int(s.signal)
	}
	return g.notify(e)
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
	for _, w := range []*io.Writer{&g.Out, &g.Err} {
		if !term.IsTerminal(*w) { // its end is SIGHUP
			*w = readStream{*w, end}
		}
	}
}

type readStream struct {
	io.Writer

	end func()
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
	f.DurationVar(&g.timeout, "timeout", 0, "give up after this time (default: 10s to reach ZooKeeper, 30s for the whole command; no limit for commands that wait for others, such as lock)")
	f.DurationVar(&g.session, "session-timeout", 0, "session timeout to ask ZooKeeper for (default 10s, or the settings)")
	f.BoolVarP(&g.yes, "yes", "y", false, "answer every question with yes; scripts need it for commands that ask")
}

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

// groups are the groups of commands in the help. The first one is shown with a line for
// each command, the others by their names.
var groups = []struct {
	id, title string
	commands  []func(*globals) *cobra.Command
}{
	{"first", "Commands to begin with:", []func(*globals) *cobra.Command{
		newRunCommand, newDevCommand, newValidateCommand, newRenderCommand, newStatusCommand, newExplainCommand, newMaintCommand, newDoctorCommand,
		newMembersCommand, newConfigCommand, newRolloutCommand, newFleetCommand, newLockCommand, newElectCommand, newZKCommand,
	}},
	{"files", "Files (see also explain):", []func(*globals) *cobra.Command{newHistoryCommand, newDiffCommand, newBlameCommand}},
	{"host", "The agent on this host:", []func(*globals) *cobra.Command{
		newFmtCommand, newTestCommand, newImportCommand, newReloadCommand, newEventsCommand, newDebugCommand, newHooksCommand, newCheckCommand,
		newLeaveCommand, newUpgradeCommand,
	}},
	{"script", "Scripts (see also lock and elect):", []func(*globals) *cobra.Command{
		newResignCommand, newBarrierCommand, newQueueCommand, newTxnCommand, newWatchCommand, newHAProxyCommand, newExecCommand,
	}},
	{"fleet", "The fleet:", []func(*globals) *cobra.Command{newAuditCommand}},
	{"other", "Other:", []func(*globals) *cobra.Command{newOptionsCommand, newManCommand, newVersionCommand}},
}

func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "zkagent",
		Short: "Register services, render config files, elect leaders: an agent for Apache ZooKeeper",
		Long: `zkagent registers the services of a host in ZooKeeper while they are healthy,
follows config trees, groups and elections, renders templates from them,
reloads the programs that use the files, and runs hooks: on every host, or only
on the leader.`,
		Example: `  zkagent dev                             see it work, without a ZooKeeper
  zkagent validate -c /etc/zkagent        check the settings
  zkagent run -c /etc/zkagent             run the agent
  zkagent status                          show the state of the agent
  zkagent members                         list the members of a group
  zkagent lock backup -- /usr/bin/backup  run a command under a lock`,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		Annotations:   onlyParent,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if !waitsForOthers(c) {
				g.bound = oneShot
			}
			return g.prepare()
		},
		RunE: helpOnly,
	}
	root.SetVersionTemplate("zkagent {{.Version}}\n")
	root.SetIn(g.In)
	root.SetOut(g.Out)
	root.SetErr(g.Err)
	g.flags(root)
	for _, group := range groups {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, create := range group.commands {
			cmd := create(g)
			cmd.GroupID = group.id
			elsewhere(cmd, runtime.GOOS)
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	explainHelp(root)
	addExamples(root)
	addAliases(root)
	completeNames(g, root)
	explainUsage(root)
	return root
}

// onlyParent marks a command that does nothing but hold others.
var onlyParent = map[string]string{"parent": "true"}

// parent makes a command that only holds others.
func parent(use, short string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, Annotations: onlyParent, RunE: helpOnly,
	}
	c.AddCommand(children...)
	return c
}

// helpOnly runs a command that needs one of its commands.
func helpOnly(c *cobra.Command, _ []string) error {
	if err := c.Help(); err != nil {
		return err
	}
	return codeError(exitUsage)
}

// explainHelp makes "help" and "completion" refuse a word that is not a command.
func explainHelp(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	completion := find(root, "completion")
	completion.Annotations, completion.RunE = onlyParent, helpOnly
	root.InitDefaultHelpCmd()
	help := find(root, "help")
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err == nil && c.HasSubCommands() && len(rest) > 0 {
			err = c.ValidateArgs(rest)
		}
		if err != nil {
			return err
		}
		return c.Help()
	}
}

// listing makes a command that lists something of the agent, and holds others.
func listing(g *globals, name, short string, list func(context.Context, *term.Console, *web.Client) error, children ...*cobra.Command) *cobra.Command {
	c := parent(name, short, children...)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error { return list(ctx, &g.Console, client) })
	}
	return c
}

// aliases are other names of commands, and triedFor words that people try and for
// which an error names the command.
var (
	aliases  = map[string][]string{"zk get": {"cat"}, "zk rm": {"delete"}, "rollout list": {"history", "ls"}, "hooks list": {"ls"}, "config list": {"ls"}}
	triedFor = map[string][]string{
		"config get": {"show", "cat", "view", "keys", "read", "describe"}, "config history": {"log", "versions"}, "config list": {"status"},
		"config publish": {"push", "put", "apply", "set", "deploy", "create", "add", "write", "update", "promote"},
		"config plan":    {"check", "validate", "test", "lint", "dry-run"}, "config freeze": {"lock"}, "config unfreeze": {"unlock"},
		"config delete": {"rm", "remove", "del"}, "config rollback": {"undo", "revert"}, "config export": {"dump", "save", "backup"},
		"rollout status": {"show", "get", "info", "votes"}, "rollout abort": {"stop", "cancel", "halt"}, "rollout resume": {"continue", "promote", "start"},
		"zk set": {"put", "write", "update"}, "zk create": {"mkdir", "touch"}, "zk rm": {"remove", "del", "deleteall"},
		"zk acl": {"getAcl", "setAcl"}, "zk tree": {"find"}, "zk get": {"show"}, "queue put": {"add", "push"}, "queue take": {"pop", "get"},
		"maint": {"drain", "undrain", "maintenance", "cordon", "uncordon", "disable", "enable"}, "maint on": {"start"}, "maint off": {"stop", "end"},
		"members": {"services", "service", "groups", "group", "instances"}, "fleet": {"hosts", "agents", "nodes", "host", "node"},
		"events": {"log", "logs", "tail"}, "validate": {"check-config", "lint", "verify", "configtest"}, "hooks log": {"history", "logs"},
		"render": {"template", "templates", "dry-run"}, "run": {"agent", "start", "daemon", "server"}, "leave": {"stop", "shutdown", "quit"},
		"status": {"info", "health"}, "elect": {"leader", "leaders"}, "explain": {"why"}, "doctor": {"diagnose"}, "lock": {"mutex", "unlock"},
	}
)

func addAliases(root *cobra.Command) {
	for path, list := range aliases {
		find(root, path).Aliases = list
	}
	for path, list := range triedFor {
		find(root, path).SuggestFor = list
	}
}

// next is the version that is being worked on, as the file VERSION has it.
const next = "0.1.0"

// buildVersion is the version that a release was linked with, or that of the module;
// of any other build it is the next one, marked as not yet released.
func buildVersion() string {
	if version != "" {
		return strings.TrimPrefix(version, "v")
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return next + "-dev"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" && !strings.HasPrefix(v, "v0.0.0-") {
		return strings.TrimPrefix(v, "v")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return next + "-dev+" + s.Value[:min(len(s.Value), 12)]
		}
	}
	return next + "-dev"
}

func newVersionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			fields := map[string]string{"version": buildVersion(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
			return g.PrintResult("version", fields, "zkagent %s (%s, %s/%s)\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// linuxOnly lists the commands that run an agent, ask this host's agent, or run
// another program. Only Linux can keep a program from outliving its lease. All
// other commands work from any system.
var linuxOnly = []string{
	"run", "dev", "reload", "status", "events", "doctor", "debug", "hooks", "check", "maint", "leave", "upgrade", "blame", "explain", "history", "diff",
	"lock", "elect", "resign", "exec",
}

// elsewhere makes a Linux command, which has no parent yet, fail on another system.
func elsewhere(c *cobra.Command, system string) {
	if system != "linux" && slices.Contains(linuxOnly, c.Name()) {
		refuseSystem(c)
	}
}

func refuseSystem(c *cobra.Command) {
	c.Hidden, c.Args = true, cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		return fail(exitUsage, fmt.Errorf("%s works on Linux only, where the agent runs", c.CommandPath()),
			"\"zkagent --help\" lists the commands that look after a fleet from here")
	}
	for _, child := range c.Commands() {
		refuseSystem(child)
	}
}
