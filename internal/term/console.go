// Package term prints for the commands: data to standard output, everything else to
// standard error, tables for people and JSON for machines.
//
// Others write the names and data in ZooKeeper, so term escapes control characters in
// them: such text cannot control a terminal.
package term

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Console holds the streams of one command, and how it shows what it shows.
type Console struct {
	// Raw: data on a terminal is not escaped.
	Raw      bool
	In       io.Reader
	Out, Err io.Writer

	Format  string // one of Formats
	Quiet   bool   // no talk on Err, errors only
	Color   string // auto, always or never
	NoColor bool

	NoHeaders bool // tables have no header

	// Here completes the commands in what is said, so that they find what this
	// command has found; nil: they are complete.
	Here func(text string) string

	documents int   // written so far, with yaml
	failed    error // the first error of writing to Out
}

// Failed returns the first error of writing data. Nothing is written after it, so
// that a command may check for it once, at its end.
func (c *Console) Failed() error { return c.failed }

// write writes data to Out, or to Out without its guard.
func (c *Console) write(out io.Writer, p []byte) error {
	if c.failed == nil {
		_, c.failed = out.Write(p)
	}
	return c.failed
}

// IsTerminal reports whether the stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := File(stream)
	if !ok {
		return false
	}
	return term.IsTerminal(int(f.Fd()))
}

// UseColor reports whether the stream gets colour.
func (c *Console) UseColor(stream any) bool {
	switch {
	case c.Color == "always":
		return true
	case c.Color == "never" || c.NoColor || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb":
		return false
	}
	return IsTerminal(stream)
}

// Colored wraps a word in a colour when the stream shows colours.
func (c *Console) Colored(w io.Writer, code, s string) string {
	if code == "" || !c.UseColor(w) {
		return s
	}
	return paint(w) + code + "m" + s + paint(w) + "0m"
}

// Say talks on standard error, unless it is quiet.
func (c *Console) Say(format string, args ...any) {
	if c.Quiet {
		return
	}
	text := fmt.Sprintf(format, args...)
	if c.Here != nil {
		text = c.Here(text)
	}
	_, _ = fmt.Fprintln(c.Err, text)
}

// Printf prints data.
func (c *Console) Printf(format string, args ...any) {
	_ = c.write(c.Out, fmt.Appendf(nil, format, args...))
}

// Errorf prints an error line.
func (c *Console) Errorf(format string, args ...any) {
	word := c.Colored(c.Err, "31", "error:")
	_, _ = fmt.Fprintf(c.Err, word+" "+format+"\n", args...)
}

// Warnf prints a warning, unless it is quiet.
func (c *Console) Warnf(format string, args ...any) { c.Say("warning: "+format, args...) }

// HintError is an error that says what to do about it.
type HintError struct {
	Err  error
	Hint string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }
