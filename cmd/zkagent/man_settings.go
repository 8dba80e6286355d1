package main

import (
	"bytes"
	"fmt"
	"strings"
)

// manSettings makes zkagent.hcl(5) of the reference of the settings. It knows
// the Markdown that the reference uses: headings, paragraphs, and tables of
// four columns.
func manSettings(markdown string) []byte {
	var b bytes.Buffer
	b.WriteString(".TH \"ZKAGENT.HCL\" 5 \"\" \"zkagent\" \"zkagent\"\n.SH NAME\nzkagent.hcl \\- settings of zkagent\n.SH DESCRIPTION\n")
	for line := range strings.Lines(markdown) {
		line = strings.TrimRight(line, "\n")
		level := len(line) - len(strings.TrimLeft(line, "#"))
		switch {
		case level == 1 || strings.HasPrefix(line, "<!--") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| argument"):
		case level == 2:
			_, _ = fmt.Fprintf(&b, ".SH %s\n", troff(plainText(strings.TrimSpace(line[level:]))))
		case level > 2:
			_, _ = fmt.Fprintf(&b, ".SS %s\n", troff(plainText(strings.TrimSpace(line[level:]))))
		case strings.HasPrefix(line, "| "):
			manArgument(&b, line)
		case line == "":
			b.WriteString(".PP\n")
		default:
			b.WriteString(troff(plainText(line)) + "\n")
		}
	}
	b.WriteString(".SH SEE ALSO\n.BR zkagent (1)\n")
	return b.Bytes()
}

// manArgument writes a row of a table: name, type, default, meaning.
func manArgument(b *bytes.Buffer, row string) {
	cells := strings.SplitN(strings.TrimSuffix(strings.TrimPrefix(row, "| "), " |"), " | ", 4)
	if len(cells) < 4 {
		b.WriteString(troff(plainText(row)) + "\n")
		return
	}
	head := plainText(cells[0]) + " (" + plainText(cells[1])
	if d := strings.TrimSpace(plainText(cells[2])); d == "required" {
		head += ", required"
	} else if d != "" {
		head += ", default " + d
	}
	_, _ = fmt.Fprintf(b, ".TP\n.B %s\n%s\n", troff(head+")"), troff(plainText(cells[3])))
}

// plainText takes the marks of code out of Markdown.
func plainText(s string) string { return strings.NewReplacer("`", "", `\|`, "|").Replace(s) }
