package main

import (
	"runtime"

	"github.com/spf13/cobra"
)

// Groups of commands in the help.
const (
	groupHost   = "host"
	groupFleet  = "fleet"
	groupScript = "script"
	groupOther  = "other"
)

// commands lists every command: one file each, and its group.
var commands = []struct {
	group string
	make  func(*globals) *cobra.Command
}{
	{groupHost, newRunCommand},
	{groupHost, newDevCommand},
	{groupHost, newValidateCommand},
	{groupHost, newFmtCommand},
	{groupHost, newRenderCommand},
	{groupHost, newBlameCommand},
	{groupHost, newExplainCommand},
	{groupHost, newHistoryCommand},
	{groupHost, newDiffCommand},
	{groupHost, newTestCommand},
	{groupHost, newImportCommand},
	{groupHost, newReloadCommand},
	{groupHost, newStatusCommand},
	{groupHost, newEventsCommand},
	{groupHost, newDoctorCommand},
	{groupHost, newDebugCommand},
	{groupHost, newHooksCommand},
	{groupHost, newCheckCommand},
	{groupHost, newMaintCommand},
	{groupHost, newLeaveCommand},
	{groupHost, newUpgradeCommand},
	{groupFleet, newMembersCommand},
	{groupFleet, newConfigCommand},
	{groupFleet, newRolloutCommand},
	{groupFleet, newFleetCommand},
	{groupFleet, newAuditCommand},
	{groupScript, newLockCommand},
	{groupScript, newElectCommand},
	{groupScript, newResignCommand},
	{groupScript, newBarrierCommand},
	{groupScript, newQueueCommand},
	{groupScript, newTxnCommand},
	{groupScript, newWatchCommand},
	{groupScript, newHAProxyCommand},
	{groupScript, newExecCommand},
	{groupScript, newZKCommand},
	{groupOther, newOptionsCommand},
	{groupOther, newCompletionCommand},
	{groupOther, newManCommand},
	{groupOther, newVersionCommand},
}

// newRoot builds the command tree.
func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "zkagent",
		Short: "Register, watch, render, reload, elect: one agent beside Apache ZooKeeper",
		Long: `zkagent registers the services of a host in ZooKeeper while they are healthy,
follows config trees, groups and elections, renders templates from them,
reloads what uses the files, and runs hooks where they belong.

  zkagent dev                             see it work, without a ZooKeeper
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
		RunE: func(c *cobra.Command, _ []string) error {
			if err := c.Help(); err != nil {
				return err
			}
			return codeError(exitUsage)
		},
	}
	root.SetVersionTemplate("zkagent {{.Version}}\n")
	root.SetIn(g.In)
	root.SetOut(g.Out)
	root.SetErr(g.Err)
	root.AddGroup(
		&cobra.Group{ID: groupHost, Title: "The agent on this host:"},
		&cobra.Group{ID: groupFleet, Title: "The fleet, through ZooKeeper:"},
		&cobra.Group{ID: groupScript, Title: "ZooKeeper for scripts:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	g.flags(root)
	for _, c := range commands {
		cmd := c.make(g)
		cmd.GroupID = c.group
		elsewhere(cmd, runtime.GOOS)
		root.AddCommand(cmd)
	}
	root.SetHelpCommandGroupID(groupOther)
	root.CompletionOptions.DisableDefaultCmd = true
	addExamples(root)
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
		Use: use, Short: short, Args: cobra.ArbitraryArgs, Annotations: onlyParent,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%s has no command %q%s", c.CommandPath(), args[0], meant(c, args[0]))
			}
			_ = c.Help()
			return codeError(exitUsage)
		},
	}
	c.AddCommand(children...)
	return c
}
