package template

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

// hostileTemplate prints data in every quoting, and runs it through parsers.
const hostileTemplate = `{{ range members "api" }}server {{ .Address }};
nginx {{ if not (regexMatch "[$\\x00-\\x1f\\x7f]" .Labels.l) }}{{ nginxString .Labels.l }}{{ end }}
json {{ toJSON .Labels.l }}
{{ end }}{{ range tree "web" }}{{ .Key | toJSON }}={{ .Value | toJSON }}
{{ end }}{{ tree "web" | byKey | len }} {{ keyOrDefault "web/k" "d" | split "," | join ";" | len }}
{{ key "web/k" | splitToMap "," "=" | toYAML | len }} {{ key "web/k" | trimSpace | indent 2 | len }} {{ key "web/k" | toTitle | len }}
{{ key "web/k" | regexReplaceAll "[a-z]+" "$0" | sha256Hex }} {{ printf "%s" (key "web/k") | len }} {{ key "web/k" | quote | len }}`

// FuzzRender executes with hostile data. Whatever it is, the execution ends,
// errors hold none of it, and each label is one word in its line.
func FuzzRender(f *testing.F) {
	for _, s := range []string{"", "plain", "x; } server { listen 1;", "a\nb", `"\`, "$host", "{{ key }}", "\x00\xff", "%999999d", strings.Repeat("ab", 3000)} {
		f.Add(s, s)
	}
	tmpl, err := Parse(Config{Name: "hostile", Source: hostileTemplate, Timeout: 30 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, label, value string) {
		v := view.View{}.With(view.TreeOf("web", "/web", map[string]string{"k": value, "d/" + label: value})).
			With(&view.Group{Name: "api", Members: []view.Member{{Host: "10.0.0.1", Port: 1, Labels: map[string]string{"l": label}}}})
		got, err := tmpl.Render(t.Context(), &v, nil)
		if err != nil {
			if len(value) > 12 && strings.Contains(err.Error(), value) && !strings.Contains(hostileTemplate, value) {
				t.Fatalf("the error holds the value: %v", err)
			}
			return
		}
		line := strings.SplitAfterN(string(got), "\n", 4)
		if line[0] != "server 10.0.0.1:1;\n" {
			t.Fatalf("the label changed another line: %q", line[0])
		}
		var back string
		text := strings.TrimPrefix(line[2], "json ")
		if err := json.Unmarshal([]byte(text), &back); err != nil {
			t.Fatalf("the label is %q in JSON: %v", text, err)
		}
	})
}

// FuzzParse parses and executes hostile templates within tight limits.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "{{", `{{ key "web/timeout" }}`, `{{ range members "api" }}{{ .Labels.zone }}{{ end }}`, `{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`,
		`{{ range 1000000 }}{{ . }}{{ end }}`, `{{ $x := . }}{{ with $x }}{{ end }}`, `{{ set (dict) "a" 1 }}`, `{{ break }}`, `{{ agent.ID | printf "%9999d" }}`,
	} {
		f.Add(s)
	}
	v := viewOfExamples()
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(Config{Name: "t", Source: source, Timeout: time.Second, MaxOutput: 1 << 16})
		if err != nil {
			return
		}
		tmpl.Uses()
		tmpl.Stale(&v, &view.View{})
		if _, err := tmpl.Render(t.Context(), &v, nil); err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
		}
	})
}
