package translate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/template"
)

// trial is one template with data, as the programs below testdata/original take it.
type trial struct {
	Template string
	Prefix   string            // of the resource, for confd and remco
	Keys     map[string]string // by path, without a slash at the beginning
	Services map[string][]trialMember
}

type trialMember struct {
	ID, Node, Host string
	Port           int
	Tags           []string
	Meta           map[string]string
}

// pieces are constructs of templates. In them KEY, DIR, SVC and TAG stand for random names.
var pieces = []string{
	`{{ range services }}{{ $n := printf "TAG.%s" .Name }}{{ range service $n }}{{ .Name }} {{ .Address }};{{ end }}{{ end }}`, `{{ range services }}{{ range $i, $s := service (printf "%s.%s" "TAG" .Name) }}{{ $i }} {{ $s.Port }} {{ end }}{{ end }}`,
	`{{ range $t := split "," "blue,prod,none" }}{{ range service (printf "%s.%s" $t "SVC") }}{{ .Name }}{{ .Port }} {{ end }}{{ end }}`, `{{ $n := keyOrDefault "app/none" "db" }}{{ range service (printf "TAG.%s" $n) "any" }}{{ .ID }} {{ end }}`,
	`{{ scratch.Set "p" (print "app/" "") }}{{ keyOrDefault (print (scratch.Get "p") "name") "none" }}`, `{{ range tree (keyOrDefault "app/none" "app") }}{{ .Path }}={{ .Key }} {{ key .Path }}{{ end }}`, `{{ key (printf "%s/%s" (keyOrDefault "app/none" "app") "name") }}`,
	`{{ range ls (print "/" (keyOrDefault "app/none" "app")) }}{{ .Path }} {{ .Key }};{{ end }}{{ range $k, $v := tree (print (keyOrDefault "app/none" "app") "/") | byKey }}{{ $k }}{{ range $n, $p := $v }}{{ $n }}{{ $p.Path }}{{ end }}{{ end }}`,
	`{{ scratch.Set "p" "app" }}{{ range loop 2 }}{{ keyOrDefault (print (scratch.Get "p") "/name") "none" }}{{ scratch.Set "p" "other" }}{{ end }}`,
	`{{ range service (printf "%s.SVC" (keyOrDefault "app/none" "TAG")) }}{{ .Port }} {{ end }}`, `{{ range $t := split "," "blue,none" }}{{ $n := printf "%s.SVC" $t }}{{ range service $n }}{{ .Address }} {{ end }}{{ end }}`,
	`{{ key "KEY" }}`, `{{ keyOrDefault "KEY" "d" }}`, `{{ if keyExists "KEY" }}y{{ else }}n{{ end }}`, `{{ with key "KEY" }}<{{ . }}>{{ end }}`,
	`{{ range ls "DIR" }}{{ .Key }}={{ .Value }};{{ end }}`, `{{ range tree "DIR" }}{{ .Path }}:{{ .Key }} {{ end }}`,
	`{{ range $i, $p := ls "DIR" }}{{ if $i }},{{ end }}{{ $p.Key }}{{ else }}none{{ end }}`, `{{ len (ls "DIR") }}`,
	`{{ range $k, $v := tree "DIR" | byKey }}{{ $k }}[{{ range $n, $p := $v }}{{ $n }}={{ $p.Value }} {{ end }}]{{ end }}`,
	`{{ range safeLs "DIR" }}{{ .Value }}{{ end }}`, `{{ (tree "DIR" | explode) | toJSON }}`, `{{ "KEY" | key | toUpper }}`,
	`{{ key (printf "%s/name" "app") }}`, `{{ key (printf "app/%s" "name") }}`, `{{ $k := "name" }}{{ key (printf "app/%s" $k) }}`,
	`{{ range service "SVC" }}{{ .Address }}:{{ .Port }} {{ end }}`, `{{ range service "SVC" }}{{ .ID }} {{ .Name }} {{ end }}`, `{{ range service "SVC" }}{{ .Node }} {{ end }}`,
	`{{ range $i, $s := service "SVC" }}{{ $i }}{{ $s.NodeAddress }} {{ end }}`, `{{ with service "SVC" }}{{ with index . 0 }}{{ .Address }}{{ end }}{{ else }}none{{ end }}`,
	`{{ range service "SVC" }}{{ if .Tags | contains "TAG" }}{{ .Port }} {{ end }}{{ end }}`, `{{ range service "TAG.SVC" }}{{ .Port }} {{ end }}`,
	`{{ range $t, $l := service "SVC" | byTag }}{{ $t }}:{{ range $l }}{{ .Address }} {{ end }}{{ end }}`, `{{ len (service "SVC") }}`,
	`{{ range service "SVC" }}{{ .Tags | join "," }} {{ end }}`, `{{ range services }}{{ .Name }} {{ end }}`, `{{ "SVC" | service | len }}`,
	`{{ range services }}{{ range service .Name }}{{ .Address }} {{ end }}{{ end }}`, `{{ $s := service "SVC" }}{{ range $s }}{{ .Port }} {{ end }}`,
	`{{ range $a := service "SVC" }}{{ range $b := service "SVC" }}{{ $a.Port }}-{{ $b.Address }} {{ end }}{{ end }}`,
	`{{ define "m" }}{{ .Address }}!{{ end }}{{ range service "SVC" }}{{ template "m" . }}{{ end }}`,
	`{{ range or (service "none") (service "SVC") }}{{ .Address }} {{ end }}`, `{{ scratch.Set "x" (key "KEY") }}{{ scratch.Get "x" }}`,
	`{{ range service "SVC" }}{{ scratch.MapSet "m" .ID .Port }}{{ end }}{{ scratch.MapValues "m" }}`, `{{ service "SVC" | toJSON }}`, `{{ with service "SVC" }}{{ (index . 0).Port }}{{ end }}`,
	`{{ key "KEY" | split "," | join "-" }}`, `{{ key "KEY" | replaceAll "a" "b" | toTitle }}`, `{{ key "KEY" | trimSpace | regexReplaceAll "[0-9]+" "N" }}`,
	`{{ key "KEY" | base64Encode }}`, `{{ key "KEY" | sha256Hex }}`, `{{ key "KEY" | indent 2 }}`, `{{ if key "KEY" | regexMatch "^[a-z]" }}m{{ end }}`,
	`{{ with $d := key "app/json" | parseJSON }}{{ $d.a }} {{ range $d.list }}{{ . }}{{ end }}{{ $d.none }}{{ end }}`, `{{ range $k, $v := key "app/json" | parseJSON }}{{ $k }}={{ $v }} {{ end }}`,
	`{{ key "app/yaml" | parseYAML | toJSON }}`, `{{ key "app/json" | parseJSON | toTOML }}`, `{{ key "app/json" | parseJSON | toJSONPretty }}`, `{{ add 1 2 }} {{ 7 | modulo 2 }} {{ multiply 2 3 }} {{ divide 2 7 }} {{ subtract 1 5 }}`,
	`{{ range loop 1 4 }}{{ . }}{{ end }}`, `{{ range $i := loop 2 }}{{ $i }} {{ end }}`, `{{ parseBool "true" }} {{ parseInt "12" }} {{ parseFloat "1.5" }} {{ parseUint "3" }}`,
	`{{ key "KEY" | sprig_upper | sprig_quote }}`, `{{ maximum 1 3 }} {{ minimum 1 3 }}`, `{{ key "KEY" | toLower | len }}`, `{{ range split "," (key "KEY") }}[{{ . }}]{{ end }}`,
	`{{ keyOrDefault "app/none" "x" | toUpper }}`, `{{- key "KEY" -}} x`, "a {{- /* c */ -}} b", `{{ containsAny (key "KEY" | split ",") (split "," "a,b") }}`, `{{ hmacSHA256Hex "k" (key "KEY") }}`, `{{ md5sum "x" }}`,
}

