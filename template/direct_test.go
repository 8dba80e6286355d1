package template

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// Loops that are made direct print what text/template prints for the same body
// where it is not, which a parenthesis prevents.
func TestDirect_PrintsTheSame(t *testing.T) {
	t.Parallel()
	v := viewOfExamples()
	v = v.With(view.TreeOf("odd", "/odd", map[string]string{"a": "", "a/b": "x\n<&>{{", "c": "\xff\x00", "d/e/f": "  "}))
	v = v.With(&view.Group{Name: "odd", Path: "/g", OnEmpty: "render", Members: []view.Member{
		{ID: "1", Node: "n", Name: "a b", Host: "::1", Port: 80, Weight: 3, Status: "up"}, {Host: "h"},
	}})
	v = v.With(&view.Group{Name: "none", Path: "/g", OnEmpty: "render"})
	pair, member := "<{{.Key}}>{{.Value}}{{.Path}}\n", "{{.ID}} {{.Node}} {{.Name}} {{.Host}}:{{.Port}} {{.Weight}} {{.Status}} {{.Address}}"
	for _, c := range []struct{ list, body string }{
		{`tree "odd"`, pair},
		{`ls "odd/a"`, pair},
		{`safeTree "web"`, pair},
		{`safeLs "web/backends"`, "text"},
		{`tree "odd/none"`, pair},
		{`members "odd"`, member},
		{`members "odd" "down"`, member},
		{`service "none"`, member},
		{`printf "odd" | tree`, pair},
		{`tree "odd"`, "{{if .Value}}{{.Key}}{{end}}"},
		{`tree "odd"`, "{{.Key | toUpper}}"},
	} {
		text := "{{if true}}a {{range " + c.list + "}}" + c.body + "{{end}} b{{end}}"
		plain := "{{if true}}a {{range (" + c.list + ")}}" + c.body + "{{end}} b{{end}}"
		want, err := parsed(t, plain).Render(t.Context(), &v, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parsed(t, text).Render(t.Context(), &v, nil)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestDirect_OnlyWithoutDoubt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{{range tree "web"}}{{.Key}}{{end}}{{range members "api"}}{{.Address}};{{end}}`: "fields fields",
		`{{define "x"}}{{range tree "web"}}{{.Key}}{{end}}{{end}}{{template "x"}}`:       "fields",
		`{{range tree "web"}}{{.Key}}{{else}}none{{end}}`:                                "",
		`{{range members "api"}}{{.Labels.zone | toJSON}}{{end}}`:                        "",
		`{{range members "api"}}{{.Labels.zone}}{{end}}`:                                 "",

		`{{range $p := tree "web"}}{{$p.Key}}{{end}}`:                                "template",
		`{{range tree "web"}}{{- .Key | printf "%s" -}}{{end}}`:                      "template",
		`{{range tree "web"}}{{$x := .Key}}{{$x = .Value}}{{$x}}{{end}}`:             "template",
		`{{range tree "web"}}{{range split "/" .Path}}{{.}}{{end}}{{end}}`:           "template",
		`{{range tree "web"}}{{with $x := .Key}}{{$x}}{{else}}{{1}}{{end}}{{end}}`:   "template",
		`{{range tree "web"}}{{(.Value | split ",") | join ";"}}{{/* c */}}{{end}}`:  "template",
		`{{$x := 1}}{{range tree "web"}}{{if true}}{{$x := 2}}{{end}}{{$x}}{{end}}`:  "",
		`{{$x := 1}}{{range tree "web"}}{{$x = 2}}{{end}}`:                           "",
		`{{$x := 1}}{{range tree "web"}}{{.Key | printf "%d" $x}}{{end}}`:            "",
		`{{range tree "web"}}{{if .Key}}{{break}}{{end}}{{end}}`:                     "",
		`{{range tree "web"}}{{.Key}}{{continue}}{{end}}`:                            "",
		`{{range tree "web"}}{{$}}{{end}}`:                                           "",
		`{{range $i, $p := tree "web"}}{{$i}}{{end}}`:                                "",
		`{{$p := 1}}{{range $p = tree "web"}}{{.Key}}{{end}}`:                        "",
		`{{range tree "web"}}{{timestamp}}{{end}}`:                                   "",
		`{{range tree "web"}}{{key "web/timeout"}}{{end}}`:                           "",
		`{{range tree "web"}}{{.Key | file}}{{end}}`:                                 "",
		`{{range tree "web"}}{{env .Key}}{{end}}`:                                    "",
		`{{range tree "web"}}{{scratch.Set .Key 1}}{{end}}`:                          "",
		`{{range tree "web"}}{{(scratch).Get "a"}}{{end}}`:                           "",
		`{{range tree "web"}}{{executeTemplate "x"}}{{end}}{{define "x"}}{{end}}`:    "",
		`{{range tree "web"}}{{template "x" .}}{{end}}{{define "x"}}{{.Key}}{{end}}`: "",
		`{{range tree "web"}}{{agent.ID}}{{end}}`:                                    "",
		`{{range tree "web"}}{{call .Key}}{{end}}`:                                   "",
		`{{range tree "web"}}{{sockaddr .Key}}{{end}}`:                               "",
		`{{range tree "web"}}{{spew_sdump .Key}}{{end}}`:                             "",
	} {
		tmpl := parsed(t, text)
		got := slices.Concat(slices.Repeat([]string{"fields"}, len(tmpl.direct)), slices.Repeat([]string{"template"}, len(tmpl.chunks)))
		if strings.Join(got, " ") != want {
			t.Errorf("%s: direct loops %q, want %q", text, got, want)
		}
	}
}

// The errors of a direct loop name the same place, and its output is bounded.
func TestDirect_Errors(t *testing.T) {
	t.Parallel()
	v := viewOfExamples()
	for _, body := range []string{`{{.Key}}`, `{{(.Key)}}`} {
		_, err := parsed(t, "\n  {{range tree \"wbe\"}}"+body+"{{end}}").Render(t.Context(), &v, nil)
		if got := fmt.Sprint(err); got == "<nil>" {
			t.Errorf("%s: no error", body)
		} else if want := "2:"; len(got) == 0 || !strings.Contains(got, want) {
			t.Errorf("%s: got %s", body, got)
		}
	}
	small, err := Parse(Config{Name: "t", Source: `{{range tree "web"}}{{.Path}}{{.Value}}{{end}}`, MaxOutput: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := small.Render(t.Context(), &v, nil); err == nil || !strings.Contains(err.Error(), ErrTooLarge.Error()) {
		t.Errorf("got %v", err)
	}
}

// A file of 10,000 keys: what is allocated does not grow with the keys.
func TestDirect_Allocations(t *testing.T) {
	v, tmpl := bigView(10000), parsed(t, `{{range tree "web"}}{{.Key}}={{.Value}};{{end}}`)
	got := testing.AllocsPerRun(5, func() {
		if _, err := tmpl.Render(t.Context(), &v, nil); err != nil {
			t.Fatal(err)
		}
	})
	if got > 100 {
		t.Errorf("%v allocations, at most 100 are wanted", got)
	}
}
