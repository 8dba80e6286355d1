package term

import (
	"bufio"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

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
	b := bufio.NewWriter(c.Out) // a diff may be large
	color := c.UseColor(c.Out)
	for line := range strings.Lines(text) {
		body := strings.TrimSuffix(line, "\n")
		if IsTerminal(c.Out) {
			body = printableLine(body)
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
		if _, err := b.WriteString(c.Colored(c.Out, code, body) + "\n"); err != nil {
			return err
		}
	}
	return b.Flush()
}

// printableLine is Printable, with tabs left alone.
func printableLine(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = Printable(parts[i])
	}
	return strings.Join(parts, "\t")
}
