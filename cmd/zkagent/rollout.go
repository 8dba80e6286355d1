package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

func newRolloutCommand(g *globals) *cobra.Command {
	return parent("rollout", "Bring a version to a fleet: look, pause, go on, go back",
		newRolloutStatusCommand(g), newRolloutWatchCommand(g),
		newRolloutControlCommand(g, "pause", "Let no further host start", fleet.ActionPause),
		newRolloutControlCommand(g, "resume", "Go on after a pause", fleet.ActionRun),
		newRolloutControlCommand(g, "abort", "Stop: before the decision nothing changes, after it the rollout halts", fleet.ActionAbort),
		newRolloutRetryCommand(g), newRolloutRollbackCommand(g), newRolloutListCommand(g),
	)
}

// withRollout runs fn with the open rollout of the config, or the newest one,
// or the one that --rollout names.
func (g *globals) withRollout(ctx context.Context, config, name string, fn func(context.Context, *session.Session, target, string) error) error {
	return g.withConfig(ctx, config, func(ctx context.Context, s *session.Session, t target) error {
		if name == "" {
			var err error
			name, err = fleet.Current(ctx, s, t.path)
			if errors.Is(err, fleet.ErrNoRollout) {
				var names []string
				if names, err = fleet.Names(ctx, s, t.path); err == nil && len(names) == 0 {
					return fail(exitFailed, fmt.Errorf("%s: %w", t.name, fleet.ErrNoRollout), "\"zkagent config publish --rollout\" opens one")
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

func newRolloutStatusCommand(g *globals) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "status NAME|PATH", Short: "Show the open rollout, or the newest one", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withRollout(c.Context(), args[0], name, func(ctx context.Context, s *session.Session, t target, name string) error {
				state, err := fleet.Read(ctx, s, t.path, name)
				if err != nil {
					return err
				}
				return g.printRollout(t, state)
			})
		},
	}
	c.Flags().StringVar(&name, "rollout", "", "name of the rollout, as in r-0000000007")
	return c
}

// printRollout shows one rollout in full.
func (g *globals) printRollout(t target, state *fleet.State) error {
	if g.IsJSON() {
		return g.PrintJSON("rollout", rolloutJSON(state))
	}
	p := state.Proposal
	_, _ = fmt.Fprintf(g.Out, "%s: %s v%d -> v%d, %s\n", t.name, state.Name, p.Previous, p.Version, state.Phase())
	_, _ = fmt.Fprintf(g.Out, "proposed %s by %s: %s\n", state.Created.Format(time.RFC3339), term.Printable(orWord(p.Who, "somebody")), term.Printable(orWord(p.Why, "no reason given")))
	_, _ = fmt.Fprintf(g.Out, "strategy: %d at a time, canary %d, bake %s, halt at %s\n", p.Strategy.Parallel, p.Strategy.Canary, time.Duration(p.Strategy.Bake), term.Count(p.Strategy.MaxFailures, "failure"))
	if err := state.Err(); err != nil {
		_, _ = fmt.Fprintf(g.Out, "%s\n", printableLines(err.Error()))
	}
	if state.Control.Action == fleet.ActionPause {
		_, _ = fmt.Fprintf(g.Out, "paused: %s\n", term.Printable(orWord(state.Control.Reason, state.Control.By)))
	}
	if state.Decision != nil && state.Decision.Commit {
		g.Printf("hosts: %s\n", hostsWords(state))
	}
	rows := &term.Table{Header: []string{"HOST", "VOTE", "STATE", "REASON"}}
	for _, id := range rolloutHosts(state) {
		vote, reason := "-", ""
		if v, ok := state.Votes[id]; ok {
			vote, reason = voteWord(v), v.Reason
		}
		if slices.Contains(state.Proposal.Skipped, id) {
			vote, reason = fleet.HostSkipped, "maintenance"
		}
		host := state.Hosts[id]
		rows.Add(id, vote, orWord(host.State, "-"), orWord(host.Error, reason))
	}
	if err := g.PrintTable(rows); err != nil {
		return err
	}
	if state.Phase() == fleet.PhaseHalted {
		for _, h := range haltedHints(t) {
			g.Say("hint: %s", h)
		}
	}
	return nil
}

// hostsWords counts the hosts by how far they are.
func hostsWords(state *fleet.State) string {
	counts := hostCounts(state)
	words := []string{fmt.Sprintf("%d of %d done", counts[fleet.HostDone], len(rolloutHosts(state))-counts[fleet.HostSkipped])}
	for _, name := range []string{fleet.HostStarted, fleet.HostFailed, fleet.HostSkipped} {
		if n := counts[name]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, name))
		}
	}
	return strings.Join(words, ", ")
}

// voteWord is a vote in one word.
func voteWord(v fleet.Vote) string {
	switch {
	case v.Skip:
		return fleet.HostSkipped
	case v.Commit:
		return "commit"
	}
	return "abort"
}

// rolloutHosts are all hosts that have to do with the rollout, sorted.
func rolloutHosts(state *fleet.State) []string {
	ids := slices.Concat(state.Proposal.Participants, state.Proposal.Skipped)
	for id := range state.Hosts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// rolloutJSON is the rollout for machines.
func rolloutJSON(state *fleet.State) map[string]any {
	return map[string]any{
		"name": state.Name, "phase": state.Phase(), "created": state.Created, "proposal": state.Proposal, "votes": state.Votes,
		"decision": state.Decision, "control": state.Control, "active": state.Activity.Active, "hosts": state.Hosts,
		"halt": state.Halt, "done": state.Done,
	}
}

func newRolloutWatchCommand(g *globals) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "watch NAME|PATH", Short: "Follow the open rollout to its end", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withRollout(c.Context(), args[0], name, func(ctx context.Context, s *session.Session, t target, name string) error {
				return g.followRollout(ctx, s, t, name)
			})
		},
	}
	c.Flags().StringVar(&name, "rollout", "", "name of the rollout, as in r-0000000007")
	return c
}

