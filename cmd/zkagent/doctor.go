package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

// Levels of a finding.
const (
	levelOK   = "ok"
	levelWarn = "warn"
	levelFail = "fail"
)

// doctorWait bounds each question to a server or program, unless --timeout
// says otherwise.
const doctorWait = 5 * time.Second

// finding is what the doctor says about one thing.
type finding struct {
	Level string `json:"level"`
	Check string `json:"check"`
	About string `json:"about,omitempty"`
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"`
}

// doctor looks at this host and at ZooKeeper, and collects findings.
type doctor struct {
	g       *globals
	cfg     *agent.Config // nil: the settings cannot be loaded
	noWrite bool
	list    []finding
}

// wait bounds one question.
func (d *doctor) wait() time.Duration { return cmp.Or(d.g.timeout, doctorWait) }

func (d *doctor) add(level, check, about, text string) {
	d.list = append(d.list, finding{Level: level, Check: check, About: about, Text: text})
}

// hint adds what to do to the newest finding.
func (d *doctor) hint(format string, args ...any) {
	d.list[len(d.list)-1].Hint = fmt.Sprintf(format, args...)
}

// result adds a finding: fine with the text, or the error at the level.
func (d *doctor) result(level, check, about string, err error, text string) bool {
	if err != nil {
		d.add(level, check, about, err.Error())
		return false
	}
	d.add(levelOK, check, about, text)
	return true
}

func newDoctorCommand(g *globals) *cobra.Command {
	d := &doctor{g: g}
	c := &cobra.Command{
		Use: "doctor", Short: "Find out what keeps the agent from working here",
		Long: `Look at everything that the agent needs: the settings, each server of the
ensemble with its latency, permissions in ZooKeeper, the clock, the files to be
written, the programs to be run, systemd and polkit. Run it as the user of the
agent, for example: runuser -u zkagent -- zkagent doctor. To measure the clock
and the right to write, one ephemeral znode is made below /zkagent and deleted;
--no-write leaves that out. Exit code 1 when something fails.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d.examine(c.Context())
			if err := context.Cause(c.Context()); err != nil {
				return err
			}
			return d.print()
		},
	}
	c.Flags().BoolVar(&d.noWrite, "no-write", false, "do not make a znode")
	return c
}

// examine asks everything; what cannot be asked is a finding, not an end.
func (d *doctor) examine(ctx context.Context) {
	d.add(levelOK, "version", "", fmt.Sprintf("zkagent %s, %s, %s/%s", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH))
	d.settings()
	d.agent(ctx)
	d.zooKeeper(ctx)
	if d.cfg == nil {
		return
	}
	d.stateDir()
	d.destinations()
	d.commands()
	d.systemd(ctx)
}

// settings loads the settings, when there are some.
func (d *doctor) settings() {
	if !d.g.configNamed() && !exists(defaultConfig) {
		d.add(levelWarn, "settings", "", "there are no settings: only ZooKeeper is looked at")
		d.hint("name them by --config")
		return
	}
	s, err := settings.Load(d.g.configPaths(), settings.Options{Env: unitEnv})
	for _, x := range s.Diagnostics {
		level := levelWarn
		if settings.Severity(x) == "error" {
			level = levelFail
		}
		d.add(level, "settings", "", settings.Line(x))
	}
	if err != nil {
		if len(s.Diagnostics) == 0 {
			d.add(levelFail, "settings", strings.Join(d.g.configPaths(), " "), err.Error())
		}
		// What this user or host lacks, as a credential, has been told; the
		// rest can be looked at all the same.
		if s, err = settings.Load(d.g.configPaths(), settings.Options{Env: unitEnv, Offline: true}); err != nil {
			return
		}
		d.hint("credentials are those of the unit: run this as root or as the user of the agent, while it runs")
		d.cfg = &s.Config
		return
	}
	d.cfg = &s.Config
	d.add(levelOK, "settings", strings.Join(s.Config.Files, " "), "valid")
}

// agent asks the agent of this host.
func (d *doctor) agent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	path, err := d.g.socket()
	if err != nil {
		return // the settings have been told.
	}
	s, err := web.NewClient(path).Status(ctx)
	switch {
	case errors.Is(err, web.ErrNoAgent):
		d.add(levelWarn, "agent", path, "no agent is running")
		return
	case err != nil:
		d.add(levelFail, "agent", path, err.Error())
		return
	}
	d.add(levelOK, "agent", path, fmt.Sprintf("%s is %s for %s: %s", s.Agent.ID, s.Agent.State, term.Age(s.Agent.Started), s.Summary))
	if s.Agent.Version != buildVersion() {
		d.add(levelWarn, "version", "", fmt.Sprintf("the agent that runs is %s, this program is %s", s.Agent.Version, buildVersion()))
		d.hint("\"zkagent upgrade\" executes the new one and keeps the session")
	}
	if d.cfg != nil && s.Settings.Hash != d.cfg.Hash {
		d.add(levelWarn, "settings", "", "the agent runs with other settings than those in the files")
		d.hint("\"zkagent reload\" loads them")
	}
	for _, c := range s.Conditions {
		d.add(levelWarn, "condition", strings.TrimSpace(c.Code+" "+c.Subject), fmt.Sprintf("%s (for %s)", c.Text, term.Age(c.Since)))
	}
}

// print shows the findings; one that fails makes the exit code 1.
func (d *doctor) print() error {
	failed, warned := 0, 0
	t := &term.Table{Header: []string{"", "CHECK", "ABOUT", "FINDING"}}
	for _, f := range d.list {
		color := "32"
		switch f.Level {
		case levelFail:
			failed, color = failed+1, "31"
		case levelWarn:
			warned, color = warned+1, "33"
		}
		t.Add(d.g.Colored(d.g.Out, color, f.Level), f.Check, f.About, f.Text)
		if f.Hint != "" {
			t.Add("", "", "", "hint: "+f.Hint)
		}
	}
	var err error
	if d.g.IsJSON() {
		err = term.PrintList(&d.g.Console, "findings", d.list)
	} else if err = d.g.PrintTable(t); err == nil {
		d.g.Say("%s, %s", term.Count(failed, "failure"), term.Count(warned, "warning"))
	}
	if err == nil && failed > 0 {
		return codeError(exitFailed)
	}
	return err
}
