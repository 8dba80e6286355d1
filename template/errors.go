package template

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	texttemplate "text/template"

	"github.com/agext/levenshtein"

	"github.com/zkagent/zkagent/view"
)

// Errors of [Parse] and [Template.Render] that callers branch on.
var (
	// ErrEmptyGroup: a group that the template uses has no member that is up, and the
	// template has no else for this case. The present file stays.
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
	b.WriteString(": " + e.Err.Error())
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
	letters := func(s string) string { return string(slices.Sorted(slices.Values([]byte(s)))) }
	best, bestDistance := "", min((len(name)+2)/3, 3)
	for _, c := range candidates {
		d := levenshtein.Distance(name, c, nil)
		if d == 2 && letters(name) == letters(c) { // two letters changed places
			d = 1
		}
		if d <= bestDistance && d < len(name) && (best == "" || d < bestDistance) {
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

// read is something that an execution read: a part of a tree, or one string
// (of the environment, of a file).
type read struct {
	tree   *view.Tree
	name   string // config
	prefix string // key or prefix in the tree
	value  string // when tree is nil
}

// minSecret is the length from which on a value is looked for in errors.
const minSecret = 4

var execPlace = regexp.MustCompile(`^:(\d+):(\d+): executing .*? at <.*?>: `)

// explain turns an error of text/template into an *Error: its place, the path
// of the value, and a text in which no value that was read remains.
func (st *state) explain(err error) error {
	out := &Error{Template: st.t.cfg.Name, Err: err}
	exec, isExec := errors.AsType[texttemplate.ExecError](err)
	for next, found := exec, isExec; found; next, found = errors.AsType[texttemplate.ExecError](errors.Unwrap(exec.Err)) {
		exec = next // the innermost of the chain
	}
	text := err.Error()
	if isExec {
		text = exec.Err.Error()
		rest := strings.TrimPrefix(text, "template: "+st.t.cfg.Name)
		if m := execPlace.FindStringSubmatch(strings.ReplaceAll(rest, "\n", " ")); m != nil {
			out.Line, _ = strconv.Atoi(m[1])
			column, _ := strconv.Atoi(m[2])
			out.Column, text = column+1, rest[len(m[0]):]
		}
	}
	if v, ok := errors.AsType[*valueError](err); ok {
		out.Value, out.Err = v.path, v
		if v.pos >= 0 {
			out.Line, out.Column = st.t.places[v.pos].line, st.t.places[v.pos].column
		}
		return out
	}
	if class := limitOf(err); class != nil {
		out.Err = class
		if p := st.near(); out.Line == 0 {
			out.Line, out.Column = p.line, p.column
		}
		return out
	}
	plain := st.plain(text, err)
	if value, ok := errors.AsType[*inputError](err); ok {
		if out.Value = st.pathOf(value.input); out.Value != "" {
			plain.text += fmt.Sprintf(" (value of %s)", out.Value)
		}
	}
	out.Err = plain
	return out
}

// near is the place that a writer, which knows none, can name: the latest
// guard, else the only loop there is.
func (st *state) near() place {
	switch {
	case st.last >= 0:
		return st.t.places[st.last]
	case len(st.t.loops) == 1:
		return st.t.loops[0]
	}
	return place{}
}

// limitOf returns the part of an error chain that names a limit.
func limitOf(err error) error {
	for _, class := range []error{ErrTooLarge, ErrTimeout, ErrDepth} {
		if errors.Is(err, class) {
			for next := err; next != nil; next = errors.Unwrap(next) {
				if strings.HasPrefix(next.Error(), "template: ") {
					continue
				}
				return next
			}
			return class
		}
	}
	return nil
}

// unlabelled says which members lack a label that the template names; empty: none that
// it reads does. Whoever may write a member can hold up the template by this.
func (st *state) unlabelled(text string) string {
	quote, isKey := strings.CutPrefix(text, "map has no entry for key ")
	label, err := strconv.Unquote(quote)
	if !isKey || err != nil || !slices.Contains(st.t.labels, label) {
		return ""
	}
	var list []string
	for _, s := range st.t.Uses().Sources(st.view.Sources()) {
		for _, g := range groupsOf(st.view.Get(s)) {
			for _, m := range st.printable(g.Members) {
				if _, ok := m.Labels[label]; !ok {
					list = append(list, fmt.Sprintf("member %.120q of group %.120q", m.ID, g.Name))
				}
			}
		}
	}
	if len(list) == 0 {
		return ""
	}
	more := ""
	if len(list) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(list)-1)
	}
	return fmt.Sprintf("%s%s has no label %q: {{ get .Labels %q }} prints nothing for it, {{ dig %q \"none\" .Labels }} a default; "+
		"error_on_missing_key = false prints nothing for any label that is missing", list[0], more, label, label, label)
}

func groupsOf(u view.Update) []*view.Group {
	switch u := u.(type) {
	case *view.Group:
		return []*view.Group{u}
	case *view.Groups:
		return u.Groups
	}
	return nil
}

// plain is an error whose text was cleared of values; its class is only for errors.Is.
func (st *state) plain(text string, err error) *valueError {
	if text := st.unlabelled(text); text != "" {
		return &valueError{text: text, class: ErrMissing}
	}
	var class error
	if strings.HasPrefix(text, "map has no entry for key ") || strings.HasPrefix(text, "nil data; no entry for key ") {
		class = ErrMissing
	}
	for _, s := range []error{ErrMissing, ErrNoKey, ErrUnknown, ErrEmptyGroup} {
		if errors.Is(err, s) {
			class = s
		}
	}
	// Others wrote the text: what was read in this execution must not stand in it, and
	// no quoted part that does not stand in the template.
	for _, r := range st.reads {
		text = r.redact(text)
	}
	return &valueError{text: st.t.redactPlain(text), class: class}
}

var (
	quoted   = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|'[^']*'")
	iterates = regexp.MustCompile(`(?s)(range can't iterate over ).*`)
	twoVars  = regexp.MustCompile(`(?s)(can't use ).*( to iterate over more than one variable)`)
)

