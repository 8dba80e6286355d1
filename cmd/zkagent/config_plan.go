package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// planned is a plan with its command-line context.
type planned struct {
	*fleet.Plan
	dir           string
	roll          *strategyFlags
	own, strategy []string     // flags of the plan that a guarded publish takes over
	open          *fleet.State // the open rollout; nil: none
	cfg           fleet.PublishConfig
	fleet         *fleet.Answers // what the hosts say; nil: they were not asked
}

func newConfigPlanCommand(g *globals) *cobra.Command {
	var p publishFlags
	var roll strategyFlags
	var exitCode, ask bool
	c := &cobra.Command{
		Use: "plan DIR|FILE NAME|PATH", Short: "Show the changes that a publish would make, and the command for exactly these",
		Long: `Show what a publish would change, on how many hosts, and the command that
publishes exactly this: it is refused when somebody else publishes in between.
With --rollout, or a flag of one, it shows how the version would reach the hosts.
The command writes nothing. It refuses a version that publish would refuse, with
the same exit code.

With --fleet every subscribed agent renders and checks the version with its own
data, as for a vote, and reports which files would change there. A table shows these
files, the hosts that refuse and why, and the hosts that do not answer. No host
uses the version. This works for a frozen config, too. A publish or a rollout ends
the plan.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			dir, name := sourceAndTarget(args)
			own, strategy := takenOver(c, &roll)
			if err := roll.check(c); err != nil {
				return err
			}
			differs := false
			if ask {
				g.bound = 0 // It waits for the hosts.
			}
			err := withConfig(c.Context(), g, name, func(ctx context.Context, s *session.Session, t target) error {
				plan, err := p.plan(ctx, g, c, s, t, dir)
				if err != nil {
					return err
				}
				plan.roll, plan.own, plan.strategy = &roll, own, strategy
				if err := roll.fill(ctx, s, c, t); err != nil {
					return err
				}
				differs = len(plan.Changes) > 0
				if ask && errors.Is(plan.Refused, fleet.ErrFrozen) { // The hosts may be asked nevertheless.
					g.Warnf("%v", plan.Refused)
					plan.Refused = nil
				}
				if ask && differs && plan.Refused == nil {
					g.Say("%s: asking %s", t.name, term.Count(len(plan.Subscribers), "agent"))
					if plan.fleet, err = dryRun(ctx, s, t, plan.cfg, time.Duration(roll.how.Strategy.VoteTimeout)); err != nil {
						return err
					}
					plan.Next = plan.fleet.Version + 1 // the dry run has used up its own
					differs = len(plan.fleet.Changes) > 0
				}
				return printPlan(g, plan, t)
			})
			return withExitCode(err, exitCode, differs)
		},
	}
	p.add(c)
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 when something would change, and with 70 for a failure; by default a change exits with 0")
	c.Flags().BoolVar(&ask, "fleet", false, "ask every subscribed agent which files would change there; by default only the keys are compared")
	c.Flags().BoolVar(&roll.rollout, "rollout", false, "show how a rollout would reach the hosts; by default plan a publish to all hosts at once")
	roll.add(c.Flags())
	return c
}

// withExitCode maps the result of a command with --exit-code: 1 means a difference,
// 70 a failure.
func withExitCode(err error, asked, differs bool) error {
	switch e := classify(err); {
	case asked && err == nil && differs:
		return codeError(exitFailed)
	case asked && errors.Is(err, codeError(exitFailed)):
		return codeError(exitSoftware)
	case asked && err != nil && e.code == exitFailed:
		return fail(exitSoftware, err, e.hints...)
	}
	return err
}

// plan reads the new tree and compares it with the one in use.
func (p publishFlags) plan(ctx context.Context, g *globals, c *cobra.Command, s *session.Session, t target, dir string) (*planned, error) {
	cfg, err := p.config(g, c, t)
	if err != nil {
		return nil, err
	}
	if cfg.Keys, err = config.ReadDir(dir); err != nil {
		return nil, err
	}
	if err = checkDefaults(cfg.Keys); err != nil {
		return nil, err
	}
	plan, err := fleet.NewPlan(ctx, s, cfg)
	if err != nil {
		return nil, err
	}
	open, err := fleet.Opened(ctx, s, t.path)
	return &planned{Plan: plan, dir: dir, open: open, cfg: cfg}, err
}

type planJSON struct {
	*fleet.Plan
	Diff     string         `json:"diff"`
	Strategy any            `json:"strategy,omitempty"` // of a rollout
	Rollout  string         `json:"open_rollout,omitempty"`
	Command  string         `json:"command"`           // that publishes exactly this
	Refused  string         `json:"refused,omitempty"` // why publish would refuse it
	Fleet    *fleet.Answers `json:"fleet,omitempty"`
}

// printPlan shows the differences and the guarded command.
func printPlan(g *globals, p *planned, t target) error {
	size := len(p.Subscribers) - len(p.Maintenance)
	changing := size
	if len(p.Changes) == 0 && p.From > 0 {
		changing = 0
	}
	how, err := p.roll.rolloutConfig()
	if err != nil {
		return err
	}
	strategy, refused := how.For(size), p.refused(t)
	diff := config.Unified(p.Changes, p.from(), p.next())
	if g.IsJSON() {
		data := planJSON{Plan: p.Plan, Diff: diff, Command: p.command(g, t), Fleet: p.fleet}
		if p.open != nil {
			data.Rollout = p.open.Name
		}
		if p.roll.rollout {
			data.Strategy = strategyJSON(strategy)
		}
		if refused != nil {
			data.Refused = refused.Error()
		}
		if err := g.PrintJSON("plan", data); err != nil || refused == nil {
			return err
		}
		return codeError(classify(refused).code) // the document has the words
	}
	g.Printf("%s: %s -> %s (%s, %d changed), %s would change%s\n",
		t.name, p.from(), p.next(), term.Count(p.Count, "key"), len(p.Changes), term.Count(changing, "agent"), besides(len(p.Maintenance)))
	_ = g.PrintDiff(diff)
	if p.fleet != nil {
		printFleetPlan(&g.Console, p.fleet)
	}
	warnPlan(&g.Console, p, t, size)
	switch {
	case refused != nil:
		return refused
	case len(p.Changes) == 0 && p.From > 0:
		g.Say("nothing would change")
		return nil
	}
	if p.roll.rollout {
		g.Printf("Strategy: %s\n", describe(strategy, size))
	}
	g.Printf("To publish exactly this:\n  %s\n", p.command(g, t))
	return nil
}

// refused returns why the plan cannot be published, or nil.
func (p *planned) refused(t target) error {
	if p.Refused != nil || p.fleet == nil {
		return explain(p.Refused, t)
	}
	if n := len(p.fleet.Refused) + len(p.fleet.Silent); n > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s refused the version or did not answer", n, term.Count(p.fleet.Hosts, "host")))
	}
	if n := len(p.fleet.Unchecked); n > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s did not run their checks", n, term.Count(p.fleet.Hosts, "host")),
			"there the check runs after the swap; \"zkagent doctor\" on the host shows why no preview is possible")
	}
	return nil
}

func warnPlan(console *term.Console, p *planned, t target, size int) {
	if p.open != nil {
		sayBrings(console, "", p.open)
		console.Warnf("%s is open: until it ends, nothing else is published; see \"zkagent rollout status %s\"", p.open.Name, t.name)
	}
	if p.roll.rollout && size == 0 {
		console.Warnf("no agent subscribes, so the rollout would be refused")
	}
}

// from names what is in use.
func (p *planned) from() string {
	if p.From > 0 {
		return generation(p.Layout, p.From)
	}
	return "nothing"
}

// next names what would be.
func (p *planned) next() string {
	if p.Layout == config.LayoutVersioned {
		return fmt.Sprintf("v%d", p.Next)
	}
	return "a new generation"
}

// command returns the shell command that publishes exactly this plan.
func (p *planned) command(g *globals, t target) string {
	words := []string{"zkagent", "config", "publish", term.ShellWord(p.dir), term.ShellWord(t.name), "--check-version", strconv.FormatInt(p.From, 10)}
	words = append(words, p.own...)
	if p.roll.rollout {
		words = append(append(words, "--rollout"), p.strategy...)
	}
	return strings.Join(append(words, g.whereWords()...), " ")
}

// takenOver are the flags that a guarded publish takes over from its plan. Any flag of a
// strategy means a rollout.
func takenOver(c *cobra.Command, roll *strategyFlags) ([]string, []string) {
	var own, strategy []string
	for _, name := range []string{"layout", "force", "finish", "no-delta", "schema", "message"} {
		switch f := c.Flags().Lookup(name); {
		case !f.Changed, f.Value.Type() == "bool" && f.Value.String() == "false":
		case f.Value.Type() == "bool":
			own = append(own, "--"+name)
		case name == "message":
			own = append(own, "-m", term.ShellWord(f.Value.String()))
		default:
			own = append(own, "--"+name, term.ShellWord(f.Value.String()))
		}
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if strategyFlag(f.Name) {
			roll.rollout = true
			strategy = append(strategy, "--"+f.Name, term.ShellWord(f.Value.String()))
		}
	})
	return own, strategy
}

// whereWords repeats the flags that say which ensemble and which settings.
func (g *globals) whereWords() []string {
	var words []string
	for _, c := range g.config {
		words = append(words, "--config", term.ShellWord(c))
	}
	for _, f := range []struct{ name, value string }{{"--zk", g.zk}, {"--chroot", g.chroot}} {
		if f.value != "" {
			words = append(words, f.name, term.ShellWord(f.value))
		}
	}
	return words
}
