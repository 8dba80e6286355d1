package main

import (
	"cmp"
	"fmt"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
)

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
