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

// explainRollout adds hints to the errors of publishing with or past a rollout.
func explainRollout(ctx context.Context, s *session.Session, t target, err error) error {
	switch {
	case errors.Is(err, fleet.ErrOpen):
		return openError(ctx, s, err, t)
	case errors.Is(err, fleet.ErrVoting):
		return fail(exitFailed, err, "\"zkagent rollout abort "+t.name+"\" ends it")
	case errors.Is(err, fleet.ErrNobody):
		return fail(exitFailed, err, "\"zkagent fleet "+t.name+"\" lists the subscribers, \"zkagent maint off\" on a host lets it vote", "publish it without --rollout")
	case errors.Is(err, config.ErrNotReady):
		return fail(exitFailed, err)
	}
	return err
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
func confirmName(ctx context.Context, g *globals, s *session.Session, t target) error {
	if g.yes {
		return nil
	}
	if !term.IsTerminal(g.In) {
		return fail(exitUsage, errors.New("confirmation needed, but stdin is not a terminal; pass --yes to publish on all hosts at once"))
	}
	what := "all hosts change at once"
	rollout, err := fleet.Current(ctx, s, t.path)
	if err == nil {
		what += ", and rollout " + rollout + " ends"
	}
	answer, err := g.ask(ctx, fmt.Sprintf("%s. Type %q to continue: ", what, t.name))
	if err != nil {
		return err
	}
	if answer != t.name {
		return failf(exitFailed, "not confirmed, nothing was published")
	}
	return nil
}

// publishByRollout writes a version and proposes it, and follows the rollout.
func publishByRollout(ctx context.Context, g *globals, s *session.Session, t target, cfg fleet.PublishConfig, roll *strategyFlags, replace bool) error {
	how, err := roll.rolloutConfig()
	if err != nil {
		return err
	}
	how.Replace, cfg.Author = replace, userName()
	p, err := fleet.PublishByRollout(ctx, s, cfg, how)
	return afterProposal(ctx, g, s, t, roll, p, err)
}

// afterProposal follows a rollout that was proposed, or says why none was.
func afterProposal(ctx context.Context, g *globals, s *session.Session, t target, roll *strategyFlags, p fleet.Proposed, err error) error {
	switch {
	case err != nil:
		return explainRollout(ctx, s, t, err)
	case p.Unchanged:
		return printPublished(&g.Console, "", t, p.Result)
	}
	g.Say("%s: proposed v%d as %s to %s%s", t.name, p.Version, p.Rollout, term.Count(p.Hosts, "agent"), besides(p.Maintenance))
	if roll.detach {
		return printDetached(&g.Console, t, p.Rollout, p.Result)
	}
	return followRollout(ctx, g, s, t, p.Rollout)
}
