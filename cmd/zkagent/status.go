package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
)

func newStatusCommand(g *globals) *cobra.Command {
	var watch, check bool
	c := &cobra.Command{
		Use: "status", Short: "Ask the agent how it is",
		Long: `Ask the agent on this host how it is. With --check one line is printed and the
exit code is that of a monitoring plugin: 0 fine, 1 warning, 2 critical, 3 when
no agent answers.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case watch && check:
				return usagef("--watch and --check exclude each other")
			case check:
				return g.checkStatus(c.Context())
			case watch:
				return g.watchStatus(c.Context())
			}
			return g.withAgent(c.Context(), func(ctx context.Context, client *agent.Client) error {
				s, err := client.Status(ctx)
				if err != nil {
					return err
				}
				return g.printStatus(s)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "show it again at each event, and every two seconds")
	c.Flags().BoolVar(&check, "check", false, "one line and an exit code for monitoring")
	return c
}

func (g *globals) printStatus(s *agent.Status) error {
	if g.isJSON() {
		return g.printJSON("status", s)
	}
	_, _ = fmt.Fprintf(g.out, "%s: %s\n", s.Agent.ID, printable(s.Summary))
	z := s.ZooKeeper
	_, _ = fmt.Fprintf(g.out, "zookeeper: %s %s, session 0x%x, timeout %s, for %s\n", g.stateWord(z.State), z.Server, uint64(z.SessionID), z.Timeout, age(z.Since))
	if s.Settings.Error != "" {
		_, _ = fmt.Fprintf(g.out, "settings: %s\n", g.colored(g.out, "31", printable(s.Settings.Error)))
	}
	for _, c := range s.Conditions {
		_, _ = fmt.Fprintf(g.out, "%s %s: %s (for %s)\n", g.colored(g.out, "33", c.Code), printable(c.Subject), printable(c.Text), age(c.Since))
	}
	t := &table{header: []string{"KIND", "NAME", "STATE", "SINCE", "DETAIL"}}
	g.statusRows(t, s)
	return g.printTable(t)
}

// statusRows is one row for each thing that the agent looks after.
func (g *globals) statusRows(t *table, s *agent.Status) {
	for _, v := range s.Services {
		t.add("service", v.Name, g.stateWord(v.State), age(v.Since), strings.TrimSpace(v.Address+" "+v.Error))
	}
	for _, v := range s.Templates {
		detail := v.Error
		if detail == "" && g.output == "wide" {
			detail = strings.Join(v.Files, " ") + " <- " + strings.Join(v.Sources, " ")
		}
		if v.Owed {
			detail = strings.TrimSpace("reload owed " + detail)
		}
		t.add("template", v.Name, g.stateWord(v.State), age(v.LastChange), detail)
	}
	for _, v := range s.Sources {
		state, detail := "waiting", v.Path
		if v.Reported {
			state = "ok"
		}
		switch v.Kind {
		case "config":
			detail = fmt.Sprintf("%s, version %s, %s", v.Path, v.Version, count(v.Size, "key"))
		case "group":
			detail = fmt.Sprintf("%s, %s", v.Path, count(v.Size, "member"))
		case "groups":
			detail = fmt.Sprintf("%s, %s", v.Path, count(v.Size, "group"))
		case "election":
			continue
		}
		t.add(v.Kind, v.Name, g.stateWord(state), age(v.Changed), detail)
	}
	for _, v := range s.Elections {
		state := "follower"
		switch {
		case v.Held:
			state = "leader"
		case v.Term == 0:
			state = "no leader"
		}
		t.add("election", v.Name, state, "-", fmt.Sprintf("%s, term %d", v.ID, v.Term))
	}
	for _, v := range s.Hooks {
		state, since, detail := "idle", "-", ""
		if last := v.Last(); last != nil {
			state, since, detail = last.State, age(last.Began), last.Error
		}
		if detail == "" && !v.Next.IsZero() {
			detail = "next " + v.Next.UTC().Format(time.RFC3339)
		}
		t.add("hook", v.Name, g.stateWord(state), since, detail)
	}
	for _, v := range s.Execs {
		t.add("exec", v.Name, g.stateWord(v.State), age(v.Since), strings.TrimSpace("pid "+strconv.Itoa(v.PID)+" "+v.Error))
	}
}

// stateWord colours the word of a state.
func (g *globals) stateWord(state string) string {
	code := ""
	switch state {
	case "ok", "connected", "done", "up", "running", "registered":
		code = "32"
	case "failed", "expired", "closed", "down":
		code = "31"
	case "suspended", "waiting", "connecting", "drain", "maint":
		code = "33"
	}
	return g.colored(g.out, code, state)
}

// watchStatus draws the status again and again.
func (g *globals) watchStatus(ctx context.Context) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		err := g.withAgent(ctx, func(ctx context.Context, client *agent.Client) error {
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if isTerminal(g.out) && !g.isJSON() {
				if _, err := io.WriteString(g.out, "\x1b[H\x1b[2J"); err != nil {
					return err
				}
			}
			return g.printStatus(s)
		})
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

// Exit codes of a monitoring plugin.
const (
	pluginOK = iota
	pluginWarning
	pluginCritical
	pluginUnknown
)

// checkStatus is status for a monitoring system.
func (g *globals) checkStatus(ctx context.Context) error {
	var s *agent.Status
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := g.withAgent(bounded, func(ctx context.Context, client *agent.Client) error {
		var err error
		s, err = client.Status(ctx)
		return err
	})
	code, text := pluginUnknown, ""
	if err != nil {
		text = "no answer: " + err.Error()
	} else {
		code, text = judge(s)
	}
	word := []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[code]
	if g.isJSON() {
		if err := g.line(map[string]any{"apiVersion": "v1", "state": strings.ToLower(word), "text": text}); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintf(g.out, "ZKAGENT %s - %s\n", word, printable(text))
	}
	if code == pluginOK {
		return nil
	}
	return codeError(code)
}

// judge is critical when something that is in use does not work, and a warning
// for every other open condition.
func judge(s *agent.Status) (int, string) {
	code, texts := pluginOK, []string(nil)
	for _, t := range s.Templates {
		if t.State == "failed" {
			code = pluginCritical
			texts = append(texts, "template "+t.Name+": "+t.Error)
		}
	}
	if z := s.ZooKeeper.State; z != "connected" {
		code = max(code, pluginWarning)
		texts = append(texts, "zookeeper "+z)
	}
	for _, c := range s.Conditions {
		code = max(code, pluginWarning)
		texts = append(texts, strings.TrimSpace(c.Code+" "+c.Subject)+": "+c.Text)
	}
	if s.Settings.Error != "" {
		code = max(code, pluginWarning)
		texts = append(texts, "settings: "+s.Settings.Error)
	}
	if len(texts) == 0 {
		return pluginOK, s.Summary
	}
	return code, strings.Join(texts, "; ")
}
