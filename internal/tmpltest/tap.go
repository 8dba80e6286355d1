package tmpltest

import (
	"fmt"
	"io"
	"strings"
)

// WriteTAP writes the results in the Test Anything Protocol, version 14.
func WriteTAP(w io.Writer, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 14\n1..%d\n", len(results))
	escape := strings.NewReplacer(`\`, `\\`, "#", `\#`, "\n", " ")
	for i, r := range results {
		word := "ok"
		if !r.OK {
			word = "not ok"
		}
		fmt.Fprintf(&b, "%s %d - %s\n", word, i+1, escape.Replace(r.File+": "+r.Name))
		if r.OK {
			continue
		}
		b.WriteString("  ---\n")
		for _, f := range []struct{ key, text string }{{"message", r.Error}, {"diff", r.Diff}} {
			if f.text == "" {
				continue
			}
			fmt.Fprintf(&b, "  %s: |2-\n", f.key)
			for line := range strings.Lines(f.text) {
				b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
			}
		}
		b.WriteString("  ...\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
