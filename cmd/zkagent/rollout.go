package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

func newRolloutCommand(g *globals) *cobra.Command {
	return parent("rollout", "Watch, pause, resume and roll back rollouts",
		rolloutCommand(g, "status NAME|PATH", "Show the open rollout, or the latest one", func(ctx context.Context, s *session.Session, t target, name string) error {
			state, err := fleet.Read(ctx, s, t.path, name)
			if err != nil {
				return err
			}
			return printRollout(g, t, state)
		}),
		rolloutCommand(g, "watch NAME|PATH", "Follow the open rollout to its end", func(ctx context.Context, s *session.Session, t target, name string) error {
			return followRollout(ctx, g, s, t, name)
		}),
		newRolloutControlCommand(g, "pause", "Pause a rollout: no further host starts", fleet.Pause),
		newRolloutControlCommand(g, "resume", "Continue a paused rollout", fleet.Resume),
		newRolloutControlCommand(g, "abort", "Stop a rollout: before the decision no host has changed, after it the rollout halts", fleet.Abort),
		&cobra.Command{
			Use: "retry NAME|PATH", Short: "Resume a halted rollout: failed hosts try again", Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				return withRollout(c.Context(), g, args[0], "", func(ctx context.Context, s *session.Session, t target, name string) error {
					if err := fleet.Retry(ctx, s, t.path, name, fleet.Order{By: userName()}); err != nil {
						return err
					}
					return followRollout(ctx, g, s, t, name)
				})
			},
		},
		newRolloutUndoCommand(g), oldName(newRolloutUndoCommand(g), "rollback"), newRolloutListCommand(g),
	)
}

// withRollout runs fn with the named rollout, else with the open one, else with the latest.
func withRollout(ctx context.Context, g *globals, config, name string, fn func(context.Context, *session.Session, target, string) error) error {
	return withConfig(ctx, g, config, func(ctx context.Context, s *session.Session, t target) error {
		if name == "" {
			var err error
			name, err = fleet.Current(ctx, s, t.path)
			if errors.Is(err, fleet.ErrNoRollout) {
				var names []string
				if names, err = fleet.Names(ctx, s, t.path); err == nil && len(names) == 0 {
					return fail(exitFailed, fmt.Errorf("%s has no rollout", t.name), "\"zkagent config publish DIR "+t.name+" --rollout\" opens one")
				}
				if len(names) > 0 {
					name = names[len(names)-1]
				}
			}
			if err != nil {
				return err
			}
		}
		return fn(ctx, s, t, name)
	})
}

func rolloutCommand(g *globals, use, short string, fn func(context.Context, *session.Session, target, string) error) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return withRollout(c.Context(), g, args[0], name, fn) },
	}
	c.Flags().StringVar(&name, "rollout", "", "name of the rollout, as in r-0000000007 (default: the open one, else the latest)")
	return c
}

