package web

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/template"
)

// The page of a template shows its lines with where they come from: with
// show_output alone, and never those of a file that not everybody may read.
func TestBlamePage(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !readableByAll("/etc/passwd") || readableByAll(secret) {
		t.Error("the answer does not distinguish what everybody may read")
	}
	file := func(path string) []*blame.File {
		return []*blame.File{{
			Path: path, Template: "a.tmpl", Values: []blame.Value{{Text: "config.web/timeout", Value: template.Value{Kind: template.ValueKey}, Version: 7, Author: "ann"}},
			Lines: []blame.Line{{Number: 1, Text: "timeout <9>", TemplateLine: 3, Values: []int{0}, Because: []blame.Reason{{Line: 2, Text: "if true", Held: true}}}},
		}}
	}
	page := func(show bool, path string) (int, string) {
		src := &still{http: &HTTPConfig{ShowOutput: show}, blamed: file(path)}
		w := httptest.NewRecorder()
		serverOf(src).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/templates/a", nil))
		return w.Code, w.Body.String()
	}
	if code, text := page(false, "/etc/passwd"); code != http.StatusForbidden || strings.Contains(text, "timeout") {
		t.Errorf("without show_output: %d %s", code, text)
	}
	code, text := page(true, "/etc/passwd")
	for _, want := range []string{"timeout &lt;9&gt;", "config.web/timeout: version 7, by ann", ":2 if true"} {
		if code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%d, without %q: %s", code, want, text)
		}
	}
	if code, text := page(true, secret); code != http.StatusOK || strings.Contains(text, "timeout") {
		t.Errorf("a secret file: %d %s", code, text)
	}
}
