// Package term prints for the commands: data to standard output, everything else to
// standard error, tables for people and JSON for machines.
//
// Others write the names and data in ZooKeeper, so term escapes control characters in
// them: such text cannot control a terminal.
package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v2"
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
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns a terminal has; 0: unknown.
func Width(stream any) int {
	f, ok := File(stream)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 with an error
	return width
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

// Formats are the values of --output.
var Formats = []string{"text", "wide", "json", "yaml", "ndjson"}

// IsJSON reports whether machines read the output: json, yaml or ndjson.
func (c *Console) IsJSON() bool {
	return c.Format == "json" || c.Format == "yaml" || c.Format == "ndjson"
}

// PrintJSON writes one object.
func (c *Console) PrintJSON(key string, v any) error {
	return c.PrintObject(map[string]any{key: v})
}

// PrintObject is PrintJSON with several keys.
func (c *Console) PrintObject(fields map[string]any) error {
	return c.document(fields, c.Format == "json")
}

// PrintResult writes an object for machines, and a text for people.
func (c *Console) PrintResult(key string, v any, format string, args ...any) error {
	if c.IsJSON() {
		return c.PrintJSON(key, v)
	}
	c.Printf(format, args...)
	return c.failed
}

// PrintRows writes a list for machines, and a table for people with a row of cells
// for each element.
func PrintRows[T any](c *Console, key string, list []T, header []string, cells func(T) []string) error {
	if c.IsJSON() {
		return PrintList(c, key, list)
	}
	t := &Table{Header: header}
	for _, e := range list {
		t.Add(cells(e)...)
	}
	return c.PrintTable(t)
}

// PrintList writes a list: with ndjson one line an element.
func PrintList[T any](c *Console, key string, list []T) error {
	if c.Format != "ndjson" {
		if list == nil {
			list = []T{}
		}
		return c.PrintJSON(key, list)
	}
	for _, e := range list {
		if err := c.Line(e); err != nil {
			return err
		}
	}
	return nil
}

// Line writes one JSON object as one line, for streams of events. With yaml each
// is a document.
func (c *Console) Line(v any) error { return c.document(v, false) }

func (c *Console) document(v any, indent bool) error {
	data, err := Document(v)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	switch {
	case c.Format == "yaml":
		if c.documents++; c.documents > 1 {
			out.WriteString("---\n")
		}
		var fields yaml.MapSlice // in the same order; JSON is YAML, so that the one reads the other
		if err := yaml.Unmarshal(data, &fields); err != nil {
			return err
		}
		if data, err = yaml.Marshal(fields); err != nil {
			return err
		}
		out.Write(data)
	case indent:
		if err := json.Indent(&out, data, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
	default:
		out.Write(append(data, '\n'))
	}
	return c.write(c.Out, out.Bytes())
}

// Document is v as a JSON object that begins with the version of the format. What
// is no object becomes the field "item".
func Document(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	fields, object := bytes.CutPrefix(bytes.TrimSpace(EscapeJSON(b.Bytes())), []byte("{"))
	switch {
	case !object:
		fields = append([]byte(`"item":`), append(fields, '}')...)
	case bytes.HasPrefix(fields, []byte(`"apiVersion":`)):
		return append([]byte("{"), fields...), nil
	}
	head := `{"apiVersion":"v1",`
	if len(fields) == 1 { // the closing brace alone
		head = `{"apiVersion":"v1"`
	}
	return append([]byte(head), fields...), nil
}

// EscapeJSON writes what is not printable in JSON as \u and its number: the
// encoder leaves controls beyond ASCII, and those that turn the direction of text.
func EscapeJSON(data []byte) []byte {
	hidden := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if !bytes.ContainsFunc(data, hidden) {
		return data
	}
	var b bytes.Buffer
	for _, r := range string(data) {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}
