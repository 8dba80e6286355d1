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
	f.BoolVar(&p.roll.rollout, "rollout", false, "let every subscriber vote, then change a few hosts at a time; by default all hosts change at once")
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
		case name == "bake_check":
			return fmt.Errorf("%s: bake_check belongs into the settings of the agents: what hosts run does not come from ZooKeeper", config.RolloutKey)
		case !strategyFlag(flag):
			return fmt.Errorf("%s: %q is no flag of rollouts", config.RolloutKey, name)
		case f.Changed(flag):
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

// checkDefaults rejects a tree whose key .rollout.json is not valid.
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
		return fail(exitFailed, err, "\"zkagent fleet "+t.name+"\" lists the subscribers, \"zkagent maint off\" on a host lets it vote", "publish it with --rollout=false")
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

// describe says what a strategy does to so many hosts.
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
