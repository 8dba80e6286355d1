package term

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// Printable replaces what could move the cursor or break the columns: names
// and data in ZooKeeper are written by others.
func Printable(s string) string { return printable(s, ' ') }

// printable is Printable with a character in place of each tab.
func printable(s string, tab rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return tab
		case r == '\n':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}

// Count is a number with its noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// First lists at most so many of the words, and says how many more there are.
func First(words []string, most int) string {
	if len(words) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}

// Age is how long ago something was, as people read it.
func Age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Short(time.Since(t))
}

// Short is a duration with at most two units, such as 3m12s.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// ShellWord is a word as a shell reads it.
func ShellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-:@%+=,", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Data writes what came from ZooKeeper. On a terminal it escapes what a terminal
// would obey, unless Raw says otherwise; elsewhere the bytes are as they are.
func (c *Console) Data(p []byte) error {
	out := c.Out
	switch {
	case c.Raw:
		out = Unguarded(out)
	case IsTerminal(out):
		p = []byte(Escape(string(p)))
	}
	return c.write(out, p)
}

// Escape writes control characters, but for tabs and line breaks, and bytes that
// are no text as \xNN or \u{NN}.
func Escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\\x%02x", s[i])
		case r == '\t' || r == '\n' || unicode.IsPrint(r):
			b.WriteString(s[i : i+n])
		case r < 0x100:
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			fmt.Fprintf(&b, "\\u{%x}", r)
		}
		i += n
	}
	return b.String()
}

// Guard returns a stream for text that others may have written. A terminal gets
// line ends, tabs, our own colours and printable text from it, and everything else
// escaped. What is no terminal is returned as it is.
func Guard(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && IsTerminal(f) {
		return guarded{f}
	}
	return w
}

type guarded struct{ file *os.File }

// secret begins our own colours on a guarded stream. Nobody who writes into
// ZooKeeper knows it, so nobody can hide a word or paint it like one of ours.
var secret = "\x1b\x00" + rand.Text() + "["

// colours are the sequences that a guard lets through.
var colours = regexp.MustCompile(regexp.QuoteMeta(secret) + "[0-9;]*m")

// paint is what begins a colour on the stream.
func paint(w io.Writer) string {
	if _, ok := w.(guarded); ok {
		return secret
	}
	return "\x1b["
}

func (g guarded) Write(p []byte) (int, error) {
	var b strings.Builder
	text, from := string(p), 0
	for _, at := range colours.FindAllStringIndex(text, -1) {
		b.WriteString(Escape(text[from:at[0]]) + "\x1b[" + text[at[0]+len(secret):at[1]])
		from = at[1]
	}
	b.WriteString(Escape(text[from:]))
	if _, err := io.WriteString(g.file, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// File returns the file that a stream writes to, for a child process, and for
// the controls of a terminal that are our own.
func File(stream any) (*os.File, bool) {
	if g, ok := stream.(guarded); ok {
		return g.file, true
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// Unguarded is the stream without its guard.
func Unguarded(w io.Writer) io.Writer {
	if f, ok := File(w); ok {
		return f
	}
	return w
}

// Table is rows in aligned columns, without boxes, below a header.
type Table struct {
	Header []string
	Rows   [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// PrintTable writes the table in columns as wide as their widest cell.
func (c *Console) PrintTable(t *Table) error {
	rows := t.Rows
	if t.Header != nil && !c.NoHeaders && len(rows) > 0 {
		rows = append([][]string{t.Header}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i, text := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], c.width(text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, text := range row {
			line.WriteString(c.cell(text) + strings.Repeat(" ", widths[i]-c.width(text)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return c.write(c.Out, []byte(b.String()))
}

// cell is a cell as it is printed: what others have written without controls.
func (c *Console) cell(s string) string {
	if code, word, ok := c.painted(s); ok {
		return paint(c.Out) + code + "m" + Printable(word) + paint(c.Out) + "0m"
	}
	return Printable(s)
}

// painted takes a cell in our own colour apart, into the number of the colour and
// the word.
func (c *Console) painted(s string) (string, string, bool) {
	text, begins := strings.CutPrefix(s, paint(c.Out))
	text, ends := strings.CutSuffix(text, paint(c.Out)+"0m")
	code, word, ok := strings.Cut(text, "m")
	return code, word, begins && ends && ok && strings.Trim(code, "0123456789;") == ""
}

// width is how many columns a cell takes, without its colour.
func (c *Console) width(s string) int {
	if _, word, ok := c.painted(s); ok {
		s = word
	}
	return utf8.RuneCountInString(Printable(s))
}

// Diff is the difference of one file.
func Diff(path string, before []byte, existed bool, after []byte) string {
	from := path
	if !existed {
		from = "/dev/null"
	}
	return string(diff.Diff(from, before, path+" (rendered)", after))
}

// PrintDiff writes a unified diff, coloured on a terminal. What others have
// written cannot reach the terminal's controls.
func (c *Console) PrintDiff(text string) error {
	var b bytes.Buffer
	color := c.UseColor(c.Out)
	for line := range strings.Lines(text) {
		body := strings.TrimSuffix(line, "\n")
		if IsTerminal(c.Out) {
			body = printable(body, '\t')
		}
		code := ""
		switch {
		case !color:
		case strings.HasPrefix(body, "+++"), strings.HasPrefix(body, "---"):
			code = "1"
		case strings.HasPrefix(body, "@@"):
			code = "36"
		case strings.HasPrefix(body, "+"):
			code = "32"
		case strings.HasPrefix(body, "-"):
			code = "31"
		}
		b.WriteString(c.Colored(c.Out, code, body) + "\n")
	}
	return c.write(c.Out, b.Bytes())
}
