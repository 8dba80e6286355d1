package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// judge is critical when something that is in use does not work, and a warning
// for every other open condition.
func judge(s *web.Status) (int, string) {
	code, texts := pluginOK, []string(nil)
	for _, t := range s.Templates {
		if t.State == "failed" {
			code = pluginCritical
			texts = append(texts, "template "+t.Name+": "+t.Error)
		}
	}
	if z := s.ZooKeeper; z.State != "connected" {
		code = max(code, pluginWarning)
		texts = append(texts, "zookeeper "+strings.TrimSuffix(z.State+": "+z.LastError, ": "))
	}
	for _, c := range s.Conditions {
		if c.Code == "zookeeper-unreachable" || c.Code == "template-failed" && failedTemplate(s, c.Subject) {
			continue // it has been said.
		}
		code = max(code, pluginWarning)
		texts = append(texts, c.Name()+": "+c.Text)
	}
	if len(texts) == 0 {
		return pluginOK, s.Summary
	}
	return code, strings.Join(texts, "; ")
}

// failedTemplate reports whether the status itself shows the failure.
func failedTemplate(s *web.Status, name string) bool {
	return slices.ContainsFunc(s.Templates, func(t web.TemplateStatus) bool { return t.Name == name && t.State == "failed" })
}
