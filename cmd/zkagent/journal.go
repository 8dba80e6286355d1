package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"slices"
	"strings"
)

// journalSocket takes entries in the journal's own form.
const journalSocket = "/run/systemd/journal/socket"

// nativeHandler writes entries with fields to the journal: PRIORITY, MESSAGE (the
// line that journalctl shows, attributes included), ZKAGENT_EVENT (the message
// alone) and each attribute as ZKAGENT_NAME, so that for example "journalctl
// ZKAGENT_TEMPLATE=web" finds them. If the socket rejects an entry, the entry goes
// to the line handler.
type nativeHandler struct {
	conn  net.Conn
	line  *journalHandler // makes the line, and is the way out
	attrs []slog.Attr
	group string
}

// newNativeHandler connects to the journal. It returns nil if it cannot.
func newNativeHandler(socket string, line *journalHandler) *nativeHandler {
	conn, err := net.Dial("unixgram", socket) //nolint:noctx // a datagram socket connects at once.
	if err != nil {
		return nil
	}
	return &nativeHandler{conn: conn, line: line}
}

// Enabled implements slog.Handler.
func (h *nativeHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.line.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h *nativeHandler) Handle(ctx context.Context, r slog.Record) error {
	var text bytes.Buffer
	line := *h.line
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
		return h.line.Handle(ctx, r)
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
	n.line, _ = h.line.WithAttrs(attrs).(*journalHandler)
	return &n
}

// WithGroup implements slog.Handler.
func (h *nativeHandler) WithGroup(name string) slog.Handler {
	n := *h
	n.group = h.group + name + "_"
	n.line, _ = h.line.WithGroup(name).(*journalHandler)
	return &n
}
