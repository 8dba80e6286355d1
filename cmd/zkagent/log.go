package main

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"
)

// lateHandler passes records to a handler that is set later, because loggers are
// created before the settings that configure them are read. It drops records until
// then.
type lateHandler struct {
	shared *atomic.Pointer[slog.Handler]
	wrap   []func(slog.Handler) slog.Handler
}

// late gives the loggers their handler.
func late(l *slog.Logger, h slog.Handler) {
	if lh, ok := l.Handler().(*lateHandler); ok {
		lh.shared.Store(&h)
	}
}

// newLateHandler returns a handler whose target [late] sets.
func newLateHandler() *lateHandler { return &lateHandler{shared: &atomic.Pointer[slog.Handler]{}} }

// target is the handler with the attributes of this logger; nil before it is
// known.
func (h *lateHandler) target() slog.Handler {
	p := h.shared.Load()
	if p == nil {
		return nil
	}
	t := *p
	for _, w := range h.wrap {
		t = w(t)
	}
	return t
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
	wrap  []func(slog.Handler) slog.Handler
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
	for _, w := range h.wrap {
		t = w(t)
	}
	if err := t.Handle(ctx, r); err != nil {
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

// deviceOf is the device and inode of a file.
func deviceOf(info fs.FileInfo) (uint64, uint64, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return uint64(st.Dev), st.Ino, true //nolint:unconvert // int32 on macOS
}
