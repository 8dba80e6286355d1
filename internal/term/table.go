package term

import (
	"io"
	"strings"
	"unicode/utf8"
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
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(c))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(cell(c) + strings.Repeat(" ", widths[i]-width(c)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(c.Out, b.String())
	return err
}

// paint marks a cell that is our own word in our own colour.
const (
	paint   = "\x1b["
	unpaint = paint + "0m"
)

// cell is a cell as it is printed: what others have written without controls.
func cell(s string) string {
	if code, word, ok := painted(s); ok {
		return paint + code + "m" + Printable(word) + unpaint
	}
	return Printable(s)
}

// painted takes a cell in our own colour apart, into the number of the colour and
// the word.
func painted(s string) (string, string, bool) {
	code, word, ok := strings.Cut(strings.TrimPrefix(s, paint), "m")
	ok = ok && strings.HasPrefix(s, paint) && strings.HasSuffix(word, unpaint) && strings.Trim(code, "0123456789;") == ""
	return code, strings.TrimSuffix(word, unpaint), ok
}

// width is how many columns a cell takes, without its colour.
func width(s string) int {
	if _, word, ok := painted(s); ok {
		s = word
	}
	return utf8.RuneCountInString(Printable(s))
}
