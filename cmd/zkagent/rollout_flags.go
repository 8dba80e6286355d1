package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/term"
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
	f.StringVar(&r.parallel, "parallel", "10%", "how many hosts change at a time: a number, or a share of the subscribers")
	f.StringVar(&r.canary, "canary", "", "hosts that go first: a number, or their ids separated by commas (default 1 with more than one host)")
	f.DurationVar(&r.bake, "bake", fleet.DefaultBake, "how long to watch the canaries before the other hosts change")
	f.DurationVar(&r.pause, "pause", 0, "how long a host blocks the next one after it has changed; more gives time to notice a fault")
	f.IntVar(&r.maxFailures, "max-failures", 1, "halt when this many hosts have failed; 1 halts at the first")
	f.DurationVar(&r.voteTimeout, "vote-timeout", fleet.DefaultVoteTimeout, "how long to wait for the votes of all hosts")
	f.StringVar(&r.absent, "absent", fleet.AbsentAbort, "what a missing vote does: abort refuses the version, skip continues without the host")
	f.DurationVar(&r.grace, "grace", fleet.DefaultGrace, "how long a host that has started may be disconnected before the rollout halts")
	f.StringVar(&r.gate, "gate", "", "path of a group; the rollout pauses while the group has lost more than one member")
	f.BoolVar(&r.detach, "detach", false, "propose the version and exit; \"zkagent rollout watch NAME\" shows the progress")
}

// rolloutConfig returns what the flags say.
func (r *strategyFlags) rolloutConfig() (fleet.RolloutConfig, error) {
	s := fleet.Strategy{
		Bake: fleet.Duration(r.bake), Pause: fleet.Duration(r.pause), MaxFailures: r.maxFailures, Canary: fleet.CanaryDefault,
		VoteTimeout: fleet.Duration(r.voteTimeout), Absent: r.absent, Grace: fleet.Duration(r.grace), Gate: r.gate,
	}
	if r.absent != fleet.AbsentAbort && r.absent != fleet.AbsentSkip {
		return fleet.RolloutConfig{}, usagef("--absent %q is not one of abort, skip", r.absent)
	}
	if _, err := pace.ParseShare(r.parallel); err != nil {
		return fleet.RolloutConfig{}, usagef("--parallel %w", err)
	}
	switch n, err := strconv.Atoi(r.canary); {
	case r.canary == "":
	case err == nil && n >= 0:
		s.Canary = n
	case err == nil:
		return fleet.RolloutConfig{}, usagef("--canary must not be negative")
	default:
		s.Order = strings.Split(r.canary, ",")
	}
	return fleet.RolloutConfig{Strategy: s, Parallel: r.parallel}, nil
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

// besides says how many hosts are left out.
func besides(maintenance int) string {
	if maintenance == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more in maintenance)", maintenance)
}

// printDetached prints the name of the proposed rollout, which continues by itself.
func printDetached(console *term.Console, t target, name string, r fleet.Result) error {
	console.Say("it goes on by itself: \"zkagent rollout watch %s\" attaches", t.name)
	if console.IsJSON() {
		return console.PrintJSON("proposed", map[string]any{"rollout": name, "version": r.Version})
	}
	_, err := fmt.Fprintln(console.Out, name)
	return err
}
