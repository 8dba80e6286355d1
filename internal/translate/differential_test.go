package translate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/template"
)

// trial is one template with data, as testdata/original takes it.
type trial struct {
	Template string
	Keys     map[string]string
	Services map[string][]trialMember
}

type trialMember struct {
	ID, Node, Host string
	Port           int
	Tags           []string
}

// pieces are constructs of templates. In them KEY, DIR, SVC and TAG stand for random names.
var pieces = []string{
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

// fixture is the data of a trial as it stands in ZooKeeper.
func (t trial) fixture(tb testing.TB) *corpus {
	tb.Helper()
	groups, set := map[string]any{"none": map[string]any{}}, map[string]any{}
	for name, list := range t.Services {
		members := []any{}
		for _, m := range list {
			labels := map[string]string{}
			for _, tag := range m.Tags {
				labels[tag] = ""
			}
			members = append(members, map[string]any{"id": m.ID, "name": m.ID, "node": m.Node, "host": m.Host, "port": m.Port, "labels": labels})
		}
		groups[name] = map[string]any{"members": members}
		set[name] = groups[name]
	}
	for _, name := range []string{"web", "db", "api-v2"} {
		if groups[name] == nil {
			groups[name] = map[string]any{}
		}
	}
	keys := map[string]string{}
	for key, value := range t.Keys {
		keys[strings.TrimPrefix(key, "app/")] = value
	}
	data, err := json.Marshal(map[string]any{"configs": map[string]any{"app": keys}, "groups": groups, "group_sets": map[string]any{"services": set}})
	if err != nil {
		tb.Fatal(err)
	}
	f, err := template.ParseFixture(data)
	if err != nil {
		tb.Fatal(err)
	}
	return &corpus{Data: f}
}

// TestDifferential_ConsulTemplate renders generated templates by consul-template's own
// library and by what the import makes of them. ZKAGENT_ORIGINALS=1 runs it: it fetches the
// library. What is translated is the same to the byte; the rest is flagged, or fails.
func TestDifferential_ConsulTemplate(t *testing.T) {
	if os.Getenv("ZKAGENT_ORIGINALS") == "" {
		t.Skip("ZKAGENT_ORIGINALS is not set")
	}
	w := rand.New(rand.NewPCG(1, 2))
	var trials []trial
	for range 20 {
		for _, piece := range pieces {
			trials = append(trials, newTrial(w, piece))
		}
	}
	counts := map[string]int{}
	for i, want := range original(t, trials) {
		k := corpusCase{Template: trials[i].Template}
		r, err := translateCase("consul-template", k)
		if err != nil {
			t.Fatal(err)
		}
		text := r.Settings(true)
		got, err := renderCase(t, trials[i].fixture(t), k, text)
		switch {
		case r.Lost() > 0:
			counts["flagged"]++
		case want["error"] != "":
			counts["fails there"]++
		case err != nil && strings.Contains(err.Error(), "no member"): // the last file stays: the import says so
			counts["waits here"]++
		case err != nil || got != want["text"]:
			counts["wrong"]++
			t.Errorf("%s\n got %q, %v\nwant %q\n%v", trials[i].Template, got, err, want["text"], trials[i].Services)
		default:
			counts["identical"]++
		}
	}
	t.Logf("%d templates: %v", len(trials), counts)
}

// original renders by the original program.
func original(t *testing.T, trials []trial) []map[string]string {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile(filepath.Join("testdata", "original", "main.go"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(stdin []byte, args ...string) []byte {
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		var errs bytes.Buffer
		c.Dir, c.Stdin, c.Stderr = dir, bytes.NewReader(stdin), &errs
		c.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, errs.String())
		}
		return out
	}
	run(nil, "go", "mod", "init", "original")
	run(nil, "go", "get", "github.com/hashicorp/consul-template@v0.41.0")
	run(nil, "go", "build", "-o", "original", ".")
	data, err := json.Marshal(trials)
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	if err := json.Unmarshal(run(data, "./original"), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
