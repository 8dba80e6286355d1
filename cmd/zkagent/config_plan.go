package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
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
		Long: `Show the changes of a publish, the number of hosts, and the command that
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

// withExitCode serves --exit-code: 1 means a difference, 70 a failure.
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

func (p *planned) from() string {
	if p.From > 0 {
		return generation(p.Layout, p.From)
	}
	return "nothing"
}

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
			strategy = append(strategy, "--"+f.Name+"="+term.ShellWord(f.Value.String()))
		}
	})
	return own, strategy
}

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

// pipeline has the flags that say how a new version reaches the hosts: all at once,
// or by votes and a few at a time. Every command that publishes has these flags, so
// that no command bypasses rollouts.
type pipeline struct {
	publishFlags

	roll strategyFlags
}

func (p *pipeline) add(c *cobra.Command) {
	p.publishFlags.add(c)
	f := c.Flags()
	f.BoolVar(&p.roll.rollout, "rollout", false, "let every subscriber vote, then change a few hosts at a time; by default only if the key .rollout.json asks for it")
	f.BoolVar(&p.publish.Emergency, "emergency", false, "publish although a rollout is open, to all hosts at once; asks for the config's name unless --yes")
	f.BoolVar(&p.roll.how.Replace, "replace", false, "with --rollout: take the place of a rollout that has halted")
	p.roll.add(f)
}

// run is that of publishFlags, with the rollout that the tree in use asks for. It rejects
// flags that do not go together.
func (p *pipeline) run(g *globals, c *cobra.Command, name string, fn func(context.Context, *session.Session, target, fleet.PublishConfig) error) error {
	if p.publish.Emergency && p.roll.rollout || p.roll.how.Replace && !p.roll.rollout {
		return usagef("use --emergency without --rollout, and --replace with it")
	}
	if err := p.roll.check(c); err != nil {
		return err
	}
	return p.publishFlags.run(g, c, name, func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
		if !cfg.Emergency {
			if err := p.roll.fill(ctx, s, c, t); err != nil {
				return err
			}
		}
		return fn(ctx, s, t, cfg)
	})
}

// fill takes over what the key .rollout.json of the tree in use says and no flag does.
// The key means a rollout, unless --rollout=false. Of a damaged tree the flag must say
// which: all hosts at once is no default for a tree that may ask for a rollout.
func (r *strategyFlags) fill(ctx context.Context, s *session.Session, c *cobra.Command, t target) error {
	said := c.Flags().Changed("rollout")
	if said && !r.rollout {
		return nil
	}
	data, _, err := config.Lookup(ctx, s, t.path, config.RolloutKey)
	switch {
	case errors.Is(err, config.ErrNoKey), errors.Is(err, config.ErrNotReady), said && errors.Is(err, config.ErrDamaged):
		return nil
	case err != nil:
		return err
	}
	r.rollout = true
	if err := r.defaults(c.Flags(), data); err != nil {
		return fail(exitFailed, fmt.Errorf("%s in use: %w", t.name, err), "publish a better one with --rollout=false")
	}
	return nil
}

// defaults sets the flags that are not given to what data says, which is the content of
// a key .rollout.json: an object with the names of the flags, with or without
// underscores.
func (r *strategyFlags) defaults(f *pflag.FlagSet, data []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil {
		return fmt.Errorf("%s: %w", config.RolloutKey, err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		flag := strings.ReplaceAll(name, "_", "-")
		switch {
		case !strategyFlag(flag):
			return fmt.Errorf("%s: %q is not a flag of rollouts; \"zkagent config publish --help\" lists them", config.RolloutKey, name)
		case f.Changed(flag):
			continue
		case flag == "bake-check":
			if json.Unmarshal(values[name], &r.how.Strategy.BakeCheck) != nil {
				return fmt.Errorf("%s: %s is true or false: the check itself belongs into the settings of the agents, because nothing in ZooKeeper says what hosts run or ask", config.RolloutKey, name)
			}
			continue
		}
		text, err := textOf(values[name])
		if err == nil {
			err = f.Lookup(flag).Value.Set(text)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", config.RolloutKey, name, err)
		}
	}
	_, err := r.rolloutConfig()
	return err
}

// textOf returns a text or a number of JSON, as a flag takes it.
func textOf(value json.RawMessage) (string, error) {
	var text *string
	var number json.Number
	if json.Unmarshal(value, &text) == nil && text != nil {
		return *text, nil
	}
	if json.Unmarshal(value, &number) != nil || number == "" {
		return "", fmt.Errorf("%s is neither a text nor a number", value)
	}
	return number.String(), nil
}

func checkDefaults(keys map[string][]byte) error {
	data, ok := keys[config.RolloutKey]
	if !ok {
		return nil
	}
	var r strategyFlags
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	r.add(f)
	return fail(exitFailed, r.defaults(f, data))
}

// check rejects values that no rollout can have, and the flags of a strategy without
// --rollout. A user who sets them does not want all hosts to change at once.
func (r *strategyFlags) check(c *cobra.Command) error {
	_, err := r.rolloutConfig()
	if r.rollout {
		return err
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && (strategyFlag(f.Name) || f.Name == "detach") {
			err = usagef("--%s needs --rollout: without it all hosts change at once", f.Name)
		}
	})
	return err
}

// refusePipeline rejects early what sendPipeline would reject later.
func refusePipeline(ctx context.Context, s *session.Session, t target, p *pipeline) error {
	err := fleet.CheckPublish(ctx, s, t.path, p.roll.how.Replace)
	if p.publish.Emergency && errors.Is(err, fleet.ErrOpen) {
		return nil // sendPipeline asks for the config's name
	}
	return explainRollout(ctx, s, t, err)
}

// sendPipeline publishes in the way that the flags choose.
func sendPipeline(ctx context.Context, g *globals, s *session.Session, t target, cfg fleet.PublishConfig, p *pipeline) error {
	if err := checkDefaults(cfg.Keys); err != nil {
		return err
	}
	if p.roll.rollout {
		how, err := p.roll.rolloutConfig()
		if err != nil {
			return err
		}
		cfg.Author = userName()
		proposed, err := fleet.PublishByRollout(ctx, s, cfg, how)
		return afterProposal(ctx, g, s, t, &p.roll, proposed, err)
	}
	if cfg.Emergency && !g.yes {
		if err := g.mayAsk("publish on all hosts at once"); err != nil {
			return err
		}
		what := "all hosts change at once"
		if open, _ := fleet.Opened(ctx, s, t.path); open != nil {
			what += ", and rollout " + open.Name + " ends"
		}
		answer, err := g.ask(ctx, fmt.Sprintf("%s. Type %q to continue: ", what, t.name))
		if err == nil && answer != t.name {
			err = failf(exitFailed, "not confirmed, nothing was published")
		}
		if err != nil {
			return err
		}
	}
	r, err := fleet.Publish(ctx, s, cfg)
	return printPublished(ctx, &g.Console, s, t, "published", r, err)
}

// explainRollout adds hints to the errors of publishing with or past a rollout.
func explainRollout(ctx context.Context, s *session.Session, t target, err error) error {
	switch {
	case errors.Is(err, fleet.ErrOpen):
		hints := []string{"\"zkagent rollout status " + t.name + "\" shows it"}
		if state, _ := fleet.Opened(ctx, s, t.path); state != nil {
			switch phase := state.Phase(); {
			case phase == fleet.PhaseHalted:
				hints = append(hints, haltedHints(t, state)...)
				hints = append(hints, "\"zkagent config publish DIR "+t.name+" --rollout --replace\" takes its place")
			case phase == fleet.PhaseRefused:
				hints = append(hints, haltedHints(t, state)...)
			case state.Gate.State == fleet.GateOpen:
				hints = append(hints, "\"zkagent rollout undo "+t.name+"\" goes back, and ends it")
			default:
				hints = append(hints, "nothing has changed yet: \"zkagent rollout abort "+t.name+"\" ends it")
			}
		}
		return fail(exitTemporary, err, append(hints, "a publish with --emergency goes past it on all hosts at once")...)
	case errors.Is(err, fleet.ErrVoting):
		return fail(exitFailed, err, "\"zkagent rollout abort "+t.name+"\" ends it")
	case errors.Is(err, fleet.ErrNobody):
		return fail(exitFailed, err, "\"zkagent fleet "+t.name+"\" lists the hosts that can vote; \"zkagent maint off\" on a host lets it vote", "config publish and config rollback with --rollout=false change all hosts at once, without a vote")
	}
	return err
}

// afterProposal follows a rollout that was proposed, or says why none was.
func afterProposal(ctx context.Context, g *globals, s *session.Session, t target, roll *strategyFlags, p fleet.Proposed, err error) error {
	if err != nil || p.Unchanged {
		return printPublished(ctx, &g.Console, s, t, "", p.Result, err)
	}
	g.Say("%s: proposed v%d as %s to %s%s", t.name, p.Version, p.Rollout, term.Count(p.Hosts, "agent"), besides(p.Maintenance))
	if roll.detach {
		g.Say("it continues by itself: \"zkagent rollout watch %s\" attaches", t.name)
		return g.PrintResult("proposed", map[string]any{"rollout": p.Rollout, "version": p.Version}, "%s\n", p.Rollout)
	}
	return followRollout(ctx, g, s, t, p.Rollout)
}

// strategyFlags say how a version reaches the hosts.
type strategyFlags struct {
	rollout bool
	how     fleet.RolloutConfig // as the flags say, but for the canaries
	canary  string
	detach  bool
}

func (r *strategyFlags) add(f *pflag.FlagSet) {
	s := &r.how.Strategy
	f.StringVar(&r.how.Parallel, "parallel", "10%", "how many hosts change at a time: a number, or a share of the subscribers")
	f.StringVar(&r.canary, "canary", "", "hosts that go first: a number, or their ids separated by commas (default 1 with more than one host)")
	f.DurationVar((*time.Duration)(&s.Bake), "bake", fleet.DefaultBake, "how long to watch the canaries before the other hosts change")
	f.BoolVar(&s.BakeCheck, "bake-check", false, "halt at the bake if the settings of the coordinator have no bake_check")
	f.DurationVar((*time.Duration)(&s.Pause), "pause", 0, "how long to wait after each host, so that you can notice a fault (default: not at all)")
	f.IntVar(&s.MaxFailures, "max-failures", 1, "halt when this many hosts have failed; 1 halts at the first")
	f.DurationVar((*time.Duration)(&s.VoteTimeout), "vote-timeout", fleet.DefaultVoteTimeout, "how long to wait for the votes of all hosts")
	f.StringVar(&s.Absent, "absent", fleet.AbsentAbort, "effect of a missing vote: abort refuses the version, skip continues without the host")
	f.DurationVar((*time.Duration)(&s.Grace), "grace", fleet.DefaultGrace, "halt when a host that has started is disconnected for longer than this")
	f.StringVar(&s.Gate, "gate", "", "path of a group; the rollout pauses while the group has lost more than one member (default: no group)")
	f.BoolVar(&r.detach, "detach", false, "propose the version and exit; \"zkagent rollout watch NAME\" shows the progress, as this command does by default")
}

func (r *strategyFlags) rolloutConfig() (fleet.RolloutConfig, error) {
	how := r.how
	how.Strategy.Canary = fleet.CanaryDefault
	switch n, err := strconv.Atoi(r.canary); {
	case r.canary == "":
	case err == nil && n >= 0:
		how.Strategy.Canary = n
	case err == nil:
		return how, usagef("--canary must not be negative")
	default:
		how.Strategy.Order = strings.Split(r.canary, ",")
	}
	return how, fail(exitUsage, how.Check())
}

// strategyFlag reports whether the name is that of a flag of a strategy.
func strategyFlag(name string) bool {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&strategyFlags{}).add(set)
	return set.Lookup(name) != nil && name != "detach"
}

func describe(s fleet.Strategy, size int) string {
	words := []string{term.Count(size, "agent") + " vote"}
	if size == 1 {
		words[0] += "s"
	}
	switch {
	case len(s.Order) > 0:
		words = append(words, "canary "+strings.Join(s.Order, ", "))
	case s.Canary > 0 && s.Canary < size:
		words = append(words, fmt.Sprintf("canary %d", s.Canary))
	}
	if len(words) > 1 && s.Bake > 0 {
		words = append(words, "bake "+time.Duration(s.Bake).String())
	}
	if len(words) > 1 && s.BakeCheck {
		words = append(words, "bake check")
	}
	roll := fmt.Sprintf("%d at a time", s.Parallel)
	if s.Pause > 0 {
		roll += ", " + time.Duration(s.Pause).String() + " apart"
	}
	halt := "the first failure"
	if s.MaxFailures != 1 {
		halt = fmt.Sprintf("%d failures", s.MaxFailures)
	}
	return strings.Join(append(words, roll), " -> ") + "; halt at " + halt
}

// besides says how many hosts are left out.
func besides(maintenance int) string {
	if maintenance == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more in maintenance)", maintenance)
}
