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
	return repeated(ctx, func() error {
		s, err := g.status(ctx)
		switch {
		case err == nil:
			err = redrawScreen(&g.Console, func() error { return printStatus(&g.Console, s) })
		case errors.Is(err, web.ErrNoAgent) && !first:
			err = redrawScreen(&g.Console, func() error {
				g.Say("%v; waiting for it", err)
				return nil
			})
		}
		first = false
		return err
	})
}

// repeated draws now and every two seconds, until draw fails or ctx ends.
func repeated(ctx context.Context, draw func() error) error {
	for {
		if err := draw(); err != nil {
			return err
		}
		if !pace.Sleep(ctx, 2*time.Second) {
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

// printStatus prints a status: a summary, the problems, and a row for each thing
// that the agent manages.
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

// zookeeperLine describes the connection, or why it is missing.
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

// stateWord colours the word of a state.
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
