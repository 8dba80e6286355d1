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
	var since string
	var subject string
	c := &cobra.Command{
		Use: "events", Short: "What the agent has done lately", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := moment(since, time.Now())
			if err != nil {
				return err
			}
			return g.withAgent(c.Context(), func(ctx context.Context, client *agent.Client) error {
				var failed error
				err := client.Events(ctx, 0, follow, func(e agent.Event) bool {
					if e.Time.Before(from) || subject != "" && e.Subject != subject {
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
	c.Flags().StringVar(&since, "since", "", "only events since then: a duration such as 1h, or a time such as 2026-01-02T15:04:05Z")
	c.Flags().StringVar(&subject, "template", "", "only events about this template, service, hook ...")
	return c
}

// moment is the time that --since names; the zero time when it names none.
func moment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usagef("--since %q is neither a duration such as 1h nor a time such as 2026-01-02T15:04:05Z", text)
	}
	return t, nil
}

func (g *globals) printEvent(e agent.Event) error {
	if g.isJSON() {
		return g.line(e)
	}
	kind := fmt.Sprintf("%-17s", e.Kind)
	if e.Warn {
		kind = g.colored(g.out, "33", kind)
	}
	text := printable(joined([]string{e.Subject, e.Text}, ": "))
	line := strings.TrimRight(e.Time.UTC().Format(time.RFC3339)+"  "+kind+"  "+text, " ")
	_, err := fmt.Fprintln(g.out, line)
	return err
}
