package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/dev"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1  // failed or refused; with --exit-code: there is a difference
	exitUsage       = 2  // wrong usage
	exitUnavailable = 69 // ZooKeeper or the agent's socket cannot be reached
	exitSoftware    = 70 // failed, where 1 means a difference
	exitTemporary   = 75 // not obtained in time, or another version is in use
	exitLost        = 76 // the lock, leadership or item was lost while the command ran
	exitPermission  = 77 // ACL, socket mode, file mode
	exitConfig      = 78 // the settings are invalid
	exitSignal      = 128
)

type cliError struct {
	code  int
	err   error
	hints []string
}

func (e *cliError) Error() string { return e.err.Error() }
func (e *cliError) Unwrap() error { return e.err }

// fail gives an error an exit code and hints.
func fail(code int, err error, hints ...string) error {
	if err == nil {
		return nil
	}
	return &cliError{code: code, err: err, hints: hints}
}

// failf is fail with a formatted text.
func failf(code int, format string, args ...any) error {
	return &cliError{code: code, err: fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return failf(exitUsage, format, args...) }

// codeError ends the program with a code and prints nothing, because the message
// was printed already.
type codeError int

func (c codeError) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return "interrupted by " + e.signal.String() }

// finish prints the error and returns the exit code.
func (g *globals) finish(ctx context.Context, err error) int {
	if c, ok := errors.AsType[codeError](err); ok || err == nil {
		if err = g.Failed(); err == nil {
			return int(c)
		}
	}
	e := classify(err)
	if !g.started && e.code == exitFailed {
		e = &cliError{code: exitUsage, err: err, hints: []string{"see \"zkagent help\""}}
	}
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok && (errors.Is(err, context.Canceled) || errors.Is(err, s)) {
		return exitSignal + int(s.signal)
	}
	return g.notify(e)
}

// notify prints an error with its hints and returns its exit code.
func (g *globals) notify(e *cliError) int {
	if diags, ok := errors.AsType[hcl.Diagnostics](e.err); !ok || !g.shown {
		g.Errorf("%s", strings.TrimSpace(e.err.Error()))
	} else {
		g.Errorf("settings are invalid: %s", term.Count(len(diags.Errs()), "error"))
	}
	for i, h := range e.hints {
		e.hints[i] = g.hint(h)
	}
	if g.IsJSON() { // machines read standard output
		name := "failed"
		if i := slices.IndexFunc(exitCodes, func(c exitCode) bool { return c.code == e.code }); i >= 0 {
			name = exitCodes[i].name
		}
		_ = g.Line(map[string]any{"error": map[string]any{"code": name, "message": e.err.Error(), "hint": strings.Join(e.hints, "; ")}})
	}
	return e.code
}

var quotedCommand = regexp.MustCompile(`"zkagent [^"]+"`)

// hint prints a hint and returns it.
func (g *globals) hint(text string) string {
	g.Say("hint: %s", text)
	return g.here(text)
}

// here adds to the commands in a text the flags by which this command found its
// ensemble and settings.
func (g *globals) here(text string) string {
	words := append([]string{""}, g.whereWords()...)
	if g.addr != "" {
		words = append(words, "--addr", term.ShellWord(g.addr))
	}
	where := strings.Join(words, " ")
	return quotedCommand.ReplaceAllStringFunc(text, func(command string) string {
		if strings.HasSuffix(command, ` --help"`) {
			return command
		}
		command, own, dashes := strings.Cut(strings.Trim(command, `"`), " -- ")
		if dashes {
			own = " -- " + own
		}
		return `"` + command + where + own + `"`
	})
}

// class says how to report an error of a lower layer: exit code, meaning and hint.
type class struct {
	is   error
	code int
	hint string
}

var classes = []class{
	{session.ErrTLS, exitPermission, "check the tls block of the settings: the certificates, and the host names in servers"},
	{session.ErrNoServer, exitUnavailable, "is ZooKeeper running at that address? \"zkagent doctor\" asks each server"},
	{session.ErrAuthFailed, exitPermission, "check the auth block of the settings, or $ZKAGENT_AUTH"},
	{session.ErrNoAuth, exitPermission, "give credentials by an auth block of the settings or $ZKAGENT_AUTH; \"zkagent zk whoami PATH\" shows your permissions"},
	{session.ErrExpired, exitUnavailable, "the session ended while the command ran; try again"},
	{session.ErrUnknown, exitFailed, "the reply was lost, so it may have happened or not; look before trying again"},
	{session.ErrBadPath, exitUsage, "znode paths are absolute, as in /services/web"},
	{recipe.ErrFull, exitTemporary, ""},
	{recipe.ErrPriority, exitUsage, ""},
	{fleet.ErrConflict, exitTemporary, "somebody else has published; plan again"},
	{fleet.ErrFrozen, exitFailed, ""},
	{config.ErrBounds, exitFailed, "check the source directory; --force publishes it anyway"},
	{dev.ErrSettings, exitConfig, ""},
	{fs.ErrPermission, exitPermission, ""},
}

// classify finds the exit code and the hint of an error.
func classify(err error) *cliError {
	if e, ok := errors.AsType[*cliError](err); ok {
		return &cliError{code: e.code, err: err, hints: e.hints}
	}
	if _, ok := errors.AsType[hcl.Diagnostics](err); ok {
		return &cliError{code: exitConfig, err: err}
	}
	for _, c := range classes {
		if errors.Is(err, c.is) {
			e := &cliError{code: c.code, err: err}
			if c.hint != "" {
				e.hints = []string{c.hint}
			}
			return e
		}
	}
	if h, ok := errors.AsType[*term.HintError](err); ok {
		return &cliError{code: exitFailed, err: err, hints: []string{h.Hint}}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &cliError{code: exitTemporary, err: err, hints: []string{"--timeout allows more time"}}
	}
	return &cliError{code: exitFailed, err: err}
}

// exitCode describes an exit code: its name in JSON, and its texts in the man page and
// in the reference.
type exitCode struct {
	code             int
	name, text, when string
}

var exitCodes = []exitCode{
	{exitOK, "ok", "done; no difference", "Everything worked."},
	{exitFailed, "failed", "failed or refused; with --exit-code: there is a difference", "The command was understood and did not succeed: a check refused a file, a config is frozen, a key does not exist, a reload failed."},
	{exitUsage, "usage", "wrong usage", "Unknown commands or flags, missing arguments, a question without a terminal and without `--yes`."},
	{exitUnavailable, "unavailable", "ZooKeeper or the agent's socket cannot be reached", "No server answered in time, the session expired meanwhile, or no agent runs on this host."},
	{exitSoftware, "failed", "failed, where 1 means a difference", "Failures of commands that were given `--exit-code`."},
	{exitTemporary, "not_obtained", "not obtained in time, or another version is in use", "A lock, barrier or queue item was not obtained; `--check-version` did not match. Trying again later makes sense."},
	{exitLost, "lost", "the lock, leadership or item was lost while the command ran", "`lock` and `elect`: the session or the znode was lost. zkagent ended the command before another could begin."},
	{exitPermission, "permission", "not permitted: ACL, socket mode, file mode", "An ACL of ZooKeeper, the mode of the agent's socket or of a file does not allow it."},
	{exitConfig, "invalid_settings", "the settings are invalid", "Every command that reads settings. The unit has `RestartPreventExitStatus=78`, so that systemd does not restart an agent that cannot start."},
}
