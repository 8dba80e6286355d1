package bench

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table writes the rows for people.
func (r Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "case\tsize\tours\tfloor\tunit\tratio\tlimit\t\tnote")
	for _, row := range r.Rows {
		floor, ratio := "", ""
		if row.Floor > 0 {
			floor, ratio = number(row.Floor), number(row.Ratio)
		}
		bound, verdict := "", row.Verdict()
		if row.Limit > 0 {
			bound = number(row.Limit)
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Case, row.Size, number(row.Ours), floor, row.Unit, ratio, bound, verdict, row.Note)
	}
	return t.Flush()
}

// number prints three digits that matter.
func number(v float64) string {
	switch {
	case v >= 100 || v == float64(int64(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Benchstat writes the rows as Go benchmarks write theirs, so that benchstat
// can compare two runs.
func (r Report) Benchstat(w io.Writer) error {
	for _, row := range r.Rows {
		name := strings.Map(func(c rune) rune {
			if c == ' ' || c == ':' || c == ',' || c == '/' {
				return '-'
			}
			return c
		}, row.Case)
		unit := strings.ReplaceAll(row.Unit, " ", "-")
		if _, err := fmt.Fprintf(w, "BenchmarkZkbench/%s/%d 1 %g %s\n", name, row.Size, row.Ours, unit); err != nil {
			return err
		}
	}
	return nil
}

// SVG draws the rows that have a floor: a bar for each ratio, on the left of
// the line what is faster than the floor allows for.
func (r Report) SVG(w io.Writer) error {
	const line, left, scale, wide = 22, 360, 130.0, 900
	var b strings.Builder
	y := 40
	for _, row := range r.Rows {
		if row.Floor == 0 {
			continue
		}
		length := min(row.Ratio, 3.9) * scale
		colour := "#2a7f62"
		switch row.Verdict() {
		case Near:
			colour = "#b98a1e"
		case Missed:
			colour = "#b5452c"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s, %d</text>`, left-8, y+14, html.EscapeString(row.Case), row.Size)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/>`, left, y+2, length, line-6, colour)
		fmt.Fprintf(&b, `<text x="%.0f" y="%d">%s</text>`, left+length+4, y+14, number(row.Ratio))
		if row.Limit > 0 {
			x := left + row.Limit*scale
			fmt.Fprintf(&b, `<line x1="%.0f" y1="%d" x2="%.0f" y2="%d" stroke="#333" stroke-width="2"/>`, x, y, x, y+line-2)
		}
		b.WriteByte('\n')
		y += line
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="%d" y="24" font-size="15">zkagent by its floor (1 is the least any program can do; the mark is the limit)</text>
<line x1="%.0f" y1="34" x2="%.0f" y2="%d" stroke="#999" stroke-dasharray="3"/>
%s</svg>
`, wide, y+20, 20, left+scale, left+scale, y, b.String())
	return err
}