func printRollout(g *globals, t target, state *fleet.State) error {
	if g.IsJSON() {
		return g.PrintJSON("rollout", rolloutJSON(state))
	}
	p := state.Proposal
	g.Printf("%s: %s v%d -> v%d, %s\n", t.name, state.Name, p.Previous, p.Version, state.Phase())
	g.Printf("proposed %s by %s: %s\n", state.Created.Format(time.RFC3339), term.Printable(cmp.Or(p.Who, "somebody")), term.Printable(cmp.Or(p.Why, "no reason given")))
	g.Printf("strategy: %d at a time, canary %d, bake %s, halt at %s\n", p.Strategy.Parallel, p.Strategy.Canary, time.Duration(p.Strategy.Bake), term.Count(p.Strategy.MaxFailures, "failure"))
	if err := state.Err(); err != nil {
		for line := range strings.Lines(err.Error()) {
			g.Printf("%s\n", term.Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	if wait := state.Waiting(time.Now()); wait.For != "" {
		g.Printf("%s\n", term.Printable(wait.Text))
	}
	if state.Open() && state.Coordinator == "" {
		g.Warnf("no agent coordinates the rollout yet: agents look now and then, and one begins")
	}
	if decided(state) {
		c := state.Counts()
		words := []string{fmt.Sprintf("%d of %d done", c.Done, len(state.All())-c.Skipped)}
		for i, n := range []int{c.Started, c.Failed, c.Skipped} {
			if n > 0 {
				words = append(words, fmt.Sprintf("%d %s", n, []string{fleet.HostStarted, fleet.HostFailed, fleet.HostSkipped}[i]))
			}
		}
		g.Printf("hosts: %s\n", strings.Join(words, ", "))
	}
	_ = term.PrintRows(&g.Console, "", state.All(), []string{"HOST", "VOTE", "STATE", "REASON"}, func(id string) []string {
		return []string{id, cmp.Or(state.Hosts[id].VoteText(), "-"), cmp.Or(state.Turn(id), "-"), state.Hosts[id].Error}
	})
	if state.Phase() == fleet.PhaseHalted || state.Phase() == fleet.PhaseRefused {
		for _, h := range haltedHints(t, state) {
			g.hint(h)
		}
	}
	return nil
}

// decided reports whether the version was accepted.
func decided(state *fleet.State) bool {
	return state.Gate.State == fleet.GateOpen || state.Gate.State == fleet.GateHalted || state.Gate.Result == fleet.ResultDone
}

func proposalJSON(p fleet.Proposal) any {
	return struct {
		fleet.Proposal

		Strategy any `json:"strategy"`
	}{p, strategyJSON(p.Strategy)}
}

// strategyJSON is a strategy with its durations in seconds. The fields without a
// value hide those of the strategy.
func strategyJSON(s fleet.Strategy) any {
	return struct {
		fleet.Strategy

		Bake        float64 `json:"bake_seconds"`
		Pause       float64 `json:"pause_seconds"`
		VoteTimeout float64 `json:"vote_timeout_seconds"`
		Grace       float64 `json:"grace_seconds"`
		HideBake    *int    `json:"bake,omitempty"`
		HidePause   *int    `json:"pause,omitempty"`
		HideVotes   *int    `json:"vote_timeout,omitempty"`
		HideGrace   *int    `json:"grace,omitempty"`
	}{
		Strategy: s, Bake: time.Duration(s.Bake).Seconds(), Pause: time.Duration(s.Pause).Seconds(),
		VoteTimeout: time.Duration(s.VoteTimeout).Seconds(), Grace: time.Duration(s.Grace).Seconds(),
	}
}

func rolloutJSON(state *fleet.State) map[string]any {
	var waiting map[string]any // nil: it does not wait
	if wait := state.Waiting(time.Now()); wait.For != "" {
		waiting = map[string]any{"for": wait.For, "text": wait.Text}
		if wait.Left > 0 {
			waiting["left_seconds"] = wait.Left.Seconds()
		}
	}
	return map[string]any{
		"name": state.Name, "phase": state.Phase(), "created": state.Created, "proposal": proposalJSON(state.Proposal), "gate": state.Gate,
		"coordinator": state.Coordinator, "called": state.Called, "hosts": state.Hosts, "counts": countsOf(state),
		"waiting": waiting,
	}
}

func newRolloutControlCommand(g *globals, use, short string, do func(context.Context, *session.Session, string, string, fleet.Order) error) *cobra.Command {
	var o fleet.Order
	c := &cobra.Command{
		Use: use + " NAME|PATH", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withRollout(c.Context(), g, args[0], "", func(ctx context.Context, s *session.Session, t target, name string) error {
				o.By = userName()
				err := do(ctx, s, t.path, name, o)
				if errors.Is(err, fleet.ErrHalted) {
					return fail(exitFailed, err, haltedHints(t, nil)...)
				}
				if err != nil {
					return err
				}
				state, err := fleet.Head(ctx, s, t.path, name)
				if err != nil {
					return err
				}
				switch phase := state.Phase(); phase {
				case fleet.PhaseHalted, fleet.PhaseRefused:
					g.Say("%s: %s has halted: hosts that have not started keep the version before", t.name, name)
					for _, h := range haltedHints(t, state) {
						g.hint(h)
					}
				default:
					g.Say("%s: %s is %s", t.name, name, phase)
				}
				return nil
			})
		},
	}
	c.Flags().StringVarP(&o.Reason, "reason", "m", "", "why; rollout status and audit show it (default: no reason)")
	if use == "resume" {
		c.Flags().BoolVar(&o.IgnoreGate, "ignore-gate", false, "continue although the group of --gate has lost members")
	}
	return c
}

func newRolloutListCommand(g *globals) *cobra.Command {
	return configCommand(g, "list NAME|PATH", "List the rollouts of a config, latest first", func(ctx context.Context, s *session.Session, t target, _ []string) error {
		if err := mustExist(ctx, s, t.path); err != nil {
			return err
		}
		rollouts, err := fleet.Rollouts(ctx, s, t.path)
		if err != nil {
			return err
		}
		slices.Reverse(rollouts)
		if g.IsJSON() {
			return term.PrintList(&g.Console, "rollouts", lists.Map(rollouts, rolloutJSON))
		}
		return term.PrintRows(&g.Console, "", rollouts, []string{"ROLLOUT", "VERSION", "PHASE", "CREATED", "BY", "WHY"}, func(r *fleet.State) []string {
			p := r.Proposal
			return []string{r.Name, fmt.Sprintf("v%d", p.Version), r.Phase(), r.Created.Format(time.RFC3339), p.Who, p.Why}
		})
	})
}

func newRolloutUndoCommand(g *globals) *cobra.Command {
	var p publishFlags
	flags := strategyFlags{}
	var to versionFlag
	c := &cobra.Command{
		Use: "undo NAME|PATH", Short: "Bring back the content of the version before, on every host", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := flags.rolloutConfig(); err != nil {
				return err
			}
			return p.run(g, c, args[0], func(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig) error {
				return rollBack(ctx, g, s, t, cfg, int64(to), &flags)
			})
		},
	}
	p.add(c)
	flags.add(c.Flags())
	c.Flags().Var(&to, "to", "the version to bring back (default: the one before the open rollout, or before the one in use)")
	for name, value := range map[string]string{"parallel": "100%", "canary": "0", "bake": "0s"} {
		f := c.Flags().Lookup(name)
		f.DefValue = value
		must(f.Value.Set(value)) // the values are ours
	}
	return c
}

// oldName gives a command a name that it had before, and prints the present one.
func oldName(c *cobra.Command, name string) *cobra.Command {
	today, arguments, _ := strings.Cut(c.Use, " ")
	c.Use, c.Hidden = name+" "+arguments, true
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		c.PrintErrf("the name of %q is %q\n", c.CommandPath(), c.Parent().CommandPath()+" "+today)
		return run(c, args)
	}
	return c
}

