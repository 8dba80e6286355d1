package term

import "testing"

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
