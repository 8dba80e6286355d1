package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// refuseOpenRollout rejects a publish that would bypass an open rollout. An emergency may
// bypass it after the user types the config's name, because a yes is typed too
// easily.
//
// A rollout may open after this check. That is safe: a rollout gives way to any
// version that is published past it.
func refuseOpenRollout(ctx context.Context, g *globals, s *session.Session, t target, emergency bool) error {
	name, err := fleet.Current(ctx, s, t.path)
	if err != nil && !errors.Is(err, fleet.ErrNoRollout) {
		return err
	}
	open := err == nil
	switch {
	case emergency:
		return confirmName(ctx, g, t, name)
	case open:
		return openError(ctx, s, fmt.Errorf("%s: %w: %s", t.name, fleet.ErrOpen, name), t)
	}
	return nil
}

// openError adds hints about the open rollout: what can be done in its phase.
func openError(ctx context.Context, s *session.Session, err error, t target) error {
	hints := []string{"\"zkagent rollout status " + t.name + "\" shows it"}
	name, missing := fleet.Current(ctx, s, t.path)
	if missing != nil {
		return fail(exitTemporary, err, hints...)
	}
	if state, unknown := fleet.Head(ctx, s, t.path, name); unknown == nil {
		switch phase := state.Phase(); {
		case phase == fleet.PhaseHalted:
			hints = append(hints, haltedHints(t, state)...)
			hints = append(hints, "\"zkagent config publish DIR "+t.name+" --rollout --replace\" takes its place")
		case phase == fleet.PhaseRefused:
			hints = append(hints, haltedHints(t, state)...)
		case state.Gate.State == fleet.GateOpen:
			hints = append(hints, "\"zkagent rollout rollback "+t.name+"\" goes back, and ends it")
		default:
			hints = append(hints, "nothing has changed yet: \"zkagent rollout abort "+t.name+"\" ends it")
		}
	}
	return fail(exitTemporary, err, append(hints, "a publish with --emergency goes past it on all hosts at once")...)
}

// confirmName asks for the name of the config.
func confirmName(ctx context.Context, g *globals, t target, rollout string) error {
	if g.yes {
		return nil
	}
	if !term.IsTerminal(g.In) {
		return fail(exitUsage, errors.New("an emergency publish asks for the config's name, and there is no terminal to ask on"), "--yes confirms it")
	}
	what := "all hosts change at once"
	if rollout != "" {
		what += ", and rollout " + rollout + " ends"
	}
	answer, err := g.ask(ctx, fmt.Sprintf("%s. Type %q to go on: ", what, t.name))
	if err != nil {
		return err
	}
	if answer != t.name {
		return failf(exitFailed, "not confirmed, nothing was published")
	}
	return nil
}

// replaced returns the open rollout that a new one would replace, or "" if no
// rollout is open. If the open rollout must stay, it returns an error. With
// replace, the open rollout must have halted.
func replaced(ctx context.Context, s *session.Session, t target, replace bool) (string, error) {
	name, err := fleet.Current(ctx, s, t.path)
	switch {
	case errors.Is(err, fleet.ErrNoRollout):
		return "", nil
	case err != nil:
		return "", err
	case !replace:
		return "", openError(ctx, s, fmt.Errorf("%s: %w: %s", t.name, fleet.ErrOpen, name), t)
	}
	state, err := fleet.Head(ctx, s, t.path, name)
	if err != nil {
		return "", err
	}
	if state.Gate.State != fleet.GateHalted && state.Gate.State != fleet.GateRefused {
		return "", openError(ctx, s, fmt.Errorf("%s: %s has not halted: %w", t.name, name, fleet.ErrOpen), t)
	}
	return name, nil
}

// publishByRollout writes a version and proposes it. With replace it replaces a
// halted rollout.
func publishByRollout(ctx context.Context, g *globals, s *session.Session, t target, cfg config.PublishConfig, roll *strategyFlags, replace bool) error {
	request := fleet.Request{Who: userName(), Why: cfg.Message}
	var err error
	if request.Replace, err = replaced(ctx, s, t, replace); err != nil {
		return err
	}
	switch _, _, err := config.ReadReady(ctx, s, t.path); {
	case errors.Is(err, config.ErrNotReady):
		return fail(exitFailed, fmt.Errorf("%s: nothing is in use yet, so there is no agent that could vote", t.name), "publish the first version without --rollout")
	case errors.Is(err, config.ErrNoVersion): // a flat tree
		return err
	}
	if request.Replace == "" {
		if r, err := inUseEverywhere(ctx, s, t, cfg); err != nil || r.Unchanged {
			return errors.Join(err, printUnchanged(&g.Console, t, r))
		}
	}
	return rollOut(ctx, g, s, t, roll, request, func() (config.Result, error) { return config.Prepare(ctx, s, cfg) })
}

// inUseEverywhere returns an unchanged result if every subscriber uses the tree
// already, so that a rollout would have no effect. A host may have kept the old
// version after a tolerated failure; a rollout of the same content tries it again.
func inUseEverywhere(ctx context.Context, s *session.Session, t target, cfg config.PublishConfig) (config.Result, error) {
	cfg.Layout = config.LayoutAuto
	plan, err := config.NewPlan(ctx, s, cfg)
	if err != nil || plan.Refused != nil || plan.From == 0 || plan.Layout != config.LayoutVersioned || len(plan.Changes) > 0 {
		return config.Result{}, err
	}
	ready, _, err := config.ReadReady(ctx, s, t.path)
	if err != nil {
		return config.Result{}, err
	}
	if ready.Rollout != "" {
		state, err := fleet.Head(ctx, s, t.path, ready.Rollout)
		if err != nil && !errors.Is(err, fleet.ErrNoRollout) {
			return config.Result{}, err
		}
		if err == nil && state.Gate.Counts != nil && state.Gate.Counts.Failed > 0 {
			return config.Result{}, nil
		}
	}
	return config.Result{Unchanged: true, Layout: plan.Layout, Generation: plan.From, Version: plan.From, Digest: plan.Digest, Count: plan.Count, Size: plan.Size, Changes: plan.Changes}, nil
}

// printUnchanged reports an unchanged tree.
func printUnchanged(console *term.Console, t target, r config.Result) error {
	if !r.Unchanged {
		return nil
	}
	return printPublished(console, "", t, r)
}
