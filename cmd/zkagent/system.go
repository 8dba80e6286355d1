package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

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
