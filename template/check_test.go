package template

import (
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// TestParse_Checks: Parse reports all errors at once that it can find without data.
func TestParse_Checks(t *testing.T) {
	for source, want := range map[string]string{
		"x\n{{ range members \"api\" }}{{ .Adress }}{{ end }}":                                      `t:2:29: a member has no field .Adress; did you mean "Address"?`, //nolint:misspell // the hint is for such a name
		`{{ range service "api" }}{{ .NodeAddress }}{{ end }}`:                                      `a member has no field .NodeAddress; did you mean "Host"?`,
		`{{ range $i, $m := members "api" }}{{ $m.Prot }}{{ end }}`:                                 `a member has no field .Prot; did you mean "Port"?`,
		`{{ with index (members "api") 0 }}{{ .Hots }}{{ end }}`:                                    `a member has no field .Hots`,
		`{{ (index (members "api") 0).Hots }}`:                                                      `a member has no field .Hots`,
		`{{ (members "api").Host }}`:                                                                `.Host is asked of a list`,
		`{{ range $z, $l := members "api" | byLabel "z" }}{{ range $l }}{{ .X }}{{ end }}{{ end }}`: `a member has no field .X`,
		`{{ range tree "c" }}{{ .Valeu }}{{ end }}`:                                                 `a pair has no field .Valeu; did you mean "Value"?`,
		`{{ (leader "n").Trem }}`:                                                                   `a leader has no field .Trem; did you mean "Term"?`,
		`{{ agent.Hostname }}`:                                                                      `agent has no field .Hostname`,
		`{{ range groups "all" }}{{ .Nmae }}{{ end }}`:                                              `a group has no field .Nmae; did you mean "Name"?`, //nolint:misspell // the hint is for such a name
		`{{ key }}`:                          `function "key" takes 1 argument, not 0`,
		`{{ key "c/k" "d" }}`:                `function "key" takes 1 argument, not 2`,
		`{{ "c/k" | keyOrDefault }}`:         `function "keyOrDefault" takes 2 arguments, not 1`,
		`{{ replaceAll "a" "b" }}`:           `function "replaceAll" takes 3 arguments, not 2`,
		`{{ members }}`:                      `function "members" takes at least 1 argument, not 0`,
		`{{ members "api" "passing" }}`:      `a status is one of any, up`,
		`{{ key "c" }}`:                      `key "c" names a config and no key`,
		`{{ parseJson "1" }}`:                `did you mean "parseJSON"?`,
		`{{ parse_json "1" }}`:               `did you mean "parseJSON"?`,
		`{{ getv "/a" }}`:                    `use key "CONFIG/KEY"`,
		`{{ if key "c/k" == "x" }}{{ end }}`: `a comparison is written eq A B`,
		`{{ key 'c/k' }}`:                    `write texts in double quotes`,
		"a\n{{ range ls \"c\" }}\n{{ if true }}{{ end }}\nb\n":          `t:2:1: range has no {{ end }}`,
		"{{ range ls \"c\" }}{{ end }}\n{{- with 1 }}\n{{ else }}\n":    `t:2:1: with has no {{ end }}`,
		"{{ range members \"a\" }}{{ .A1 }}{{ .A2 }}{{ end }}{{ key }}": "no field .A1\nt:1:36: a member has no field .A2\nt:1:54",
	} {
		if _, err := Parse(Config{Name: "t", Source: source}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", source, err, want)
		}
	}
	for _, source := range []string{
		`{{ range members "api" }}{{ .Address }}{{ .Labels.any }}{{ .Ports.x }}{{ .Created.Unix }}{{ end }}`,
		`{{ $x := parseJSON "{}" }}{{ $x.Anything.else }}{{ range $x.list }}{{ .Foo }}{{ end }}`,
		`{{ .Key }}{{ range .Value }}{{ .Host }}{{ .Whatever }}{{ end }}`,
		`{{ $m := "" }}{{ range members "api" }}{{ $m = . }}{{ end }}{{ $m.Nothing }}`,
		`{{ $m := agent }}{{ if key "c/k" }}{{ else }}{{ $m = parseJSON "{}" }}{{ end }}{{ $m.Nothing }}`,
		`{{ define "x" }}{{ .Foo }}{{ end }}{{ template "x" (members "api") }}`,
		`{{ print }}{{ printf "%s" "a" }}{{ scratch.Set "a" 1 }}{{ timestamp }}{{ timestamp "unix" }}`,
		`{{ with leader "n" }}{{ .ID }}{{ .Term }}{{ else }}{{ .Foo }}{{ end }}`,
		`{{ range $i, $p := ls "c" }}{{ $i }}{{ $p.Key }}{{ end }}{{ range tree "c" | byKey }}{{ range . }}{{ .Key }}{{ end }}{{ end }}`,
	} {
		if _, err := Parse(Config{Name: "t", Source: source}); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// TestWarnings_OtherLanguage: Parse takes marks of other template languages as text, and
// warns about them.
func TestWarnings_OtherLanguage(t *testing.T) {
	tmpl, err := Parse(Config{Name: "t", Source: "a\n {% if x %}b{% endif %}\n"})
	if err != nil {
		t.Fatal(err)
	}
	if w := tmpl.Warnings(); len(w) != 1 || w[0].Line != 2 || w[0].Column != 2 || !strings.Contains(w[0].Text, "text/template") {
		t.Errorf("got %+v", w)
	}
}

// TestUndeclared: one error lists undeclared names and unknown functions.
func TestUndeclared(t *testing.T) {
	err := Undeclared(Config{Name: "t", Source: `{{ nofunc }}{{ key "wep/x" }}`}, []view.Source{{Kind: view.KindConfig, Name: "web"}})
	if err == nil || !strings.Contains(err.Error(), `t:1:16: config "wep" is not declared; did you mean "web"?`) {
		t.Errorf("got %v", err)
	}
}
