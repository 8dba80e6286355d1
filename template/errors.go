package template

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agext/levenshtein"
)

// Errors of [Parse] and [Template.Render] that callers branch on.
var (
	// ErrEmptyGroup: a group that the template uses has no member that is up, and
	// nothing says what to write then: the present file stays.
	ErrEmptyGroup = errors.New("group has no members")
	// ErrNoKey: a key of a config that is not there. The present file stays, and
	// the first one waits for the key.
	ErrNoKey = fmt.Errorf("%w: key", ErrMissing)
	// ErrMissing: a key, a map entry or a group member that is not there.
	ErrMissing = errors.New("no such value")
	// ErrUnknown: a config, group or election that is not in the view.
	ErrUnknown = errors.New("not declared")
	// ErrTooLarge: the output, or one value, exceeds the limit of size.
	ErrTooLarge = errors.New("too large")
	// ErrTimeout: the execution took longer than its limit of time.
	ErrTimeout = errors.New("execution took too long")
	// ErrDepth: templates call each other too deeply.
	ErrDepth = errors.New("templates are nested too deeply")
	// ErrSyntax: the rendered bytes do not parse in the declared syntax.
	ErrSyntax = errors.New("rendered bytes do not parse")
	// ErrNotAllowed: env or file without the setting that allows it.
	ErrNotAllowed = errors.New("not allowed")
	// ErrQuote: a value that a quoting helper cannot quote.
	ErrQuote = errors.New("cannot be quoted")
)

// Error is an error at a place in a template. Its text never holds a value
// that was read from the view, the environment or a file.
type Error struct {
	Template string // name of the template
	Line     int    // from 1; 0: unknown
	Column   int    // in bytes, from 1; 0: unknown
	Value    string // path of the value that was read, such as "web/timeout"
	Err      error
}

// Error returns "name:line:column: what".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Template)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if _, reported := errors.AsType[*valueError](e.Err); e.Value != "" && !reported {
		fmt.Fprintf(&b, " (value of %s)", e.Value)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// valueError is an error of one of our own functions. Its text names paths
// and types only, so it needs no redaction.
type valueError struct {
	path  string // path of the value; may be empty
	text  string
	class error // sentinel; may be nil
	pos   int   // index into the positions of the parse, -1 when the call itself is the place
}

func (e *valueError) Error() string { return e.text }
func (e *valueError) Unwrap() error { return e.class }

func failf(class error, path, format string, args ...any) error {
	return &valueError{path: path, text: fmt.Sprintf(format, args...), class: class, pos: -1}
}

// Nearest returns the candidate that was probably meant, or "".
func Nearest(name string, candidates []string) string {
	for _, c := range candidates {
		if strings.EqualFold(strings.ReplaceAll(name, "_", ""), c) {
			return c
		}
	}
	best, bestDistance := "", len(name)/3+1
	for _, c := range candidates {
		if d := levenshtein.Distance(name, c, nil); d <= bestDistance && d < max(len(name), 1) && (best == "" || d < bestDistance) {
			best, bestDistance = c, d
		}
	}
	return best
}

func meant(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}
