package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

func newBarrierCommand(g *globals) *cobra.Command {
	var wait waiting
	var n int
	var id string
	simple := func(use, short string, fn func(context.Context, *session.Session, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				return waitBarrier(c.Context(), g, args[0], wait, fn)
			},
		}
	}
	waitCmd := simple("wait NAME", "Wait until the barrier is open", func(ctx context.Context, s *session.Session, path string) error {
		if !wait.nonblock {
			return recipe.NewBarrier(s, path).Wait(ctx)
		}
		_, closed, err := s.Exists(ctx, path)
		if err == nil && closed {
			err = failf(exitTemporary, "barrier %s: it is closed", path)
		}
		return err
	})
	closeCmd := simple("close NAME", "Close the barrier: processes that wait for it stay held back", func(ctx context.Context, s *session.Session, path string) error {
		return recipe.NewBarrier(s, path).Close(ctx)
	})
	openCmd := simple("open NAME", "Open the barrier: everybody who waits continues", func(ctx context.Context, s *session.Session, path string) error {
		return recipe.NewBarrier(s, path).Open(ctx)
	})
	enter := &cobra.Command{
		Use: "enter NAME --count N [-- CMD [ARG...]]", Short: "Wait until N have entered; with a command, run it and leave together",
		Long: `Wait until N processes have entered. Then end, or run the command and wait until
the commands of all N have ended. Without a command this process leaves the
barrier when it ends; "leave" then waits for the others, and makes the barrier
usable again.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, command := commandAfter(args, c.ArgsLenAtDash())
			if len(names) != 1 || n < 1 {
				return usagef("enter takes one name and --count N")
			}
			return waitBarrier(c.Context(), g, names[0], wait, func(ctx context.Context, s *session.Session, path string) error {
				return enterBarrier(c.Context(), ctx, g, s, recipe.DoubleBarrierConfig{Path: path, N: n, ID: id, Data: whoAmI()}, command)
			})
		},
	}
	leave := simple("leave NAME --count N", "Wait until N processes have come to leave", func(ctx context.Context, s *session.Session, path string) error {
		if n < 1 {
			return usagef("leave takes --count N")
		}
		return leaveBarrier(ctx, s, recipe.DoubleBarrierConfig{Path: path, N: n, ID: id, Data: whoAmI()})
	})
	for _, c := range []*cobra.Command{waitCmd, enter, leave} {
		wait.flags(c.Flags(), "fail at once when the barrier holds back", "fail after this time")
	}
	for _, c := range []*cobra.Command{enter, leave} {
		c.Flags().IntVar(&n, "count", 0, "number of processes that continue together (required)")
		c.Flags().StringVar(&id, "id", "", "the name under which this process takes part (default: a random one)")
	}
	return parent("barrier", "Hold back processes of many hosts and let them go together", waitCmd, closeCmd, openCmd, enter, leave)
}

// waitBarrier runs fn with a session and a bounded wait.
func waitBarrier(ctx context.Context, g *globals, name string, wait waiting, fn func(context.Context, *session.Session, string) error) error {
	path, err := pathOf(barriersRoot, name)
	if err != nil {
		return err
	}
	return inSessions(ctx, g, wait, func(bounded context.Context, s *session.Session, _ *agent.Config) error {
		defer g.awaiting("waiting at barrier %s", path)()
		bounded, cancel := wait.attempt(bounded)
		defer cancel()
		err := fn(bounded, s, path)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, recipe.ErrRound):
			return fail(exitFailed, err, "\"zkagent barrier leave "+path+"\" ends a round; a barrier of another name begins a new one")
		case bounded.Err() != nil && ctx.Err() == nil:
			return fail(exitTemporary, fmt.Errorf("barrier %s: not passed in time", path))
		}
		return err
	})
}

// enterBarrier waits for the others; a command then runs until all leave together.
// Only the waiting is bounded.
func enterBarrier(whole, bounded context.Context, g *globals, s *session.Session, cfg recipe.DoubleBarrierConfig, command []string) error {
	b := recipe.NewDoubleBarrier(s, cfg)
	h, err := b.Enter(bounded)
	if err != nil || len(command) == 0 {
		return err
	}
	held := heldCommand{what: "barrier " + cfg.Path, ctx: h.Context(), s: s, fence: h.Fence(), env: []string{"ZKAGENT_BARRIER=" + cfg.Path}}
	return cmp.Or(runHeld(whole, g, held, command), b.Leave(whole, h))
}

// leaveBarrier lets processes leave together when other processes entered for them.
// They meet at a second barrier beside the first. Once all of them have come, the
// ready znode of the first is removed.
func leaveBarrier(ctx context.Context, s *session.Session, cfg recipe.DoubleBarrierConfig) error {
	entered := cfg.Path
	cfg.Path += "-leave"
	b := recipe.NewDoubleBarrier(s, cfg)
	h, err := b.Enter(ctx)
	if err != nil {
		return err
	}
	if err := s.Delete(ctx, session.JoinPath(entered, "ready"), -1); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("end round of %s: %w", entered, err)
	}
	return b.Leave(ctx, h)
}
