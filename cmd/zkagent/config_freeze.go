package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

func newConfigFreezeCommand(g *globals) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "freeze NAME|PATH --reason TEXT", Short: "Forbid every change of a config until it is unfrozen", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return usagef("freeze needs --reason: others will ask")
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				if err := mustExist(ctx, s, t.path); err != nil {
					return err
				}
				if err := fleet.Freeze(ctx, s, t.path, userName(), reason); err != nil {
					return err
				}
				g.Say("%s is frozen", t.name)
				return nil
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why; it is shown to everybody who tries")
	return c
}

func newConfigUnfreezeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "unfreeze NAME|PATH", Short: "Allow changes again", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				was, err := fleet.Unfreeze(ctx, s, t.path, userName())
				switch {
				case err != nil:
					return err
				case was:
					g.Say("%s can be changed again", t.name)
				default:
					g.Say("%s was not frozen", t.name)
				}
				return nil
			})
		},
	}
}

func newConfigGCCommand(g *globals) *cobra.Command {
	var keep int
	c := &cobra.Command{
		Use: "gc NAME|PATH", Short: "Delete old versions, and contents that only they use", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if keep < 1 {
				return fail(exitUsage, errors.New("--keep must be at least 1"))
			}
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				question := fmt.Sprintf("delete all versions of %s but the latest %d and those in use?", t.path, keep)
				if err := g.mustConfirm(ctx, question); err != nil {
					return err
				}
				done, err := fleet.GC(ctx, s, t.path, keep, g.logger())
				if err != nil {
					return err
				}
				if g.IsJSON() {
					return g.PrintJSON("collected", done)
				}
				_, err = fmt.Fprintf(g.Out, "%s: deleted %s, %s\n", t.name, term.Count(len(done.Versions), "version"), term.Count(done.Objects, "object"))
				return err
			})
		},
	}
	c.Flags().IntVar(&keep, "keep", fleet.DefaultKeep, "how many of the latest versions stay")
	return c
}
