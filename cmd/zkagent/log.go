package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/journal"
)

// wraps give a handler the attributes and groups of a logger.
type wraps []func(slog.Handler) slog.Handler

func (w wraps) around(h slog.Handler) slog.Handler {
	for _, wrap := range w {
		h = wrap(h)
	}
	return h
}

// recordHandler passes each record on with the attributes and groups of its logger, to a
// handler that is known late or is made for the record.
type recordHandler struct {
	enabled func(context.Context, slog.Level) bool
	handle  func(context.Context, slog.Record, wraps) error
	wrap    wraps
}

// Enabled implements slog.Handler.
func (h *recordHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *recordHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.handle(ctx, r, h.wrap)
}

func (h *recordHandler) with(fn func(slog.Handler) slog.Handler) slog.Handler {
	return &recordHandler{enabled: h.enabled, handle: h.handle, wrap: append(slices.Clip(h.wrap), fn)}
}

// WithAttrs implements slog.Handler.
func (h *recordHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *recordHandler) WithGroup(name string) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })
}

// lateHandler passes records to a handler that is set later, because loggers are
// created before the settings that configure them are read. It drops records until
// then.
func lateHandler(later *atomic.Pointer[slog.Handler]) slog.Handler {
	target := func() slog.Handler {
		if h := later.Load(); h != nil {
			return *h
		}
		return slog.DiscardHandler
	}
	return &recordHandler{
		enabled: func(ctx context.Context, l slog.Level) bool { return target().Enabled(ctx, l) },
		handle:  func(ctx context.Context, r slog.Record, w wraps) error { return w.around(target()).Handle(ctx, r) },
	}
}

// journalHandler writes entries for the journal. With send, an entry has fields: PRIORITY,
// MESSAGE (the line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. Without send, and when the journal rejects an entry,
// it is a line on out with its level in front.
func journalHandler(out io.Writer, level slog.Leveler, send func(message string, level journal.Priority, fields map[string]string) error) slog.Handler {
	return &recordHandler{
		enabled: func(_ context.Context, l slog.Level) bool { return l >= level.Level() },
		handle: func(ctx context.Context, r slog.Record, w wraps) error {
			fields := map[string]string{"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": r.Message}
			line, err := journalLine(ctx, r, w, fields)
			if err != nil || send != nil && send(strings.TrimSuffix(line, "\n"), priority(r.Level), fields) == nil {
				return err
			}
			_, err = fmt.Fprintf(out, "<%d>%s", priority(r.Level), line) // one write a line: lines do not mix
			return err
		},
	}
}

// journalLine is "message key=value". It omits time and level, which the journal adds. The
// attributes are added to fields, a group as a prefix; the first of a name counts.
func journalLine(ctx context.Context, r slog.Record, w wraps, fields map[string]string) (string, error) {
	b := bytes.NewBufferString(r.Message)
	if r.NumAttrs() > 0 || len(w) > 0 {
		b.WriteByte(' ')
	}
	err := w.around(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		key := fieldName(strings.Join(append(slices.Clone(groups), a.Key), "_"))
		if _, taken := fields[key]; key != "" && !taken {
			fields[key] = a.Value.String()
		}
		return a
	}})).Handle(ctx, r)
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
