package tmpltest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRun: on_empty of the settings holds, texts are taken as they are written, a
// key can be unset, nothing of the host is read, and a bad test does not end the
// file.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"zkagent.hcl": `
zookeeper { servers = ["zk:2181"] }
config "web" { path = "/web" }
group "api" {
  path     = "/services/api"
  on_empty = "render"
}
group "db" { path = "/services/db" }
template "api" {
  contents    = "[{{ range members \"api\" }}{{ .Host }}{{ end }}]"
  destination = "/tmp/api"
}
template "db" {
  contents    = "[{{ range members \"db\" }}{{ .Host }}{{ end }}]"
  destination = "/tmp/db"
}
`,
		"web_test.yaml": `settings: zkagent.hcl
now: 2026-01-02T03:04:05Z
data:
  configs: {web: {mode: 0644, answer: no, y: yes, version: 1.10, size: 1e3, gone: x}}
  groups: {api: {members: []}, db: {members: []}}
tests:
  - name: empty renders
    template: api
    want: "[]"
  - name: empty keeps
    template: db
    want_error: stays as it is
  - name: as written
    contents: '{{ range tree "web" }}{{ .Key }}={{ .Value }} {{ end }}'
    want: "answer=no gone=x mode=0644 size=1e3 version=1.10 y=yes "
  - name: unset
    contents: '{{ key "web/gone" }}'
    data: {configs: {web: {gone: null}}}
    want_error: no key "gone"
  - name: bad data
    contents: x
    data: {groups: {api: {members: [{host: h, status: passing}]}}}
    want: x
  - name: time and address
    contents: '{{ timestamp "2006" }} {{ sockaddr "GetPrivateIP" }}'
    sockaddr: {GetPrivateIP: 10.0.0.9}
    want: 2026 10.0.0.9
  - name: the host
    contents: '{{ sockaddr "GetPrivateIP" }}'
    want_error: nothing of this host is read
  - name: wrong
    contents: a
    want: b
  - name: elsewhere
    template: api
    want_destination: /tmp/other
    want: "[]"
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	results, err := Run(t.Context(), []string{filepath.Join(dir, "web_test.yaml")}, Options{Match: regexp.MustCompile("")})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		switch r.Name {
		case "bad data":
			if r.OK || !strings.Contains(r.Error, "web_test.yaml:20: ") || !strings.Contains(r.Error, "a status is one of") {
				t.Errorf("%s: %+v", r.Name, r)
			}
		case "wrong":
			if r.OK || !strings.Contains(r.Error, "web_test.yaml:31: ") {
				t.Errorf("%s: %+v", r.Name, r)
			}
		case "elsewhere":
			if r.OK || !strings.Contains(r.Error, "got destination /tmp/api, want /tmp/other") {
				t.Errorf("%s: %+v", r.Name, r)
			}
		default:
			if !r.OK {
				t.Errorf("%s: %s\n%s", r.Name, r.Error, r.Diff)
			}
		}
	}
	if len(results) != 9 {
		t.Errorf("got %d results", len(results))
	}
}

// Data of a test need no data of the file under them, and a null of a key that is
// nowhere leaves no empty key.
func TestRun_DataOfATestAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a_test.yaml")
	text := `tests:
  - name: alone
    contents: '{{ key "web/a" }}{{ keyOrDefault "web/b" "none" }}'
    data: {configs: {web: {a: x, b: null}}}
    want: xnone
  - name: over another
    contents: '{{ key "web/a" }}{{ key "web/c" }}'
    data_file: under.yaml
    data: {configs: {web: {c: z}}}
    want: yz
`
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(name), "under.yaml"), []byte("configs: {web: {a: y}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := Run(t.Context(), []string{name}, Options{Match: regexp.MustCompile("")})
	if err != nil || len(results) != 2 || !results[0].OK || !results[1].OK {
		t.Errorf("got %+v, %v", results, err)
	}
}
