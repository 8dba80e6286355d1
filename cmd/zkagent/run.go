package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
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
	var l slog.Level
	if err := l.UnmarshalText([]byte(text)); err != nil {
		l = slog.LevelInfo
	}
	if verbose {
		l = slog.LevelDebug
	}
	v.Set(l)
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
