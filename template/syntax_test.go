package template

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestCheckSyntax(t *testing.T) {
	for _, c := range []struct {
		syntax, good, bad string
	}{
		{"json", `{"a": [1, null]}`, `{"a": 1,}`},
		{"json", ` "text" `, `{} {}`},
		{"yaml", "a: 1\n---\nb: [x]\n", "a: [1\nb: 2"},
		{"toml", "a = 1\n[b]\nc = \"x\"\n", "a = \n"},
		{"xml", `<?xml version="1.0"?><a><b x="1"/></a>`, `<a><b></a>`},
		{"xml", "<a/>\n", "<a/><b/>"},
		{"xml", "<!-- c --><a/>", "<a/>text"},
		{"ini", "; c\n[s]\na = 1\n b\n# c\nx: 2\n", "[s\n"},
		{"ini", "", "word\n"},
		{"none", "x", ""},
		{"", "x", ""},
	} {
		if err := checkSyntax(c.syntax, []byte(c.good), nil); err != nil {
			t.Errorf("%s: %q: %v", c.syntax, c.good, err)
		}
		if err := checkSyntax(c.syntax, []byte(c.bad), nil); err == nil && c.bad != "" {
			t.Errorf("%s: %q has no error", c.syntax, c.bad)
		}
	}
	if got := Syntaxes(); !slices.Equal(got, []string{"ini", "json", "toml", "xml", "yaml"}) {
		t.Errorf("syntaxes: %v", got)
	}
}

func TestRender_OwnSyntax(t *testing.T) {
	refuse := errors.New("line 3: no")
	more := map[string]func([]byte) error{"hcl": func([]byte) error { return refuse }}
	_, err := render(t, Config{Source: "x", Syntax: "hcl", Syntaxes: more}, nil, nil)
	if !errors.Is(err, ErrSyntax) || err.Error() != "t.tmpl: rendered bytes do not parse as hcl: line 3: no" {
		t.Errorf("got %v", err)
	}
}

func TestQuoting(t *testing.T) {
	for _, c := range []struct {
		fn   func(any) (string, error)
		in   any
		want string // "" for an error
	}{
		{nginxString, `a"b\c;{}`, `"a\"b\\c;{}"`},
		{nginxString, 5, `"5"`},
		{nginxString, nil, `""`},
		{nginxString, "$host", ""},
		{nginxString, "a\nb", ""},
		{nginxString, strings.Repeat("a", 4094), `"` + strings.Repeat("a", 4094) + `"`},
		{nginxString, strings.Repeat("a", 4095), ""},
		{nginxString, strings.Repeat(`"`, 2048), ""},
		{nginxMapKey, strings.Repeat("a", 4093), ""},
		{haproxyToken, `a b#c'"\$`, `a\ b\#c\'\"\\\$`},
		{haproxyToken, "", `""`},
		{haproxyToken, "a\r", ""},
		{haproxyToken, "%[env(HOME)]", ""},
		{nginxMapKey, "include", `"\\include"`},
		{nginxMapKey, "~.*", `"\\~.*"`},
		{nginxMapKey, `a"\b`, `"\\a\"\\b"`},
		{nginxMapKey, "a$b", ""},
		{shellQuote, "plain-1.2", "plain-1.2"},
		{shellQuote, "", "''"},
		{shellQuote, "a'b $(x)\n", "'a'\\''b $(x)\n'"},
		{shellQuote, "a\x00", ""},
	} {
		got, err := c.fn(c.in)
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("%q: got %q %v, want %q", c.in, got, err, c.want)
		}
	}
}
