package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

// Exit codes of a monitoring plugin.
const (
	pluginOK = iota
	pluginWarning
	pluginCritical
	pluginUnknown
)

// checkStatus is status for a monitoring system.
func (g *globals) checkStatus(ctx context.Context) error {
	var s *web.Status
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := g.withAgent(bounded, func(ctx context.Context, client *web.Client) error {
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
	if g.IsJSON() {
		if err := g.Line(map[string]any{"apiVersion": "v1", "state": strings.ToLower(word), "text": text}); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintf(g.Out, "ZKAGENT %s - %s\n", word, term.Printable(text))
	}
	if code == pluginOK {
		return nil
	}
	return codeError(code)
}

// judge makes the health of the host, in the words of every view, a state of the
// monitoring system. Maintenance is on purpose.
func judge(s *web.Status) (int, string) {
	code := map[fleet.Health]int{fleet.OK: pluginOK, fleet.Maintenance: pluginOK, fleet.Degraded: pluginWarning, fleet.Failing: pluginCritical}[s.Health]
	if s.Health == "" {
		return pluginUnknown, "the agent does not say how it is: it is of another version"
	}
	var texts []string
	for _, c := range s.Conditions {
		texts = append(texts, c.Name()+": "+c.Text)
	}
	if len(texts) == 0 {
		return code, s.Summary
	}
	return code, strings.Join(texts, "; ")
}