func pick[T any](w *rand.Rand, list []T) T { return list[w.IntN(len(list))] }

// newTrial makes a template of some pieces, and data.
func newTrial(w *rand.Rand, piece string) trial {
	keys := []string{"app/name", "app/port", "app/db/host", "app/db/port", "app/z", "app/db/deep/x", "app/B", "app/a-b"}
	t := trial{Keys: map[string]string{"app/json": `{"a":1,"list":["x","y"],"m":{"k":"v"},"f":2.5}`, "app/yaml": "a: 1\nb: [x, y]\n"}, Services: map[string][]trialMember{}}
	for _, key := range keys {
		if key == "app/name" || w.IntN(4) > 0 {
			t.Keys[key] = pick(w, []string{"shop", "a,b", " 12 ", "", "x\ny", "Träger"})
		}
	}
	for i, name := range []string{"web", "db", "api-v2"} {
		for n := range w.IntN(4) + min(i, 1) {
			node := fmt.Sprint("host", w.IntN(12))
			m := trialMember{ID: fmt.Sprint("s", 9-n), Node: node, Host: fmt.Sprintf("10.0.%d.%d", w.IntN(12), n+1), Port: 80 + w.IntN(1000)}
			for _, tag := range []string{"blue", "prod"} {
				if w.IntN(2) == 0 {
					m.Tags = append(m.Tags, tag)
				}
			}
			t.Services[name] = append(t.Services[name], m)
		}
	}
	text := piece
	if w.IntN(3) == 0 {
		text = `{{ if keyExists "KEY" }}` + text + "{{ end }}\n" + pick(w, pieces)
	}
	for word, from := range map[string][]string{
		"KEY": append(keys, "app/none"), "DIR": {"app", "app/db", "/app/db/", "app/none", "app/db/deep"}, "SVC": {"db", "api-v2", "web"}, "TAG": {"blue", "prod"},
	} {
		for strings.Contains(text, word) {
			text = strings.Replace(text, word, pick(w, from), 1)
		}
	}
	t.Template = text
	return t
}

