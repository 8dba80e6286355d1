package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// table is rows in aligned columns, without boxes. The header is printed on a
// terminal only, so that scripts see data alone.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// printTable writes the table in columns as wide as their widest cell.
func (g *globals) printTable(t *table) error {
	rows := t.rows
	if isTerminal(g.out) && t.header != nil {
		rows = append([][]string{t.header}, rows...)
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
	_, err := io.WriteString(g.out, b.String())
	return err
}

// paint marks a cell that is our own word in our own colour.
const paint = "\x1b["

// cell is a cell as it is printed: what others have written without controls.
func cell(s string) string {
	if strings.HasPrefix(s, paint) {
		return s
	}
	return printable(s)
}

// width is how many columns a cell takes, without its colour.
func width(s string) int {
	if rest, ok := strings.CutPrefix(s, paint); ok {
		_, word, _ := strings.Cut(rest, "m")
		s = strings.TrimSuffix(word, paint+"0m")
	}
	return utf8.RuneCountInString(cell(s))
}

// printable replaces what could move the cursor or break the columns: names
// and data in ZooKeeper are written by others.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// isJSON reports whether machines read the output.
func (g *globals) isJSON() bool { return g.output == "json" || g.output == "ndjson" }

// printJSON writes one object, with the version of the format.
func (g *globals) printJSON(key string, v any) error {
	return g.printObject(map[string]any{key: v})
}

// printObject is printJSON with several keys. It adds the version to fields.
func (g *globals) printObject(fields map[string]any) error {
	enc := json.NewEncoder(g.out)
	if g.output == "json" {
		enc.SetIndent("", "  ")
	}
	fields["apiVersion"] = "v1"
	return enc.Encode(fields)
}

// printList writes a list: with ndjson one line an element.
func printList[T any](g *globals, key string, list []T) error {
	if g.output != "ndjson" {
		if list == nil {
			list = []T{}
		}
		return g.printJSON(key, list)
	}
	enc := json.NewEncoder(g.out)
	for _, e := range list {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// line writes one JSON object as one line, for streams of events.
func (g *globals) line(v any) error { return json.NewEncoder(g.out).Encode(v) }

// age is how long ago something was, as people read it.
func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(time.Since(t))
}

// short is a duration with at most two units, such as 3m12s.
func short(d time.Duration) string {
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

// colored wraps a word in a colour when the stream shows colours.
func (g *globals) colored(w io.Writer, code, s string) string {
	if code == "" || !g.useColor(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
