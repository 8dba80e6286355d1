package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
)

func newRunCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run the agent",
		Long: `Run the agent in the foreground until SIGTERM or SIGINT. SIGHUP loads the
settings again; if they are invalid, the agent reports it and keeps the old ones.
The agent resumes the session that a previous process left in the state directory.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			level := &slog.LevelVar{}
			s, err := g.loadSettings(settings.Options{})
			if err != nil {
				return err
			}
			cfg := s.Config
			setLevel(level, cfg.Log.Level, g.verbose)
			cfg.Logger = slog.New(logHandler(&g.Console, cfg.Log.Format, level))
			cfg.Version = buildVersion()
			cfg.Load = func() (agent.Config, error) { return reloadSettings(g, cfg.Logger, level) }
			a, err := agent.New(cfg)
			if err != nil {
				return fail(exitConfig, err)
			}
			defer time.AfterFunc(settled, dropText).Stop()
			// The agent has handlers of its own for the signals that end it.
			g.stopSignals()
			if c.Context().Err() != nil { // it was ended before it began
				return context.Cause(c.Context())
			}
			switch err := a.RunSignals(context.WithoutCancel(c.Context())); {
			case err == nil:
				return nil
			case errors.Is(err, agent.ErrUpgrade):
				return agent.Exec()
			case errors.Is(err, agent.ErrForced):
				return fail(exitFailed, err)
			default:
				return childOf(err)
			}
		},
	}
}

// childOf returns the exit code of a supervised program if its end has ended the
// agent.
func childOf(err error) error {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) && coded.ExitCode() > 0 {
		return &cliError{code: coded.ExitCode(), err: err}
	}
	return err
}

// reloadSettings loads the settings again for a running agent.
func reloadSettings(g *globals, logger *slog.Logger, level *slog.LevelVar) (agent.Config, error) {
	s, err := settings.Load(g.configPaths(), settings.Options{})
	for _, d := range s.Diagnostics {
		logger.Warn("settings", "diagnostic", settings.Line(d))
	}
	if err != nil {
		return agent.Config{}, err
	}
	setLevel(level, s.Config.Log.Level, g.verbose)
	s.Config.Version = buildVersion()
	return s.Config, nil
}

func setLevel(v *slog.LevelVar, text string, verbose bool) {
	if v.UnmarshalText([]byte(text)) != nil {
		v.Set(slog.LevelInfo)
	}
	if verbose {
		v.Set(slog.LevelDebug)
	}
}

// logHandler is where and how the agent logs: standard error, as text, or as JSON.
// Under systemd, entries go to the journal with their fields. Without the journal's
// socket they are lines with the level as a number in front; the journal adds the
// time.
func logHandler(console *term.Console, format string, level slog.Leveler) slog.Handler {
	if format == "json" {
		return slog.NewJSONHandler(console.Err, &slog.HandlerOptions{Level: level})
	}
	if under, _ := journal.StderrIsJournalStream(); under && format == "auto" {
		if journal.Enabled() {
			return journalHandler{out: console.Err, level: level, send: journal.Send}
		}
		return journalHandler{out: console.Err, level: level}
	}
	return slog.NewTextHandler(console.Err, &slog.HandlerOptions{Level: level})
}

// settled is the time after which an agent has finished its start-up work.
const settled = 15 * time.Second

// dropText releases the memory pages of the program's code. A start touches most of
// the code, an idle agent little. The kernel keeps the pages in its cache and maps
// them again on use, without reading the disk. Code pages are never written, so no
// data is lost. If dropText cannot read the layout of the process, it does nothing.
func dropText() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for start, end := range textRanges(maps, exe) {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED)
	}
}

// textRanges yields the address ranges of a program's code, from /proc/self/maps.
func textRanges(maps []byte, exe string) func(func(start, end uintptr) bool) {
	return func(yield func(uintptr, uintptr) bool) {
		for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) != 6 || f[1] != "r-xp" || f[5] != exe {
				continue
			}
			from, to, _ := strings.Cut(f[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && start < end && !yield(uintptr(start), uintptr(end)) {
				return
			}
		}
	}
}

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
