package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writeTree writes files below a new directory, and returns it.
func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var confdTree = map[string]string{
	"conf.d/a.toml":    "[template]\nsrc = \"a.tmpl\"\ndest = \"/etc/a.conf\"\nkeys = [\"/app\"]\nprefix = \"/prod\"\nmode = \"0600\"\nreload_cmd = \"touch ran\"\n",
	"templates/a.tmpl": "{{ getv \"/app/x\" }} {{ ls \"/app\" }} {{ getv \"/app/db\" \"none\" }}\n",
	"conf.d/b.toml":    "[template]\nsrc = \"b.tmpl\"\ndest = \"/etc/b.conf\"\nkeys = [\"/db\", \"/top\"]\n",
	"templates/b.tmpl": "{{ getv \"/db/host\" }} {{ getv \"/top\" }} {{ getenv \"HOME\" }}\n",
	"data.yaml":        "configs:\n  prod: {app/x: \"1\", app/db/host: h}\n  db: {host: \"a\\\"b\"}\n  root-keys: {top: \"é\"}\n",
}

// TestImport_With runs a program that stands for confd: it writes the keys and the template
// that it was given into the place of the file.
func TestImport_With(t *testing.T) {
	dir := writeTree(t, confdTree)
	program := filepath.Join(dir, "program")
	script := `#!/bin/sh
echo "HOME=${HOME-none} $*" >` + dir + `/args
cp data/keys.yaml ` + dir + `/keys; cp conf.d/0.toml templates/0.tmpl ` + dir + `
dest=$(sed -n 's/ *dest = "\(.*\)"/\1/p' conf.d/0.toml)
echo "2 [db x] none" >"$dest"; echo broken template >&2; exit 1
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	code, talk := runQuiet("import", "confd", dir, "--verify", filepath.Join(dir, "data.yaml"), "--with", program)
	for _, want := range []string{"2 files: 0 identical, 1 different, 0 flagged, 1 not verified", "-2 [db x] none", "+1 [db x] none", "broken template", "b-conf is not verified"} {
		if !strings.Contains(talk, want) {
			t.Errorf("%q is missing in\n%s", want, talk)
		}
	}
	if code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	for name, want := range map[string]string{
		"keys": `{"/db/host":"a\"b","/prod/app/db/host":"h","/prod/app/x":"1","/top":"é"}`, "0.tmpl": confdTree["templates/a.tmpl"],
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	resource, err := os.ReadFile(filepath.Join(dir, "0.toml"))
	if err != nil || !strings.Contains(string(resource), `prefix = "/prod"`) || !strings.Contains(string(resource), `keys = ["/app"]`) || strings.Contains(string(resource), "touch") {
		t.Errorf("the resource is %s, %v", resource, err)
	}
	if args, err := os.ReadFile(filepath.Join(dir, "args")); err != nil || !strings.HasPrefix(string(args), "HOME=none -onetime -sync-only") {
		t.Errorf("it was run as %s, %v", args, err)
	}
}

func TestImport_WithRefused(t *testing.T) {
	dir := writeTree(t, confdTree)
	data, settings := filepath.Join(dir, "data.yaml"), filepath.Join(dir, "conf.d/a.toml")
	for _, args := range [][]string{
		{"confd", settings, "--with", "true"},
		{"confd", settings, "--verify", data, "--with", "true", "--golden", dir},
		{"remco", settings, "--verify", data, "--with", "true"},
		{"confd", settings, "--verify", data, "--with", filepath.Join(dir, "none")},
		{"confd", settings, "--verify", settings, "--with", "true"},
	} {
		if code, talk := runQuiet(append([]string{"import"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", args, code, talk)
		}
	}
}

// TestImport_WithOriginals renders by the programs themselves. ZKAGENT_ORIGINALS=1 runs it: it
// fetches them.
func TestImport_WithOriginals(t *testing.T) {
	if os.Getenv("ZKAGENT_ORIGINALS") == "" {
		t.Skip("ZKAGENT_ORIGINALS is not set")
	}
	tree := writeTree(t, confdTree)
	template := func(name, text string) string {
		return "template {\n contents = <<EOT\n" + text + "\nEOT\n destination = \"/etc/" + name + "\"\n command = \"touch ran\"\n}\n"
	}
	services := writeTree(t, map[string]string{
		"ct.hcl": template("a", `{{ key "app/x" }} {{ keyOrDefault "app/none" "d" }} {{ range ls "app" }}{{ .Key }}={{ .Value }} {{ end }}`) +
			template("b", `{{ range service "web" }}{{ .Address }}:{{ .Port }} {{ .Tags | join "," }} {{ .ServiceMeta.zone }};{{ end }}{{ range service "blue.web" }}{{ .Node }}{{ end }}`) +
			template("c", `{{ range services }}{{ .Name }} {{ end }}`),
		"data.yaml": `
configs: {app: {x: "1", b: "2", db/host: h}}
groups:
  web: &web
    members:
      - {id: s2, node: h1, host: 10.0.0.10, port: 80, labels: {blue: "", zone: a}}
      - {id: s1, node: h2, host: 10.0.0.9, port: 80, labels: {zone: b}}
      - {id: s3, node: h3, host: 10.0.0.8, port: 80, status: down}
group_sets: {services: {web: *web, db: {members: [{host: 10.1.1.1, port: 3}]}}}
`,
	})
	for _, c := range [][]string{
		{"2 files: 2 identical", "confd", tree, "--verify", filepath.Join(tree, "data.yaml"), "--with", confdProgram(t)},
		{"3 files: 3 identical", "consul-template", filepath.Join(services, "ct.hcl"), "--verify", filepath.Join(services, "data.yaml"), "--with", consulTemplateProgram(t)},
	} {
		code, talk := runQuiet(append([]string{"import"}, c[1:]...)...)
		if code != exitOK || !strings.Contains(talk, c[0]) {
			t.Errorf("%s: exit code %d\n%s", c[1], code, talk)
		}
	}
}

// goIn runs the go command in a directory.
func goIn(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", args...)
	c.Dir, c.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOBIN="+dir)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go %q: %v", args, err)
	}
	return out
}

func consulTemplateProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	goIn(t, dir, "install", "github.com/hashicorp/consul-template@v0.41.0")
	return filepath.Join(dir, "consul-template")
}

// confdProgram builds confd, which has no go.mod, with its file backend alone.
func confdProgram(t *testing.T) string {
	t.Helper()
	var module struct{ Dir string }
	if err := json.Unmarshal(goIn(t, t.TempDir(), "mod", "download", "-json", "github.com/kelseyhightower/confd@v0.16.0"), &module); err != nil {
		t.Fatal(err)
	}
	dir := writeTree(t, map[string]string{
		"go.mod": `module github.com/kelseyhightower/confd

go 1.21

require (
	github.com/BurntSushi/toml v0.3.0
	github.com/fsnotify/fsnotify v1.10.1
	github.com/kelseyhightower/memkv v0.1.1
	github.com/sirupsen/logrus v1.0.5
	github.com/xordataexchange/crypt v0.0.3-0.20170626215501-b2862e3d0a77
	golang.org/x/crypto v0.57.0
	golang.org/x/sys v0.49.0
	gopkg.in/yaml.v2 v2.4.0
)
`,
		"backends/client.go": `package backends

import "github.com/kelseyhightower/confd/backends/file"

type StoreClient interface {
	GetValues(keys []string) (map[string]string, error)
	WatchPrefix(prefix string, keys []string, waitIndex uint64, stopChan chan bool) (uint64, error)
}

func New(c Config) (StoreClient, error) { return file.NewFileClient(c.YAMLFile, c.Filter) }
`,
	})
	for _, name := range []string{"confd.go", "config.go", "version.go", "log", "util", "resource", "backends/config.go", "backends/file"} {
		from, to := filepath.Join(module.Dir, name), filepath.Join(dir, name)
		if data, err := os.ReadFile(from); err == nil {
			if err := os.WriteFile(to, data, 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	goIn(t, dir, "build", "-o", "confd", ".")
	return filepath.Join(dir, "confd")
}
