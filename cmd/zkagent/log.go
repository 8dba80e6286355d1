package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
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
	b.WriteString(priority(r.Level))
	b.WriteString(r.Message)
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
func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "<3>"
	case l >= slog.LevelWarn:
		return "<4>"
	case l >= slog.LevelInfo:
		return "<6>"
	}
	return "<7>"
}

// journalSocket takes entries in the journal's own form.
const journalSocket = "/run/systemd/journal/socket"

// nativeHandler writes entries with fields to the journal: PRIORITY, MESSAGE (the
// line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. If the socket rejects an entry, the entry goes
// to the line handler.
type nativeHandler struct {
	*journalHandler // makes the line, and is the way out

	conn  net.Conn
	attrs []slog.Attr
	group string
}

// newNativeHandler connects to the journal. It returns nil if it cannot.
func newNativeHandler(socket string, line *journalHandler) *nativeHandler {
	conn, err := net.Dial("unixgram", socket) //nolint:noctx // a datagram socket connects at once.
	if err != nil {
		return nil
	}
	return &nativeHandler{journalHandler: line, conn: conn}
}

// Handle implements slog.Handler.
func (h *nativeHandler) Handle(ctx context.Context, r slog.Record) error {
	var text bytes.Buffer
	line := *h.journalHandler
	line.out = &text
	if err := line.Handle(ctx, r); err != nil {
		return err
	}
	level := priority(r.Level)
	var b bytes.Buffer
	field(&b, "PRIORITY", strings.Trim(level, "<>"))
	field(&b, "SYSLOG_IDENTIFIER", "zkagent")
	field(&b, "MESSAGE", strings.TrimSuffix(strings.TrimPrefix(text.String(), level), "\n"))
	field(&b, "ZKAGENT_EVENT", r.Message)
	seen := map[string]bool{"ZKAGENT_EVENT": true}
	add := func(prefix string, a slog.Attr) { fields(&b, seen, prefix, a) }
	for _, a := range h.attrs {
		add("", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		add(h.group, a)
		return true
	})
	if _, err := h.conn.Write(b.Bytes()); err != nil {
		return h.journalHandler.Handle(ctx, r)
	}
	return nil
}

// fields adds an attribute; a group becomes a prefix.
func fields(b *bytes.Buffer, seen map[string]bool, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	name := prefix + a.Key
	if v.Kind() == slog.KindGroup {
		for _, inner := range v.Group() {
			fields(b, seen, name+"_", inner)
		}
		return
	}
	key := fieldName(name)
	if key == "" || seen[key] {
		return
	}
	seen[key] = true
	field(b, key, v.String())
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

// field writes one field; a value of several lines with its length.
func field(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	if !strings.Contains(value, "\n") {
		b.WriteString("=" + value + "\n")
		return
	}
	b.WriteByte('\n')
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(value))))
	b.WriteString(value + "\n")
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
