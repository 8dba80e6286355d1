package main

import (
	"context"
	"errors"
	"fmt"
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

// strategyFlags say how a version reaches the hosts.
type strategyFlags struct {
	rollout     bool
	parallel    string
	canary      string
	bake        time.Duration
	pause       time.Duration
	maxFailures int
	voteTimeout time.Duration
	absent      string
	grace       time.Duration
	gate        string
	detach      bool
	changed     []string // flags that were given, as words
}

func (r *strategyFlags) add(f *pflag.FlagSet) {
	f.StringVar(&r.parallel, "parallel", "10%", "how many hosts may change at a time: a number or a share of the subscribers")
	f.StringVar(&r.canary, "canary", "", "hosts that go first: a number, or their ids separated by commas (default 1 with more than one host)")
	f.DurationVar(&r.bake, "bake", fleet.DefaultBake, "wait after the canaries are done")
	f.DurationVar(&r.pause, "pause", 0, "how long a host keeps its permit after it is done")
	f.IntVar(&r.maxFailures, "max-failures", 1, "halt at this many failed hosts")
	f.DurationVar(&r.voteTimeout, "vote-timeout", fleet.DefaultVoteTimeout, "how long votes are waited for")
	f.StringVar(&r.absent, "absent", fleet.AbsentAbort, "what a missing vote means: abort or skip")
	f.DurationVar(&r.grace, "grace", fleet.DefaultGrace, "how long a host that has started may be away")
	f.StringVar(&r.gate, "gate", "", "path of a group that must keep its members, else the rollout pauses")
	f.BoolVar(&r.detach, "detach", false, "propose and do not wait; \"zkagent rollout watch NAME\" attaches again")
}

// strategy resolves the flags for a fleet of the given size.
func (r *strategyFlags) strategy(size int) (fleet.Strategy, error) {
	s := fleet.Strategy{
		Bake: fleet.Duration(r.bake), Pause: fleet.Duration(r.pause), MaxFailures: r.maxFailures,
		VoteTimeout: fleet.Duration(r.voteTimeout), Absent: r.absent, Grace: fleet.Duration(r.grace), Gate: r.gate,
	}
	if r.absent != fleet.AbsentAbort && r.absent != fleet.AbsentSkip {
		return s, usagef("--absent %q is not one of abort, skip", r.absent)
	}
	var err error
	if s.Parallel, err = share(r.parallel, size); err != nil {
		return s, usagef("--parallel %q is not a number above 0 or a share such as 10%%", r.parallel)
	}
	switch n, err := strconv.Atoi(r.canary); {
	case r.canary == "" && size > 1:
		s.Canary = 1
	case r.canary == "":
	case err == nil && n >= 0:
		s.Canary = n
	case err == nil:
		return s, usagef("--canary must not be negative")
	default:
		s.Order = strings.Split(r.canary, ",")
		s.Canary = len(s.Order)
	}
	return s, nil
}

// rolloutPlan are the flags of a plan: any of a strategy means a rollout.
func rolloutPlan(c *cobra.Command, roll *strategyFlags) *strategyFlags {
	roll.changed = nil
	c.Flags().Visit(func(f *pflag.Flag) {
		if strategyFlag(f.Name) {
			roll.rollout = true
			roll.changed = append(roll.changed, "--"+f.Name, term.ShellWord(f.Value.String()))
		}
	})
	return roll
}

// strategyFlag reports whether the name is that of a flag of a strategy.
func strategyFlag(name string) bool {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&strategyFlags{}).add(set)
	return set.Lookup(name) != nil && name != "detach"
}

// repeat are the flags that a guarded publish takes over from its plan.
func (r *strategyFlags) repeat() []string {
	if !r.rollout {
		return nil
	}
	return append([]string{"--rollout"}, r.changed...)
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
	words = append(words, roll)
	return strings.Join(words, " -> ") + "; halt at " + ordinal(s.MaxFailures)
}

func ordinal(failures int) string {
	if failures == 1 {
		return "the first failure"
	}
	return fmt.Sprintf("%d failures", failures)
}

// share is a number, or a part of size, at least 1.
func share(text string, size int) (int, error) {
	part, isShare := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(part)
	switch {
	case err != nil || n <= 0 || isShare && n > 100:
		return 0, fmt.Errorf("%q is no share", text)
	case isShare:
		return max(1, size*n/100), nil
	}
	return n, nil
}

// able returns the subscribers that are not in maintenance.
func able(subscribers []config.Subscription) []config.Subscription {
	return slices.DeleteFunc(slices.Clone(subscribers), func(s config.Subscription) bool { return s.State == config.StateMaintenance })
}

// besides says how many hosts are left out.
func besides(maintenance int) string {
	if maintenance == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more in maintenance)", maintenance)
}

// rollOut proposes the version that prepare writes, and follows the rollout.
// Without voters it writes nothing.
func rollOut(ctx context.Context, g *globals, s *session.Session, t target, flags *strategyFlags, request fleet.Request, prepare func() (config.Result, error)) error {
	subscribers, err := config.Subscribers(ctx, s, t.path)
	if err != nil {
		return err
	}
	size := len(able(subscribers))
	strategy, err := flags.strategy(size)
	switch {
	case err != nil:
		return err
	case len(subscribers) == 0:
		return fail(exitFailed, fmt.Errorf("no agent subscribes to %s: a rollout needs agents that vote", t.path), "publish it without --rollout")
	}
	if err := fleet.CheckVoters(subscribers); err != nil {
		return nobodyError(err)
	}
	r, err := prepare()
	if err != nil {
		return err
	}
	request.Root, request.Version, request.Digest, request.Delta, request.Strategy = t.path, r.Version, r.Digest, r.Delta, strategy
	request.Base = r.Previous // what the version was made from
	name, err := fleet.Propose(ctx, s, request)
	switch {
	case errors.Is(err, fleet.ErrOpen):
		return openError(ctx, s, err, t)
	case errors.Is(err, fleet.ErrNobody):
		return nobodyError(err)
	case err != nil:
		return err
	}
	g.Say("%s: proposed v%d as %s to %s%s", t.name, r.Version, name, term.Count(size, "agent"), besides(len(subscribers)-size))
	if flags.detach {
		return printDetached(&g.Console, t, name, r)
	}
	return followRollout(ctx, g, s, t, name)
}

// printDetached prints the name of the proposed rollout, which continues by itself.
func printDetached(console *term.Console, t target, name string, r config.Result) error {
	console.Say("it goes on by itself: \"zkagent rollout watch %s\" attaches", t.name)
	if console.IsJSON() {
		return console.PrintJSON("proposed", map[string]any{"rollout": name, "version": r.Version})
	}
	_, err := fmt.Fprintln(console.Out, name)
	return err
}

func nobodyError(err error) error {
	return fail(exitFailed, err, "\"zkagent maint off\" on a host lets it vote")
}
