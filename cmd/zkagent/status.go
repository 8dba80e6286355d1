package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

func newStatusCommand(g *globals) *cobra.Command {
	var watch, check bool
	c := &cobra.Command{
		Use: "status", Short: "Show the state of the agent",
		Long: `Show the state of the agent on this host. With -o wide, each open condition comes
with what is in use meanwhile and what to do about it; each template with its
sources and their age, its files, and its last reload; and each service with its
checks. With --check the output is one line and the exit code is that of a
monitoring plugin: 0 fine, 1 warning, 2 critical, 3 when no agent answers.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case watch && check:
				return usagef("--watch and --check exclude each other")
			case check:
				return checkStatus(c.Context(), g)
			case watch:
				return watchStatus(c.Context(), g)
			}
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				s, err := client.Status(ctx)
				if err != nil {
					return err
				}
				return printStatus(&g.Console, s)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "show it again every two seconds, also over a restart of the agent")
	c.Flags().BoolVar(&check, "check", false, "one line and an exit code for monitoring")
	return c
}

// watchStatus redraws the status until ctx ends. After its first answer the agent
// may stop and come back.
func watchStatus(ctx context.Context, g *globals) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for first := true; ; first = false {
		err := g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			return redrawScreen(&g.Console, func() error { return printStatus(&g.Console, s) })
		})
		if errors.Is(err, web.ErrNoAgent) && !first {
			err = redrawScreen(&g.Console, func() error {
				g.Say("%v; waiting for it", err)
				return nil
			})
		}
		if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// redrawScreen clears a terminal before something is printed.
func redrawScreen(console *term.Console, draw func() error) error {
	if term.IsTerminal(console.Out) && !console.IsJSON() {
		if _, err := io.WriteString(term.Unguarded(console.Out), "\x1b[H\x1b[2J"); err != nil {
			return err
		}
	}
	return draw()
}
