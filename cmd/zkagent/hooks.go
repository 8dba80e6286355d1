package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

func newHooksCommand(g *globals) *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the hooks and their last runs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return listHooks(c.Context(), g) },
	}
	var dry bool
	run := &cobra.Command{
		Use: "run NAME", Short: "Run a hook now, and wait for its end", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				if dry {
					return dryHook(ctx, &g.Console, client, args[0])
				}
				if err := client.Post(ctx, "/hooks/run", url.Values{"name": {args[0]}}, nil); err != nil {
					return err
				}
				g.Say("hook %s was run", args[0])
				return nil
			})
		},
	}
	run.Flags().BoolVar(&dry, "dry-run", false, "say what would run, and do not run it")
	log := &cobra.Command{
		Use: "log NAME", Short: "Show the last runs of a hook with their output", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				h, err := hookOf(ctx, client, args[0])
				if err != nil {
					return err
				}
				return printRuns(&g.Console, h)
			})
		},
	}
	c := parent("hooks", "List and run hooks, and read their output", list, run, log)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("hooks has no command %q", args[0])
		}
		return listHooks(c.Context(), g)
	}
	return c
}

func hooksOf(ctx context.Context, client *web.Client) ([]show.HookStatus, error) {
	var list []show.HookStatus
	err := client.Get(ctx, "/hooks", &list)
	return list, err
}

func hookOf(ctx context.Context, client *web.Client, name string) (show.HookStatus, error) {
	list, err := hooksOf(ctx, client)
	if err != nil {
		return show.HookStatus{}, err
	}
	i := slices.IndexFunc(list, func(h show.HookStatus) bool { return h.Name == name })
	if i < 0 {
		return show.HookStatus{}, fail(exitFailed, fmt.Errorf("there is no hook %q", name), "\"zkagent hooks list\" shows them")
	}
	return list[i], nil
}

func listHooks(ctx context.Context, g *globals) error {
	return g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		list, err := hooksOf(ctx, client)
		if err != nil {
			return err
		}
		if g.IsJSON() {
			return term.PrintList(&g.Console, "hooks", list)
		}
		t := &term.Table{Header: []string{"HOOK", "WHERE", "TRIGGERS", "LAST", "AGE", "NEXT"}}
		for _, h := range list {
			where := "every host"
			if h.Leader != "" {
				where = "leader of " + h.Leader
			}
			state, ago, next := "-", "-", "-"
			if last := h.Last(); last != nil {
				state, ago = last.State, term.Age(last.Began)
			}
			if !h.Next.IsZero() {
				next = h.Next.UTC().Format(time.RFC3339)
			}
			t.Add(h.Name, where, strings.Join(h.Triggers, " "), stateWord(&g.Console, state), ago, next)
		}
		return g.PrintTable(t)
	})
}

func dryHook(ctx context.Context, console *term.Console, client *web.Client, name string) error {
	h, err := hookOf(ctx, client, name)
	if err != nil {
		return err
	}
	if console.IsJSON() {
		return console.PrintJSON("hook", h)
	}
	_, err = fmt.Fprintln(console.Out, term.Printable(h.Command))
	return err
}

// printRuns shows the last runs of a hook, the newest first.
func printRuns(console *term.Console, h show.HookStatus) error {
	runs := slices.Clone(h.Runs)
	slices.Reverse(runs)
	if console.IsJSON() {
		return term.PrintList(console, "runs", runs)
	}
	for _, r := range runs {
		_, _ = fmt.Fprintf(console.Out, "%s  %s  %s  took %s  exit %d  %s\n", r.Began.UTC().Format(time.RFC3339), r.Event, stateWord(console, r.State), term.Short(time.Duration(r.Took)), r.Code, term.Printable(r.Error))
		for line := range strings.Lines(r.Output) {
			_, _ = fmt.Fprintln(console.Out, "  "+term.Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return nil
}