func rollBack(ctx context.Context, g *globals, s *session.Session, t target, cfg fleet.PublishConfig, to int64, flags *strategyFlags) error {
	how, err := flags.rolloutConfig()
	if err != nil {
		return err
	}
	cfg.Author = userName()
	p, err := fleet.RollbackByRollout(ctx, s, cfg, to, how)
	return afterProposal(ctx, g, s, t, flags, p, err)
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// versionRollout is the latest rollout that a version was proposed by.
type versionRollout struct {
	Name  string `json:"name"`
	Phase string `json:"phase"`

	open bool
}

func rolloutsOf(ctx context.Context, s *session.Session, t target) (map[int64]*versionRollout, error) {
	list, err := fleet.Rollouts(ctx, s, t.path)
	rollouts := map[int64]*versionRollout{}
	for _, r := range list {
		rollouts[r.Proposal.Version] = &versionRollout{r.Name, r.Phase(), r.Open() && !r.Proposal.Dry}
	}
	if errors.Is(err, fleet.ErrBadRecord) {
		err = nil // it must not break the history
	}
	return rollouts, err
}

func sayBrings(console *term.Console, before string, open *fleet.State) {
	if open != nil && !open.Proposal.Dry {
		console.Say("%sv%d is in use, %s brings v%d (%s)", before, open.Proposal.Previous, open.Name, open.Proposal.Version, open.Phase())
	}
}

func dryRun(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig, timeout time.Duration) (*fleet.Answers, error) {
	cfg.Author = userName()
	answers, err := fleet.DryRun(ctx, s, cfg, timeout)
	if errors.Is(err, fleet.ErrEnded) {
		return nil, fail(exitTemporary, err, "ask again when the rollout or dry run that replaced it is over")
	}
	return answers, explainRollout(ctx, s, t, err)
}

func printFleetPlan(console *term.Console, p *fleet.Answers) {
	changing := map[string]bool{}
	for _, c := range p.Changes {
		for _, id := range c.Hosts {
			changing[id] = true
		}
	}
	unchecked := ""
	if n := len(p.Unchecked); n > 0 {
		unchecked = fmt.Sprintf(", %d did not run their checks", n)
	}
	console.Printf("Asked %s: %d would change, %d would not, %d refuse, %d do not answer%s%s\n",
		term.Count(p.Hosts, "host"), len(changing), len(p.Unchanged), len(p.Refused), len(p.Silent), unchecked, besides(len(p.Skipped)))
	_ = term.PrintRows(console, "", p.Changes, []string{"FILE", "LINES", "HOSTS", "RELOAD", "WHERE"}, func(c fleet.AnsweredChange) []string {
		lines := fmt.Sprintf("+%d -%d", c.Added, c.Removed)
		if c.Digest == fleet.DigestGone {
			lines = "removed"
		}
		return []string{c.Path, lines, strconv.Itoa(len(c.Hosts)), cmp.Or(c.Reload, "-"), someHosts(c.Hosts)}
	})
	for _, w := range p.Refused {
		console.Printf("%s refuses: %s\n", w.Host, term.Printable(w.Reason))
	}
	for _, w := range p.Skipped {
		console.Printf("%s is in maintenance: %s\n", w.Host, term.Printable(w.Reason))
	}
	if len(p.Silent) > 0 {
		console.Printf("no answer: %s\n", someHosts(p.Silent))
	}
	for _, c := range p.Changes {
		if c.Diff == "" {
			continue
		}
		console.Printf("%s on %s:\n", c.Path, someHosts(c.Hosts))
		_ = console.PrintDiff(c.Diff + "\n")
	}
}

func someHosts(ids []string) string { return term.First(ids, 5) }
