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

// lateHandler passes records to a handler that is set later, because loggers are
// created before the settings that configure them are read. It drops records until
// then.
type lateHandler struct {
	shared *atomic.Pointer[slog.Handler]
	wrap   wraps
}

// wraps give a handler the attributes and groups of a logger.
type wraps []func(slog.Handler) slog.Handler

func (w wraps) around(h slog.Handler) slog.Handler {
	for _, wrap := range w {
		h = wrap(h)
	}
	return h
}

// target is the handler with the attributes of this logger; nil before it is
// known.
func (h *lateHandler) target() slog.Handler {
	p := h.shared.Load()
	if p == nil {
		return nil
	}
	return h.wrap.around(*p)
}

// Enabled implements slog.Handler.
func (h *lateHandler) Enabled(ctx context.Context, l slog.Level) bool {
	t := h.target()
	return t != nil && t.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h *lateHandler) Handle(ctx context.Context, r slog.Record) error {
	t := h.target()
	if t == nil {
		return nil
	}
	return t.Handle(ctx, r)
}

func (h *lateHandler) with(fn func(slog.Handler) slog.Handler) slog.Handler {
	return &lateHandler{shared: h.shared, wrap: append(slices.Clip(h.wrap), fn)}
}

// WithAttrs implements slog.Handler.
func (h *lateHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *lateHandler) WithGroup(name string) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })
}

// journalHandler writes lines for the journal: "<6>message key=value", with the
// syslog level in front. It omits time and level, which the journal adds.
type journalHandler struct {
	out   io.Writer
	level slog.Leveler
	wrap  wraps
}

// Enabled implements slog.Handler.
func (h *journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle implements slog.Handler.
func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<%d>%s", priority(r.Level), r.Message)
	if r.NumAttrs() > 0 || len(h.wrap) > 0 {
		b.WriteByte(' ')
	}
	var t slog.Handler = slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return a
	}})
	if err := h.wrap.around(t).Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.out.Write(b.Bytes()) // one write a line: lines do not mix
	return err
}

func (h *journalHandler) with(fn func(slog.Handler) slog.Handler) slog.Handler {
	return &journalHandler{out: h.out, level: h.level, wrap: append(slices.Clip(h.wrap), fn)}
}

// WithAttrs implements slog.Handler.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *journalHandler) WithGroup(name string) slog.Handler {
	return h.with(func(t slog.Handler) slog.Handler { return t.WithGroup(name) })
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

// nativeHandler writes entries with fields to the journal: PRIORITY, MESSAGE (the
// line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. If the journal rejects an entry, the entry goes
// to the line handler.
type nativeHandler struct {
	*journalHandler // makes the line, and is the way out

	send  func(message string, level journal.Priority, fields map[string]string) error
	attrs []slog.Attr
	group string
}

// Handle implements slog.Handler.
func (h *nativeHandler) Handle(ctx context.Context, r slog.Record) error {
	var text bytes.Buffer
	line := *h.journalHandler
	line.out = &text
	if err := line.Handle(ctx, r); err != nil {
		return err
	}
	fields := map[string]string{"SYSLOG_IDENTIFIER": "zkagent", "ZKAGENT_EVENT": r.Message}
	for _, a := range h.attrs {
		addFields(fields, "", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		addFields(fields, h.group, a)
		return true
	})
	_, message, _ := strings.Cut(strings.TrimSuffix(text.String(), "\n"), ">")
	if h.send(message, priority(r.Level), fields) != nil {
		return h.journalHandler.Handle(ctx, r)
	}
	return nil
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

// WithAttrs implements slog.Handler.
func (h *nativeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	n.attrs = slices.Clip(h.attrs)
	for _, a := range attrs {
		n.attrs = append(n.attrs, slog.Attr{Key: h.group + a.Key, Value: a.Value})
	}
	n.journalHandler, _ = h.journalHandler.WithAttrs(attrs).(*journalHandler)
	return &n
}

// WithGroup implements slog.Handler.
func (h *nativeHandler) WithGroup(name string) slog.Handler {
	n := *h
	n.group = h.group + name + "_"
	n.journalHandler, _ = h.journalHandler.WithGroup(name).(*journalHandler)
	return &n
}
