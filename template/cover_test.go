package template

import (
	"reflect"
	"testing"
)

// Each line and each branch of a template is missed until a rendering reaches it.
func TestCoverage(t *testing.T) {
	source := `# head
{{ range members "api" }}
{{- if eq .Port 80 }}
  plain {{ .Host }}
{{- else if eq .Port 443 }}
  secure {{ .Host }}
{{- end }}
{{- else }}
  nobody
{{- end }}
{{ with keyOrDefault "web/banner" "" }}banner {{ . }}{{ end }}
{{- /* a comment */}}
{{ define "never" }}text{{ end }}
{{- range ls "web" }}
{{ .Key }}
{{- end }}
`
	var c Coverage
	render := func(data string) Covered {
		t.Helper()
		tmpl, err := Parse(Config{Name: "t", Source: source, Coverage: &c})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := Parse(Config{Name: "t", Source: source})
		if err != nil {
			t.Fatal(err)
		}
		v, err := LoadFixture([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(t.Context(), &v, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := plain.Render(t.Context(), &v, nil); err != nil || string(want) != string(got) {
			t.Errorf("got %q with coverage, %q without, %v", got, want, err)
		}
		return c.Covered()
	}
	check := func(data string, want Covered) {
		t.Helper()
		if got := render(data); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	check(`{configs: {web: {}}, groups: {api: {members: []}}}`, Covered{Lines: 11, LinesDone: 5, Branches: 9, BranchesTaken: 2, Missed: []Missed{
		{2, 10, "range never has an element"},
		{Line: 3},
		{Line: 4},
		{Line: 5},
		{Line: 6},
		{11, 9, "with is never set"},
		{Line: 13},
		{14, 11, "range never has an element"},
		{Line: 15},
	}})
	// The second rendering adds to the first.
	check(`{configs: {web: {a: x}}, groups: {api: {members: [{host: h, port: 80}, {host: i, port: 443}]}}}`, Covered{
		Lines: 11, LinesDone: 10, Branches: 9, BranchesTaken: 7, Missed: []Missed{{5, 13, "if is never false"}, {11, 9, "with is never set"}, {Line: 13}},
	})
}
