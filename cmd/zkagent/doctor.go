package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/doctor"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

func newDoctorCommand(g *globals) *cobra.Command {
	var noWrite bool
	c := &cobra.Command{
		Use: "doctor", Short: "Find out why the agent does not work on this host",
		Long: `Look at everything that the agent needs: the settings, each server of the
ensemble with its latency, permissions in ZooKeeper, the clock, the files to be
written, the programs to be run, systemd and polkit. Run it as the user of the
agent, for example: runuser -u zkagent -- zkagent doctor. To measure the clock
and the right to write, one ephemeral znode is created below /zkagent and deleted;
--no-write leaves that out. The exit code is 1 when something fails.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, _ := doctor.Examine(c.Context(), doctorOptions(g, noWrite))
			if err := context.Cause(c.Context()); err != nil {
				return err
			}
			return printFindings(&g.Console, list)
		},
	}
	c.Flags().BoolVar(&noWrite, "no-write", false, "do not make a znode")
	return c
}

// doctorOptions say where the doctor looks.
func doctorOptions(g *globals, noWrite bool) *doctor.Options {
	o := &doctor.Options{
		Env: unitEnv, Socket: g.socket, ZooKeeper: g.doctorZK, Version: buildVersion(), Wait: g.timeout, NoWrite: noWrite,
	}
	if g.configNamed() || exists(defaultConfig) {
		o.Paths = g.configPaths()
	}
	return o
}

// doctorZK is how to reach ZooKeeper: with the settings, as far as they could
// be loaded.
func (g *globals) doctorZK(conf *agent.Config) (session.Config, error) {
	if conf != nil {
		return g.zkConfigOf(conf)
	}
	c, _, err := g.zkConfig()
	return c, err
}

// printFindings shows the findings; one that fails makes the exit code 1.
func printFindings(console *term.Console, list []doctor.Finding) error {
	failed, warned := 0, 0
	t := &term.Table{Header: []string{"", "CHECK", "ABOUT", "FINDING"}}
	for _, f := range list {
		severity := show.OK
		switch f.Level {
		case doctor.LevelFail:
			failed, severity = failed+1, show.Critical
		case doctor.LevelWarn:
			warned, severity = warned+1, show.Warning
		}
		t.Add(colored(console, severity, f.Level), f.Check, f.About, f.Text)
		if f.Hint != "" {
			t.Add("", "", "", "hint: "+f.Hint)
		}
	}
	var err error
	if console.IsJSON() {
		err = term.PrintList(console, "findings", list)
	} else if err = console.PrintTable(t); err == nil {
		console.Say("%s, %s", term.Count(failed, "failure"), term.Count(warned, "warning"))
	}
	if err == nil && failed > 0 {
		return codeError(exitFailed)
	}
	return err
}