// fixture is the data of a trial as it stands in ZooKeeper, for the configs of a result.
func (t trial) fixture(tb testing.TB, configs, asked map[string]string) *corpus {
	tb.Helper()
	groups, set := map[string]any{"none": map[string]any{}}, map[string]any{}
	for name, list := range t.Services {
		members := []any{}
		for _, m := range list {
			labels := map[string]string{}
			for _, tag := range m.Tags {
				labels[tag] = ""
			}
			maps.Copy(labels, m.Meta)
			members = append(members, map[string]any{"id": m.ID, "name": m.ID, "node": m.Node, "host": m.Host, "port": m.Port, "labels": labels})
		}
		groups[name] = map[string]any{"members": members}
		set[name] = groups[name]
	}
	for name := range asked {
		if groups[name] == nil {
			groups[name] = map[string]any{}
		}
	}
	trees := map[string]map[string]string{}
	for name, path := range configs {
		trees[name] = map[string]string{}
		for key, value := range t.Keys {
			if rest, ok := strings.CutPrefix("/"+key, strings.TrimSuffix(path, "/")+"/"); ok {
				trees[name][rest] = value
			} else if path == rootPath {
				trees[name][key] = value
			}
		}
	}
	data, err := json.Marshal(map[string]any{"configs": trees, "groups": groups, "group_sets": map[string]any{"services": set}})
	if err != nil {
		tb.Fatal(err)
	}
	f, err := template.ParseFixture(data)
	if err != nil {
		tb.Fatal(err)
	}
	return &corpus{Data: f}
}

// TestDifferential renders generated templates by the other program's own library and by
// what the import makes of them. ZKAGENT_ORIGINALS=1 runs it: it fetches the libraries.
// What is translated is the same to the byte; the rest is flagged, or fails.
func TestDifferential(t *testing.T) {
	if os.Getenv("ZKAGENT_ORIGINALS") == "" {
		t.Skip("ZKAGENT_ORIGINALS is not set")
	}
	for program, generate := range map[string]struct {
		pieces []string
		trial  func(*rand.Rand, string) trial
	}{
		"consul-template": {pieces, newTrial},
		"confd":           {confdPieces, newKeyTrial(confdPieces)},
		"remco":           {remcoPieces, newKeyTrial(remcoPieces)},
	} {
		t.Run(program, func(t *testing.T) {
			w := rand.New(rand.NewPCG(1, 2))
			var trials []trial
			for range 20 {
				for _, piece := range generate.pieces {
					trials = append(trials, generate.trial(w, piece))
				}
			}
			counts := map[string]int{}
			for i, want := range original(t, program, trials) {
				class, what := trials[i].compare(t, program, want)
				if counts[class]++; class == "wrong" || class == "fails here" {
					t.Error(what)
				}
				if class == "flagged" { // the note says why
					t.Log(what)
				}
			}
			t.Logf("%d templates: %v", len(trials), counts)
		})
	}
}

