package main

import (
	"io"
	"strings"
)

// writeDiff writes a unified diff, coloured on a terminal. What others have
// written cannot reach the terminal's controls.
func (g *globals) writeDiff(text string) error {
	if text == "" {
		return nil
	}
	var b strings.Builder
	color := g.useColor(g.out)
	for line := range strings.Lines(text) {
		body := strings.TrimSuffix(line, "\n")
		if isTerminal(g.out) {
			body = printableLine(body)
		}
		code := ""
		switch {
		case !color:
		case strings.HasPrefix(body, "+++"), strings.HasPrefix(body, "---"):
			code = "1"
		case strings.HasPrefix(body, "@@"):
			code = "36"
		case strings.HasPrefix(body, "+"):
			code = "32"
		case strings.HasPrefix(body, "-"):
			code = "31"
		}
		b.WriteString(g.colored(g.out, code, body))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(g.out, b.String())
	return err
}

// printableLine is printable, with tabs left alone.
func printableLine(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = printable(parts[i])
	}
	return strings.Join(parts, "\t")
}
