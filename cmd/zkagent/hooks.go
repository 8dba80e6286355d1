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
	list := &cobra.Command{Use: "list", Short: "List the hooks and their last runs", Args: cobra.NoArgs}
	var dry bool
	run := &cobra.Command{
		Use: "run NAME", Short: "Run a hook now, and wait for its end", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !dry {
				return g.order(c.Context(), "/hooks/run", url.Values{"name": {args[0]}}, "hook "+args[0]+" was run")
			}
			return withHook(c.Context(), g, args[0], func(h show.HookStatus) error {
				return g.PrintResult("hook", h, "%s\n", term.Printable(h.Command))
			})
		},
	}
	run.Flags().BoolVar(&dry, "dry-run", false, "say what would run, and do not run it")
	log := &cobra.Command{
		Use: "log NAME", Short: "Show the last runs of a hook with their output", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withHook(c.Context(), g, args[0], func(h show.HookStatus) error { return printRuns(&g.Console, h) })
		},
	}
	c := listing(g, "hooks", "List and run hooks, and read their output", listHooks, list, run, log)
	list.RunE = c.RunE
	return c
}

// withHook runs fn with a hook of this host's agent.
func withHook(ctx context.Context, g *globals, name string, fn func(show.HookStatus) error) error {
	return g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
		var list []show.HookStatus
		if err := client.Get(ctx, "/hooks", &list); err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(h show.HookStatus) bool { return h.Name == name })
		if i < 0 {
			return fail(exitFailed, fmt.Errorf("there is no hook %q", name), "\"zkagent hooks list\" shows them")
		}
		return fn(list[i])
	})
}

func listHooks(ctx context.Context, console *term.Console, client *web.Client) error {
	var list []show.HookStatus
	if err := client.Get(ctx, "/hooks", &list); err != nil {
		return err
	}
	return term.PrintRows(console, "hooks", list, []string{"HOOK", "WHERE", "TRIGGERS", "LAST", "AGE", "NEXT"}, func(h show.HookStatus) []string {
		where, state, ago, next := "every host", "-", "-", "-"
		if h.Leader != "" {
			where = "leader of " + h.Leader
		}
		if last := h.Last(); last != nil {
			state, ago = last.State, term.Age(last.Began)
		}
		if !h.Next.IsZero() {
			next = h.Next.UTC().Format(time.RFC3339)
		}
		return []string{h.Name, where, strings.Join(h.Triggers, " "), stateWord(console, state), ago, next}
	})
}

// printRuns shows the last runs of a hook, the newest first.
func printRuns(console *term.Console, h show.HookStatus) error {
	runs := slices.Clone(h.Runs)
	slices.Reverse(runs)
	if console.IsJSON() {
		return term.PrintList(console, "runs", runs)
	}
	for _, r := range runs {
		console.Printf("%s  %s  %s  took %s  exit %d  %s\n", r.Began.UTC().Format(time.RFC3339), r.Event, stateWord(console, r.State), term.Short(time.Duration(r.Took)), r.Code, term.Printable(r.Error))
		for line := range strings.Lines(r.Output) {
			console.Printf("  %s\n", term.Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return nil
}
