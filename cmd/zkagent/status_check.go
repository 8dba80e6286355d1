package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
)

// checkStatus is status for a monitoring system.
func checkStatus(ctx context.Context, g *globals) error {
	var s *show.Status
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := g.withAgent(bounded, func(ctx context.Context, client *web.Client) error {
		var err error
		s, err = client.Status(ctx)
		return err
	})
	code, word, text := show.CheckUnknown, "UNKNOWN", ""
	if err != nil {
		text = "no answer: " + err.Error()
	} else {
		code, word, text = s.Check()
	}
	if g.IsJSON() {
		if err := g.Line(map[string]any{"state": strings.ToLower(word), "text": text}); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintf(g.Out, "ZKAGENT %s - %s\n", word, term.Printable(text))
	}
	if code == show.CheckOK {
		return nil
	}
	return codeError(code)
}
