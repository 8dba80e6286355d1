package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

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

// parent makes a command that only holds others: without one of them it is
// wrong usage.
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

// listing makes a command that holds others, and lists something of this host's agent
// without one of them.
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
		"config get": {"show", "cat"}, "config publish": {"push", "put", "apply", "set"}, "config history": {"log", "versions"},
		"config delete": {"rm", "remove"}, "config rollback": {"undo"},
		"maint": {"drain", "undrain", "maintenance", "cordon", "uncordon"}, "members": {"services", "service", "groups"}, "fleet": {"hosts", "agents", "nodes"},
		"events": {"log", "logs"}, "validate": {"check-config", "lint"},
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

// elsewhere makes a Linux command, which has no parent yet, fail on another system
// with a message that says so.
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
