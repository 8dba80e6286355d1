package term

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

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
