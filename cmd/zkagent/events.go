package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

// againEvery is the pause between attempts to reach an agent that is gone.
const againEvery = 500 * time.Millisecond

func newEventsCommand(g *globals) *cobra.Command {
	var follow bool
	var since string
	var subject string
	c := &cobra.Command{
		Use: "events", Short: "Show the latest events of the agent",
		Long: `Print the last 500 events of the running agent, and the last 200 orders that it or
its previous processes received. With --follow, print new events as they come, also
after a restart of the agent. With --json each event is one line.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := moment(since, time.Now())
			if err != nil {
				return err
			}
			return g.withAgent(c.Context(), func(ctx context.Context, client *web.Client) error {
				return readEvents(ctx, &g.Console, client, follow, func(e event.Event) bool {
					return !e.Time.Before(from) && (subject == "" || e.Subject == subject)
				})
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new events as they come, until Ctrl-C")
	c.Flags().StringVar(&since, "since", "", "only events since then: a duration such as 1h, or a time such as 2026-01-02T15:04:05Z (default: all)")
	c.Flags().StringVar(&subject, "template", "", "only events about this template, service or hook (default: all)")
	return c
}

// readEvents prints the wanted events. With follow it reconnects when the agent
// restarts, until ctx ends.
func readEvents(ctx context.Context, console *term.Console, client *web.Client, follow bool, wanted func(event.Event) bool) error {
	var seq int64
	var failed error
	read := func() error {
		err := client.Events(ctx, seq, follow, func(e event.Event) bool {
			seq = e.Seq
			if wanted(e) {
				failed = printEvent(console, e)
			}
			return failed == nil
		})
		return cmp.Or(failed, err)
	}
	err := read()
	if !follow || seq == 0 && err != nil {
		return err
	}
	reported := false
	for failed == nil {
		if !reported {
			console.Say("the agent has gone; waiting for it")
		}
		if !pace.Sleep(ctx, againEvery) {
			return context.Cause(ctx)
		}
		before := seq
		_ = read() // on any error, try again
		reported = seq == before
	}
	return failed
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
		return t, usagef("--since %q is not a duration such as 1h, and not a time such as 2026-01-02T15:04:05Z", text)
	}
	return t, nil
}

func printEvent(console *term.Console, e event.Event) error {
	if console.IsJSON() {
		return console.Line(e)
	}
	kind := fmt.Sprintf("%-17s", e.Kind)
	if e.Warn {
		kind = colored(console, show.Warning, kind)
	}
	text := term.Printable(show.Joined(": ", e.Subject, e.Text))
	line := strings.TrimRight(e.Time.UTC().Format(time.RFC3339)+"  "+kind+"  "+text, " ")
	console.Printf("%s\n", line)
	return console.Failed()
}
