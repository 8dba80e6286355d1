package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

func newStatusCommand(g *globals) *cobra.Command {
	var watch, check bool
	c := &cobra.Command{
		Use: "status", Short: "Show the state of the agent",
		Long: `Show the state of the agent on this host. With -o wide, each open condition comes
with the data in use meanwhile and the remedy; each template with its
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
			s, err := g.status(c.Context())
			if err != nil {
				return err
			}
			return printStatus(&g.Console, s)
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "print the state again every two seconds, until Ctrl-C, also across a restart of the agent")
	c.Flags().BoolVar(&check, "check", false, "print one line, and exit as a monitoring plugin does: 0, 1, 2 or 3")
	return c
}

// watchStatus redraws the status until ctx ends. After its first answer the agent
// may stop and come back.
func watchStatus(ctx context.Context, g *globals) error {
	first := true
	return redrawn(ctx, &g.Console, func() (func() error, error) {
		s, err := g.status(ctx)
		if errors.Is(err, web.ErrNoAgent) && !first {
			return func() error {
				g.Say("%v; waiting for it", err)
				return nil
			}, nil
		}
		first = false
		return func() error { return printStatus(&g.Console, s) }, err
	})
}

// redrawn reads now and every two seconds, and prints that on a cleared terminal, until one
// of both fails or ctx ends.
func redrawn(ctx context.Context, console *term.Console, read func() (func() error, error)) error {
	for {
		draw, err := read()
		if err == nil && term.IsTerminal(console.Out) && !console.IsJSON() {
			_, err = io.WriteString(term.Unguarded(console.Out), "\x1b[H\x1b[2J")
		}
		if err == nil {
			err = draw()
		}
		if err != nil {
			return err
		}
		if !pace.Sleep(ctx, 2*time.Second) {
			return context.Cause(ctx)
		}
	}
}

func printStatus(console *term.Console, s *show.Status) error {
	if console.IsJSON() {
		return console.PrintJSON("status", s)
	}
	console.Printf("%s: %s; %s\n", s.Agent.ID, stateWord(console, s.Health), term.Printable(s.Summary))
	if m := s.Agent.Maintenance; m != nil && m.On {
		console.Printf("maintenance: %s\n", term.Printable(show.MaintenanceText(m)))
	}
	console.Printf("zookeeper: %s\n", zookeeperLine(console, &s.ZooKeeper))
	for _, c := range s.Conditions {
		console.Printf("%s: %s (for %s)\n", colored(console, show.SeverityOf(c.Code), term.Printable(c.Name())), term.Printable(c.Text), term.Age(c.Since))
		if about := c.Kind(); about.Use != "" && isWide(console) {
			console.Printf("  in use: %s\n  do: %s\n", about.Use, term.Printable(about.Do))
		}
	}
	t := &term.Table{Header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL"}}
	add := func(indent string, r show.Row) {
		t.Add(indent+r.Kind, cmp.Or(r.Name, "-"), stateWord(console, cmp.Or(r.State, "-")), term.Age(r.Since), r.Detail)
	}
	for _, row := range s.Rows() {
		add("", row)
		for _, part := range row.Parts {
			if isWide(console) {
				add("  ", part)
			}
		}
	}
	return console.PrintTable(t)
}

func zookeeperLine(console *term.Console, z *show.ZooKeeperStatus) string {
	line := stateWord(console, z.State)
	if z.Server != "" {
		line += " " + z.Server
	}
	if z.SessionID != "" {
		line += fmt.Sprintf(", session %s, timeout %s", z.SessionID, z.Timeout)
	}
	if !z.Since.IsZero() {
		line += ", for " + term.Age(z.Since)
	}
	if z.State != "connected" && z.LastError != "" {
		line += ": " + term.Printable(z.LastError)
	}
	if o := z.LastOutage(); o != nil {
		line += fmt.Sprintf("; last outage %s ago, it lasted %s", term.Age(o.Until), term.Short(time.Duration(o.Seconds)))
	}
	if z.Warning != "" {
		line += "; " + colored(console, show.Warning, term.Printable(z.Warning))
	}
	if isWide(console) {
		line += fmt.Sprintf("; watches %d, reconnections %d, expired sessions %d", z.Watches, z.Reconnects, z.Expirations)
		if z.Resumed {
			line += ", resumed from the previous process"
		}
	}
	return line
}

func isWide(console *term.Console) bool { return console.Format == "wide" }

func colored(console *term.Console, s show.Severity, word string) string {
	return console.Colored(console.Out, s.Color(), word)
}

func stateWord[S ~string](console *term.Console, state S) string {
	return colored(console, show.SeverityOf(string(state)), string(state))
}

// checkStatus is status for a monitoring system.
func checkStatus(ctx context.Context, g *globals) error {
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := g.status(bounded)
	code, word, text := show.CheckUnknown, "UNKNOWN", ""
	if err != nil {
		text = "no answer: " + err.Error()
	} else {
		code, word, text = s.Check()
	}
	if g.IsJSON() {
		_ = g.Line(map[string]any{"state": strings.ToLower(word), "text": text})
	} else {
		g.Printf("ZKAGENT %s - %s\n", word, term.Printable(text))
	}
	return codeError(code) // 0 is fine
}

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

// readEvents prints the wanted events; with follow, also after a restart of the agent.
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
