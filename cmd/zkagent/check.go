package main

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
)

func newCheckCommand(g *globals) *cobra.Command {
	var message string
	c := &cobra.Command{
		Use: "check pass|warn|fail SERVICE[/CHECK]", Short: "Report the state of a ttl check to the agent",
		Long: `Report the state of a ttl check to the agent on this host. A service with one
ttl check needs no CHECK. A report is good for the check's ttl; warn counts as
good and is shown.`,
		Example: "  zkagent check pass web\n  zkagent check fail web/backup -m \"no space\"",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			states := []registry.Report{registry.ReportPass, registry.ReportWarn, registry.ReportFail}
			if !slices.Contains(states, registry.Report(args[0])) {
				return usagef("the state is one of pass, warn, fail, not %q", args[0])
			}
			service, check, _ := strings.Cut(args[1], "/")
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				return client.Post(ctx, "/check", url.Values{"name": {service}, "check": {check}, "state": {args[0]}, "output": {message}}, nil)
			})
		},
	}
	c.Flags().StringVarP(&message, "message", "m", "", "what to show with it")
	return c
}
