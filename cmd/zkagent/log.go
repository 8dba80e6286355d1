package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// journalHandler writes entries for the journal. With send, an entry has fields: PRIORITY,
// MESSAGE (the line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. Without send, and when the journal rejects an entry,
// it is a line on out with its level in front.
type journalHandler struct {
	out   io.Writer
	level slog.Leveler
	send  func(message string, level journal.Priority, fields map[string]string) error
	wraps []func(slog.Handler) slog.Handler // attributes and groups of the logger
}

// Enabled implements slog.Handler.
func (h journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle implements slog.Handler.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	fields := map[string]string{"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": r.Message}
	line, err := h.line(ctx, r, fields)
	if err != nil || h.send != nil && h.send(strings.TrimSuffix(line, "\n"), priority(r.Level), fields) == nil {
		return err
	}
	_, err = fmt.Fprintf(h.out, "<%d>%s", priority(r.Level), line) // one write a line: lines do not mix
	return err
}

func (h journalHandler) with(fn func(slog.Handler) slog.Handler) slog.Handler {
	h.wraps = append(slices.Clip(h.wraps), fn)
	return h
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })
}

// line is "message key=value". It omits time and level, which the journal adds. The
// attributes are added to fields, a group as a prefix; the first of a name counts.
func (h journalHandler) line(ctx context.Context, r slog.Record, fields map[string]string) (string, error) {
	b := bytes.NewBufferString(r.Message)
	if r.NumAttrs() > 0 || len(h.wraps) > 0 {
		b.WriteByte(' ')
	}
	var text slog.Handler = slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		key := fieldName(strings.Join(append(slices.Clone(groups), a.Key), "_"))
		if _, taken := fields[key]; key != "" && !taken {
			fields[key] = a.Value.String()
		}
		return a
	}})
	for _, wrap := range h.wraps {
		text = wrap(text)
	}
	err := text.Handle(ctx, r)
	return b.String(), err
}

// priority is the level as syslog numbers it.
func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// fieldName converts an attribute's name to a journal field name.
func fieldName(name string) string {
	up := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
	if up == "" {
		return ""
	}
	return ("ZKAGENT_" + up)[:min(64, len("ZKAGENT_")+len(up))]
}
