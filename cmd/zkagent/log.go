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

// lineHandler writes lines for the journal.
func lineHandler(out io.Writer, level slog.Leveler) *recordHandler {
	return &recordHandler{
		enabled: func(_ context.Context, l slog.Level) bool { return l >= level.Level() },
		handle: func(ctx context.Context, r slog.Record, w wraps) error {
			line, err := journalLine(ctx, r, w)
			if err == nil {
				_, err = fmt.Fprintf(out, "<%d>%s", priority(r.Level), line) // one write a line: lines do not mix
			}
			return err
		},
	}
}

// journalLine is "message key=value". It omits time and level, which the journal adds.
func journalLine(ctx context.Context, r slog.Record, w wraps) (string, error) {
	b := bytes.NewBufferString(r.Message)
	if r.NumAttrs() > 0 || len(w) > 0 {
		b.WriteByte(' ')
	}
	err := w.around(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
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

// fieldHandler writes entries with fields to the journal: PRIORITY, MESSAGE (the
// line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. If the journal rejects an entry, the entry goes
// to the handler of lines.
func fieldHandler(lines *recordHandler, send func(message string, level journal.Priority, fields map[string]string) error) slog.Handler {
	return &recordHandler{enabled: lines.enabled, handle: func(ctx context.Context, r slog.Record, w wraps) error {
		message, err := journalLine(ctx, r, w)
		if err != nil {
			return err
		}
		fields := map[string]string{"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": r.Message}
		if err := w.around(fieldCollector{fields: fields}).Handle(ctx, r); err != nil {
			return err
		}
		if send(strings.TrimSuffix(message, "\n"), priority(r.Level), fields) != nil {
			return lines.handle(ctx, r, w)
		}
		return nil
	}}
}

// fieldCollector collects the fields of one record.
type fieldCollector struct {
	fields map[string]string
	prefix string // of its groups
}

// Enabled implements slog.Handler.
func (c fieldCollector) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c fieldCollector) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		addFields(c.fields, c.prefix, a)
		return true
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (c fieldCollector) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		addFields(c.fields, c.prefix, a)
	}
	return c
}

// WithGroup implements slog.Handler.
func (c fieldCollector) WithGroup(name string) slog.Handler {
	return fieldCollector{c.fields, c.prefix + name + "_"}
}

// addFields adds an attribute; a group becomes a prefix. The first of a name counts.
func addFields(fields map[string]string, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	name := prefix + a.Key
	if v.Kind() == slog.KindGroup {
		for _, inner := range v.Group() {
			addFields(fields, name+"_", inner)
		}
		return
	}
	key := fieldName(name)
	if _, taken := fields[key]; key != "" && !taken {
		fields[key] = v.String()
	}
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
