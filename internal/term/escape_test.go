package term

import (
	"io"
	"os"
	"testing"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":        "plain\ttext\n",
		"\x1b]0;title\x07":     `\x1b]0;title\x07`,
		"\x1b[2J":              `\x1b[2J`,
		"a\rb":                 `a\x0db`,
		"\u009b31m":            `\x9b31m`,
		"\xff":                 `\xff`,
		"grüße, \u202egnp.exe": `grüße, \u{202e}gnp.exe`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// On a terminal only our own words have colours. A word of somebody else is shown as
// it is, and is not hidden.
func TestGuard_ColoursOfOthers(t *testing.T) {
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	out := guarded{f}
	c := &Console{Out: out, Err: out, Color: "always"}
	const other = "\x1b[8mhidden\x1b[0m"
	c.Errorf("frozen: %s", other)
	table := &Table{}
	table.Add(c.Colored(out, "33", "ours"), other, "end")
	table.Add("a", "b", "end")
	if err := c.PrintTable(table); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	want := "\x1b[31merror:\x1b[0m frozen: \\x1b[8mhidden\\x1b[0m\n" +
		"\x1b[33mours\x1b[0m  ?[8mhidden?[0m  end\na     b               end\n"
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v\nwant %q", got, err, want)
	}
}