const redacted = "[redacted]"

func (t *Template) redactPlain(text string) string {
	text = iterates.ReplaceAllString(text, "${1}a value of this type")
	text = twoVars.ReplaceAllString(text, "${1}this value${2}")
	return quoted.ReplaceAllStringFunc(text, func(q string) string {
		inner := q[1 : len(q)-1]
		if u, err := strconv.Unquote(q); err == nil {
			inner = u
		}
		if inner == redacted || strings.Contains(t.cfg.Source, inner) {
			return q
		}
		return q[:1] + redacted + q[len(q)-1:]
	})
}

func (r read) redact(text string) string {
	hide := func(v string) {
		for _, v := range []string{v, strings.TrimSpace(v), strings.Trim(strconv.Quote(v), `"`)} {
			if len(v) >= minSecret {
				text = strings.ReplaceAll(text, v, redacted)
			}
		}
	}
	if r.tree == nil {
		hide(r.value)
		return text
	}
	r.tree.Walk(r.prefix, func(_ string, k view.Key) bool {
		hide(string(k.Value))
		return true
	})
	return text
}

// inputError is an error of a function about its input, which it does not
// show: the path of the input is looked up where the error is reported.
type inputError struct {
	input string
	text  string
}

func (e *inputError) Error() string { return e.text }

// pathOf returns the path of the value that was read and equals s, or "".
func (st *state) pathOf(s string) string {
	path := ""
	for i := len(st.reads) - 1; i >= 0 && path == ""; i-- {
		r := st.reads[i]
		if r.tree == nil {
			continue
		}
		r.tree.Walk(r.prefix, func(p string, k view.Key) bool {
			if string(k.Value) == s {
				path = r.name + "/" + p
			}
			return path == ""
		})
	}
	return path
}