// compare classifies what the import makes of a trial, beside what the other program gives.
func (t trial) compare(tb testing.TB, program string, want map[string]string) (string, string) {
	tb.Helper()
	k := corpusCase{Template: t.Template}
	if t.Prefix != "" {
		k.Settings = map[string]string{
			"confd": fmt.Sprintf("[template]\nsrc = \"t.tmpl\"\ndest = \"/t\"\nkeys = [\"/\"]\nprefix = %q\n", t.Prefix),
			"remco": fmt.Sprintf("[[resource]]\nname = \"t\"\n[[resource.template]]\nsrc = \"t.tmpl\"\ndst = \"/t\"\n[resource.backend.zookeeper]\nkeys = [\"/\"]\nprefix = %q\n", t.Prefix),
		}[program]
	}
	r, err := translateCase(program, k)
	if err != nil {
		tb.Fatal(err)
	}
	if r.Lost() > 0 {
		return "flagged", strings.Join(r.Notes(), "\n")
	}
	got, err := renderCase(tb, t.fixture(tb, r.configs, r.groups), k, r.Settings(true))
	switch {
	case want["error"] != "":
		return "fails there", want["error"]
	case err != nil && strings.Contains(err.Error(), "no member"): // the last file stays: the import says so
		return "waits here", err.Error()
	case err != nil:
		return "fails here", err.Error() + "\n" + t.Template + "\n" + r.Templates[0].Text
	case got != want["text"]:
		return "wrong", fmt.Sprintf("%s\n got %q, %v\nwant %q\n%v %v\n%s", t.Template, got, err, want["text"], t.Keys, t.Services, r.Templates[0].Text)
	}
	return "identical", ""
}

// originals are how the other programs are built: modules, or a module that is changed
// and has the program as one of its packages.
var originals = map[string]struct {
	modules []string
	changed string
	files   map[string]string
}{
	"consul-template": {modules: []string{"github.com/hashicorp/consul-template@v0.41.0"}},
	// The engine of remco is a copy of pongo2, with the options that pongo2 has since.
	"remco": {modules: []string{"github.com/flosch/pongo2/v6@v6.0.0", "gopkg.in/yaml.v3@v3.0.1", "sigs.k8s.io/yaml@v1.6.0"}},
	// confd has no go.mod, and no exported list of its functions; its backends do not build any more.
	"confd": {changed: "github.com/kelseyhightower/confd@v0.16.0", files: map[string]string{
		"go.mod": `module github.com/kelseyhightower/confd

go 1.21

require (
	github.com/BurntSushi/toml v0.3.0
	github.com/kelseyhightower/memkv v0.1.1
	github.com/sirupsen/logrus v1.0.5
	github.com/xordataexchange/crypt v0.0.3-0.20170626215501-b2862e3d0a77
	golang.org/x/crypto v0.57.0
	golang.org/x/sys v0.49.0
)
`,
		"backends/client.go": `package backends

type StoreClient interface {
	GetValues(keys []string) (map[string]string, error)
	WatchPrefix(prefix string, keys []string, waitIndex uint64, stopChan chan bool) (uint64, error)
}

func New(Config) (StoreClient, error) { return nil, nil }
`,
		"resource/template/export.go": "package template\n\nfunc Functions() map[string]interface{} { return newFuncMap() }\n",
	}},
}

// original renders by the original program.
func original(t *testing.T, program string, trials []trial) []map[string]string {
	t.Helper()
	dir := t.TempDir()
	run := func(stdin []byte, args ...string) []byte {
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		var errs bytes.Buffer
		c.Dir, c.Stdin, c.Stderr = dir, bytes.NewReader(stdin), &errs
		c.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, errs.String())
		}
		return out
	}
	how := originals[program]
	if how.changed != "" {
		var module struct{ Dir string }
		if err := json.Unmarshal(run(nil, "go", "mod", "download", "-json", how.changed), &module); err != nil {
			t.Fatal(err)
		}
		copyChanged(t, dir, module.Dir, how.files)
	}
	source, err := os.ReadFile(filepath.Join("testdata", "original", program, "main.go"))
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(dir, "original"), 0o700), os.WriteFile(filepath.Join(dir, "original", "main.go"), source, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if how.changed == "" {
		run(nil, "go", "mod", "init", "original")
		run(nil, slices.Concat([]string{"go", "get"}, how.modules)...)
	}
	run(nil, "go", "build", "-o", "program", "./original")
	data, err := json.Marshal(trials)
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	if err := json.Unmarshal(run(data, "./program"), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// copyChanged copies a module of the cache, with files of ours.
func copyChanged(t *testing.T, dir, module string, files map[string]string) {
	t.Helper()
	if err := errors.Join(os.CopyFS(dir, os.DirFS(module)), os.RemoveAll(filepath.Join(dir, "vendor"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		// The files of the module cache are read-only, and so are their copies.
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
