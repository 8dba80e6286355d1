package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/template"
)

// twoDirectories are two settings files in two directories, each with a file
// "x" beside it.
var twoDirectories = map[string]string{
	"a/x": "x of a", "b/x": "x of b",
	"a/a.hcl": `
agent { id = "host1" }
zookeeper { servers = ["127.0.0.1:1"] }
config "web" { path = "/config/web" }
bundle "pair" {
  template "one" {
    contents    = "one {{ key \"web/port\" }} {{ file \"x\" }}"
    destination = "OUT/one"
    allow       = ["file"]
  }
  template "two" {
    source      = "two.tmpl"
    destination = "OUT/two"
    mode        = "0600"
  }
  check { command = ["sh", "-c", "cp -r \"$1\"/. \"$2\"", "sh", staged_dir, "SEEN"] }
}
`,
	"a/two.tmpl": `two {{ key "web/port" }}`,
	"b/b.hcl": `
config "keys" { path = "/config/keys" }
template "inline" {
  contents    = "{{ file \"x\" }}"
  destination = "OUT/inline"
  allow       = ["file"]
  check { command = ["sh", "-c", "cp -r \"$1\"/. \"$2\"", "sh", staged_dir, "SEEN"] }
}
template "each" {
  for_each    = config.keys
  contents    = "{{ .Key }}={{ .Value }}"
  destination = "OUT/each-${each.key}"
  check { command = ["sh", "-c", "cp -r \"$1\"/. \"$2\"", "sh", staged_dir, "SEEN"] }
}
template "same" {
  for_each    = config.keys
  contents    = "{{ .Key }}"
  destination = "OUT/${each.value}"
}
`,
}

// TestDoors_SameBytesOrSameError gives the same settings and data to the loop,
// to a vote, to the page's preview and to "zkagent render".
func TestDoors_SameBytesOrSameError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bundle string
		keys   string            // of config "keys", in YAML
		want   map[string]string // below OUT
		err    string
	}{
		"two files":             {bundle: "pair", want: map[string]string{"one": "one 80 x of a", "two": "two 80"}},
		"second settings file":  {bundle: "inline", want: map[string]string{"inline": "x of b"}},
		"for_each":              {bundle: "each", keys: "{k1: v1, k2: v2}", want: map[string]string{"each-k1": "k1=v1", "each-k2": "k2=v2"}},
		"duplicate destination": {bundle: "same", keys: "{k1: v, k2: v}", err: "have the same destination"},
		"bad element key":       {bundle: "each", keys: "{\".\": v, k1: v1}", want: map[string]string{"each-k1": "k1=v1"}},
		"upward element key":    {bundle: "each", keys: "{\"../k\": v, k1: v1}", want: map[string]string{"each-k1": "k1=v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for door, open := range map[string]func(d doors) (map[string]string, string){
				"run": doors.run, "vote": doors.vote, "preview": doors.preview, "render": doors.render,
			} {
				d := newDoors(t, c.bundle, c.keys)
				got, failed := open(d)
				if c.err == "" && failed != "" || !strings.Contains(failed, c.err) {
					t.Errorf("%s: got error %q, want %q", door, failed, c.err)
				}
				if !maps.Equal(got, c.want) {
					t.Errorf("%s: got %q, want %q", door, got, c.want)
				}
			}
		})
	}
}

// doors is one bundle with everything that a door needs.
type doors struct {
	t      *testing.T
	dir    string
	name   string
	engine *apply.Engine
	bundle *apply.Bundle
	job    apply.Job
}

func newDoors(t *testing.T, bundle, keys string) doors {
	t.Helper()
	d := doors{t: t, dir: t.TempDir(), name: bundle}
	if keys == "" {
		keys = "{}"
	}
	files := maps.Clone(twoDirectories)
	files["data.yaml"] = "configs: {web: {port: \"80\"}, keys: " + keys + "}"
	for name, text := range files {
		path := filepath.Join(d.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		text = strings.NewReplacer("OUT", d.dir+"/out", "SEEN", d.dir+"/seen").Replace(text)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"out", "seen"} {
		if err := os.Mkdir(filepath.Join(d.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, err := settings.Load([]string{filepath.Join(d.dir, "a/a.hcl"), filepath.Join(d.dir, "b/b.hcl")}, settings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := template.LoadFixture([]byte(files["data.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range s.Config.Bundles {
		if b.Name == bundle {
			d.bundle = apply.Parse(b, s.Config.Sources())
		}
	}
	if d.bundle.Err != nil {
		t.Fatal(d.bundle.Err)
	}
	d.engine = apply.New(apply.Options{AgentID: "host1", StateDir: filepath.Join(d.dir, "state"), Run: proc.Run})
	d.engine.Recover(nil)
	d.job = apply.Job{Bundle: d.bundle, View: v, First: true}
	return d
}

// files reads all files below a directory, by their names.
func (d doors) files(root string) map[string]string {
	d.t.Helper()
	var found map[string]string
	entries, err := os.ReadDir(root)
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(root, e.Name()))
		if err != nil {
			d.t.Fatal(err)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[e.Name()] = string(data)
	}
	return found
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (d doors) run() (map[string]string, string) {
	d.engine.Join(&d.job)
	r := d.engine.Run(d.t.Context(), d.job)
	return d.files(d.dir + "/out"), text(r.Err)
}

// vote shows what the bundle's check has seen.
func (d doors) vote() (map[string]string, string) {
	err := d.engine.Try(d.t.Context(), d.bundle, d.job.View)
	if left := d.files(d.dir + "/out"); left != nil {
		d.t.Errorf("a vote left %q", left)
	}
	return d.files(d.dir + "/seen" + d.dir + "/out"), text(err)
}

func (d doors) preview() (map[string]string, string) {
	list, _, err := d.engine.Preview(d.t.Context(), d.bundle, d.job.View)
	var found map[string]string
	for _, o := range list {
		if found == nil {
			found = map[string]string{}
		}
		found[strings.TrimPrefix(o.Destination, d.dir+"/out/")] = string(o.Data)
	}
	return found, text(err)
}

func (d doors) render() (map[string]string, string) {
	var out, failed bytes.Buffer
	code := run([]string{"render", d.name, "--quiet", "-c", d.dir + "/a/a.hcl", "-c", d.dir + "/b/b.hcl", "--data", d.dir + "/data.yaml"}, strings.NewReader(""), &out, &failed)
	if code == 0 {
		return d.files(d.dir + "/out"), ""
	}
	return d.files(d.dir + "/out"), failed.String()
}
