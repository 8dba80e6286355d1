package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// pipeline has the flags that say how a new version reaches the hosts: all at once,
// or by votes and a few at a time. Every command that publishes has these flags, so
// that no command bypasses rollouts.
type pipeline struct {
	roll      strategyFlags
	emergency bool
	replace   bool
}

func (p *pipeline) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&p.roll.rollout, "rollout", false, "let every subscriber vote, then change a few hosts at a time")
	f.BoolVar(&p.emergency, "emergency", false, "publish although a rollout is open, to all hosts at once; asks for the config's name unless --yes")
	f.BoolVar(&p.replace, "replace", false, "with --rollout: take the place of a rollout that has halted")
	p.roll.add(f)
}

// check rejects flags that do not go together.
func (p *pipeline) check(c *cobra.Command) error {
	if p.emergency && p.roll.rollout || p.replace && !p.roll.rollout {
		return usagef("use --emergency without --rollout, and --replace with it")
	}
	return p.roll.onlyWithRollout(c)
}

// onlyWithRollout rejects the flags of a strategy without a rollout. A user who
// sets them does not want all hosts to change at once.
func (r *strategyFlags) onlyWithRollout(c *cobra.Command) error {
	if r.rollout {
		return nil
	}
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && (strategyFlag(f.Name) || f.Name == "detach") {
			err = usagef("--%s needs --rollout: without it all hosts change at once", f.Name)
		}
	})
	return err
}

// refusePipeline rejects early what sendPipeline would reject later.
func refusePipeline(ctx context.Context, s *session.Session, t target, p *pipeline) error {
	err := fleet.CheckPublish(ctx, s, t.path, p.replace)
	if p.emergency && errors.Is(err, fleet.ErrOpen) {
		return nil // sendPipeline asks for the config's name
	}
	return explainRollout(ctx, s, t, err)
}

// sendPipeline publishes in the way that the flags choose.
func sendPipeline(ctx context.Context, g *globals, s *session.Session, t target, cfg fleet.PublishConfig, p *pipeline) error {
	if p.roll.rollout {
		return publishByRollout(ctx, g, s, t, cfg, &p.roll, p.replace)
	}
	return publishAtOnce(ctx, g, s, t, cfg, p.emergency)
}