func newRolloutControlCommand(g *globals, use, short, action string) *cobra.Command {
	var reason string
	var ignoreGate bool
	c := &cobra.Command{
		Use: use + " NAME|PATH", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withRollout(c.Context(), args[0], "", func(ctx context.Context, s *session.Session, t target, name string) error {
				err := fleet.SetControl(ctx, s, t.path, name, fleet.Control{Action: action, Reason: reason, By: userName(), IgnoreGate: ignoreGate})
				if errors.Is(err, fleet.ErrHalted) {
					return fail(exitFailed, err, haltedHints(t)...)
				}
				if err != nil {
					return err
				}
				return g.toldControl(ctx, s, t, name, use)
			})
		},
	}
	c.Flags().StringVarP(&reason, "reason", "m", "", "why; everybody sees it")
	if action == fleet.ActionRun {
		c.Flags().BoolVar(&ignoreGate, "ignore-gate", false, "go on although the health gate says no")
	}
	return c
}

// toldControl tells what became of what was asked for.
func (g *globals) toldControl(ctx context.Context, s *session.Session, t target, name, use string) error {
	state, err := fleet.Read(ctx, s, t.path, name)
	if err != nil {
		return err
	}
	if state.Phase() != fleet.PhaseHalted {
		g.Say("%s: %s of %s is asked for", t.name, use, name)
		return nil
	}
	g.Say("%s: %s has halted: hosts that have not started keep the version before", t.name, name)
	for _, h := range haltedHints(t) {
		g.Say("hint: %s", h)
	}
	return nil
}

func newRolloutRetryCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "retry NAME|PATH", Short: "Take the halt away and let failed hosts try again", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withRollout(c.Context(), args[0], "", func(ctx context.Context, s *session.Session, t target, name string) error {
				if err := fleet.Retry(ctx, s, t.path, name); err != nil {
					return err
				}
				return g.followRollout(ctx, s, t, name)
			})
		},
	}
}

func newRolloutListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list NAME|PATH", Short: "List the rollouts of a config", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				names, err := fleet.Names(ctx, s, t.path)
				if err != nil {
					return err
				}
				rows := &term.Table{Header: []string{"ROLLOUT", "VERSION", "PHASE", "CREATED", "BY", "WHY"}}
				var list []map[string]any
				for _, name := range names {
					state, err := fleet.Read(ctx, s, t.path, name)
					if err != nil {
						return err
					}
					list = append(list, rolloutJSON(state))
					p := state.Proposal
					rows.Add(name, fmt.Sprintf("v%d", p.Version), state.Phase(), state.Created.Format(time.RFC3339), p.Who, p.Why)
				}
				if g.IsJSON() {
					return term.PrintList(&g.Console, "rollouts", list)
				}
				return g.PrintTable(rows)
			})
		},
	}
}

// newRolloutRollbackCommand brings the content back that was in use before:
// as a new version through the same pipeline, at full width unless told
// otherwise.
func newRolloutRollbackCommand(g *globals) *cobra.Command {
	var p publishFlags
	flags := strategyFlags{}
	var to versionFlag
	c := &cobra.Command{
		Use: "rollback NAME|PATH", Short: "Bring back the content of the version before, on every host", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withConfig(c.Context(), args[0], func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				return g.rollBack(ctx, s, t, cfg, int64(to), &flags)
			})
		},
	}
	p.add(c)
	flags.add(c.Flags())
	c.Flags().Var(&to, "to", "the version to bring back (default: the one before the open rollout, or before the one in use)")
	for name, value := range map[string]string{"parallel": "100%", "canary": "0", "bake": "0s"} {
		f := c.Flags().Lookup(name)
		f.DefValue = value
		if err := f.Value.Set(value); err != nil {
			panic(err) // the values are ours
		}
	}
	return c
}

func (g *globals) rollBack(ctx context.Context, s *session.Session, t target, cfg config.PublishConfig, to int64, flags *strategyFlags) error {
	frozen, err := config.Frozen(ctx, s, t.path)
	if err != nil {
		return err
	}
	if frozen != nil { // before anything is halted
		return frozen
	}
	replace, before := "", int64(0)
	name, err := fleet.Current(ctx, s, t.path)
	switch {
	case err == nil:
		state, err := fleet.Read(ctx, s, t.path, name)
		if err != nil {
			return err
		}
		if state.Decision == nil {
			return failf(exitFailed, "%s is still being voted on: nothing has changed yet, \"zkagent rollout abort %s\" ends it", name, t.name)
		}
		if state.Halt == nil { // a rollback stops what goes forward first
			if err := fleet.SetControl(ctx, s, t.path, name, fleet.Control{Action: fleet.ActionAbort, Reason: "rolled back", By: userName()}); err != nil {
				return err
			}
		}
		replace, before = name, state.Proposal.Previous
	case !errors.Is(err, fleet.ErrNoRollout):
		return err
	}
	if to == 0 {
		to = before
	}
	ready, _, err := config.ReadReady(ctx, s, t.path)
	if err != nil {
		return err
	}
	request := fleet.Request{Who: userName(), Why: orWord(cfg.Message, "rollback"), RollbackOf: ready.Version, Replace: replace}
	return g.rollOut(ctx, s, t, flags, request, func() (config.Result, error) { return config.PrepareRollback(ctx, s, cfg, to) })
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// printableLines is printable for texts of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = term.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
