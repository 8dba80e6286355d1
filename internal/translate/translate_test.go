package translate

import (
	"errors"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/template"
)

// TestActions are templates of consul-template and of confd, and what becomes
// of them.
func TestActions(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"ct", `{{ key "/a/b" }}`, `{{ key "a/b" }}`},
		{"ct", `{{- range ls "a/b/" -}}{{ .Key }}{{- end -}}`, `{{- range ls "a/b" -}}{{ .Key }}{{- end -}}`},
		{"ct", "{{/* note */}}{{ \"}}\" }}{{ `}}` }}", "{{/* note */}}{{ \"}}\" }}{{ `}}` }}"},
		{"ct", `{{ range services }}{{ .Name }}{{ end }}`, `{{ range groups "services" "any" }}{{ .Name }}{{ end }}`},
		{"ct", `{{ $x := secret "a" }}{{ $x }}`, `{{ $x := fail "import: there is no function secret: $x := secret \"a\"" }}{{ $x }}`},
		{"ct", `{{ with service "w" }}{{ with index . 0 }}{{ .Address }}{{ end }}{{ end }}{{ .Address }}`, `{{ with service "w" }}{{ with index . 0 }}{{ .Host }}{{ end }}{{ end }}{{ .Address }}`},
		{"ct", `{{ timestamp | parseBool }}{{ env "A" }}`, `{{ timestamp | parseBool }}{{ env "A" }}`},
		{"ct", `{{ unclosed`, `{{ unclosed`},
		{"confd", `{{join (split (getv "/a/b") ",") "-" | toUpper}}`, `{{ sprig_join "-" (splitList "," (key "a/b")) | toUpper }}`},
		{"confd", `{{range getvs "/a/*"}}{{.}}{{end}}{{.}}`, `{{ range (sortAlpha (values (ls "a"))) }}{{ . }}{{ end }}{{ . }}`},
		{"confd", `{{range lsdir "/a"}}{{.}}{{end}}`, `{{ range (keys (byKey (tree "a"))) }}{{ . }}{{ end }}`},
	} {
		r, tmpl := newResult("x"), &Template{Name: "t"}
		if c.name == "confd" {
			confdText(r, tmpl, c.in, confdDialect("", nil), nil)
		} else {
			r.translateText(tmpl, c.in, ctDialect)
		}
		if tmpl.Text != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.name, c.in, tmpl.Text, c.want)
		}
	}
}

func TestCommand(t *testing.T) {
	for in, want := range map[string]string{
		"":                       ``,
		"nginx -s reload":        `"nginx", "-s", "reload"`,
		"nginx -t -c {{.src}}":   `"nginx", "-t", "-c", staged`,
		"t --file={{ .src }}":    `"t", "--file=${staged}"`,
		"a '{{.src}}' || b":      `"/bin/sh", "-c", "a \"$1\" || b", "sh", staged`,
		"a {{.src}} > {{.dest}}": `"/bin/sh", "-c", "a \"$1\" > \"$2\"", "sh", staged, destination`,
	} {
		if got := strings.Join(command(in, stagedWords), ", "); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestSettings_SourceThatCannotBeRead(t *testing.T) {
	none := func(string) ([]byte, error) { return nil, errors.New("gone") }
	r, err := ConsulTemplate(nil, "a.hcl", []byte(`template { source = "/x.ctmpl"  destination = "/x" }`), none)
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Settings(true); !strings.Contains(s, `source = "/x.ctmpl"`) || !strings.Contains(s, "# import: the template could not be read") {
		t.Errorf("got %s", s)
	}
	for _, bad := range []func() (*Result, error){
		func() (*Result, error) { return ConsulTemplate(nil, "a", []byte("{{{"), none) },
		func() (*Result, error) { return Confd(nil, "a", []byte("{{{"), none) },
		func() (*Result, error) { return Remco(nil, "a", []byte("{{{"), none) },
	} {
		if _, err := bad(); err == nil {
			t.Error("no error")
		}
	}
}

// TestImport_Nesting: a file that nests a million times ends with an error at once.
func TestImport_Nesting(t *testing.T) {
	none := func(string) ([]byte, error) { return nil, errors.New("none") }
	deep := []byte("a = " + strings.Repeat("[", 1<<20))
	for name, read := range map[string]func() (*Result, error){
		"consul-template": func() (*Result, error) { return ConsulTemplate(nil, "a", deep, none) },
		"confd":           func() (*Result, error) { return Confd(nil, "a", deep, none) },
		"remco":           func() (*Result, error) { return Remco(nil, "a", deep, none) },
		"nerve":           func() (*Result, error) { return Nerve(nil, "a", deep) },
		"synapse":         func() (*Result, error) { return Synapse(nil, "a", deep) },
	} {
		if _, err := read(); !errors.Is(err, template.ErrTooLarge) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add("{{ key \"a\" }}{{ range service \"x\" }}{{ .Address }}{{ end }}")
	f.Add("{% for x in gets(\"/a/*\") %}{{ x.Key|upper }}{% endfor %}")
	f.Fuzz(func(_ *testing.T, text string) {
		r := newResult("x")
		confdText(r, &Template{}, text, confdDialect("", nil), nil)
		remcoText(r, &Template{}, text, confdDialect("/p", nil), func(string) ([]byte, error) { return []byte(text), nil })
		r.translateText(&Template{}, text, ctDialect)
		_ = r.Settings(true)
	})
}
