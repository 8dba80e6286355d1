package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
)

func newEventsCommand(g *globals) *cobra.Command {
	var follow bool
	var since time.Duration
	var subject string
	c := &cobra.Command{
		Use: "events", Short: "What the agent has done lately", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withAgent(c.Context(), func(ctx context.Context, client *agent.Client) error {
				var failed error
				err := client.Events(ctx, 0, follow, func(e agent.Event) bool {
					if since > 0 && time.Since(e.Time) > since || subject != "" && e.Subject != subject {
						return true
					}
					failed = g.printEvent(e)
					return failed == nil
				})
				if failed != nil {
					return failed
				}
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	c.Flags().DurationVar(&since, "since", 0, "only events of the last such time, such as 1h")
	c.Flags().StringVar(&subject, "template", "", "only events about this template, service, hook ...")
	return c
}

func (g *globals) printEvent(e agent.Event) error {
	if g.isJSON() {
		return g.line(e)
	}
	kind := e.Kind
	if e.Warn {
		kind = g.colored(g.out, "33", kind)
	}
	text := strings.TrimSpace(printable(e.Subject + " " + e.Text))
	_, err := fmt.Fprintf(g.out, "%s  %s  %s\n", e.Time.UTC().Format(time.RFC3339), kind, text)
	return err
}
