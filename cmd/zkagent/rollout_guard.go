package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// refuseOpen refuses what would go past an open rollout. An emergency may,
// when it is confirmed: by the config's name, for a yes is said too easily.
//
// Looking first leaves a gap, in which a rollout may be opened. It is closed by
// the rollout itself, which gives way to any version that is published past it.
func (g *globals) refuseOpen(ctx context.Context, s *session.Session, t target, emergency bool) error {
	name, err := fleet.Current(ctx, s, t.path)
	if err != nil && !errors.Is(err, fleet.ErrNoRollout) {
		return err
	}
	open := err == nil
	switch {
	case emergency:
		return g.confirmName(t, name)
	case open:
		return openError(fmt.Errorf("%s: %w: %s", t.name, fleet.ErrOpen, name), t)
	}
	return nil
}

// openError says what can be done about an open rollout.
func openError(err error, t target) error {
	return fail(exitTemporary, err,
		"\"zkagent rollout status "+t.name+"\" shows it; \"zkagent rollout abort "+t.name+"\" or \"rollback\" ends it",
		"\"config publish --rollout --replace\" takes the place of one that has halted, \"--emergency\" goes past it on all hosts at once")
}

// confirmName asks for the name of the config.
func (g *globals) confirmName(t target, rollout string) error {
	if g.yes {
		return nil
	}
	if !isTerminal(g.in) {
		return fail(exitUsage, errors.New("an emergency publish is confirmed by the config's name, and nobody can be asked"), "--yes confirms it")
	}
	what := "all hosts change at once"
	if rollout != "" {
		what += ", and rollout " + rollout + " ends"
	}
	_, _ = fmt.Fprintf(g.err, "%s. Type %q to go on: ", what, t.name)
	var answer string
	_, _ = fmt.Fscanln(g.in, &answer)
	if strings.TrimSpace(answer) != t.name {
		return failf(exitFailed, "not confirmed, nothing was published")
	}
	return nil
}

// publishByRollout writes a version and proposes it. With replace it takes the
// place of a rollout that has halted.
func (g *globals) publishByRollout(ctx context.Context, s *session.Session, t target, cfg config.PublishConfig, roll *strategyFlags, replace bool) error {
	request := fleet.Request{Who: userName(), Why: cfg.Message}
	name, err := fleet.Current(ctx, s, t.path)
	switch {
	case errors.Is(err, fleet.ErrNoRollout):
	case err != nil:
		return err
	case !replace:
		return openError(fmt.Errorf("%s: %w: %s", t.name, fleet.ErrOpen, name), t)
	default:
		state, err := fleet.Read(ctx, s, t.path, name)
		if err != nil {
			return err
		}
		if state.Halt == nil {
			return openError(fmt.Errorf("%s: %s has not halted: %w", t.name, name, fleet.ErrOpen), t)
		}
		request.Replace = name
	}
	r, err := config.Prepare(ctx, s, cfg)
	if err != nil {
		return err
	}
	return g.rollOut(ctx, s, t, r, roll, request)
}
