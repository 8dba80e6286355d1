package translate

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/template"
)

// synapseCase is settings of Synapse, in files by name, and the members that are at
// paths of ZooKeeper.
type synapseCase struct {
	Name    string
	Files   [][2]string
	Members map[string][]map[string]any
	Want    string
}

// TestSynapse_Golden compares with what Synapse writes: testdata/original/synapse says how
// the files were made. Each imported file renders to the same bytes.
func TestSynapse_Golden(t *testing.T) {
	data, err := os.ReadFile("testdata/original/synapse/golden.json")
	var cases []synapseCase
	if err == nil {
		err = json.Unmarshal(data, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, k := range cases {
		t.Run(k.Name, func(t *testing.T) {
			var r *Result
			for _, file := range k.Files {
				if r, err = Synapse(r, file[0], []byte(file[1])); err != nil {
					t.Fatal(err)
				}
			}
			if r.Lost() > 0 {
				counts["flagged"]++
				t.Log(r.Notes())
				return
			}
			counts["identical"]++
			if got, err := renderCase(t, k.fixture(t, r.groups), corpusCase{}, r.Settings(true)); err != nil || got != k.Want {
				t.Errorf("%s\n%v\n got %q\nwant %q\n%s", k.Files[0][1], err, got, k.Want, r.Templates[0].Text)
			}
		})
	}
	if t.Logf("%d cases: %v", len(cases), counts); counts["identical"]*10 < len(cases)*9 {
		t.Error("fewer than 90 of 100 are identical")
	}
}

// fixture is the data of a case for the groups of a result.
func (k synapseCase) fixture(t *testing.T, groups map[string]string) *corpus {
	t.Helper()
	all := map[string]any{}
	for label, path := range groups {
		var members []map[string]any
		for _, m := range k.Members[path] {
			m = maps.Clone(m)
			m["id"] = fmt.Sprint(m["name"], len(members))
			if options, ok := m["haproxy_server_options"]; ok {
				m["labels"] = map[string]any{"haproxy_server_options": options}
				delete(m, "haproxy_server_options")
			}
			members = append(members, m)
		}
		all[label] = map[string]any{"members": slices.Clip(members)}
	}
	data, err := json.Marshal(map[string]any{"groups": all})
	if err != nil {
		t.Fatal(err)
	}
	f, err := template.ParseFixture(data)
	if err != nil {
		t.Fatal(err)
	}
	return &corpus{Data: f}
}

// Each file of service_conf_dir is a watcher of the main file, in whatever order they are
// read. Without a main file nothing would be written: that is refused.
func TestSynapse_FilesOfServices(t *testing.T) {
	watcher := `{"discovery":{"method":"zookeeper","path":"/s/PATH"},"haproxy":{"port":80}}`
	files := [][2]string{
		{"d/b.json", strings.ReplaceAll(watcher, "PATH", "b")},
		{"synapse.conf.json", `{"service_conf_dir":"d","services":{"z":` + strings.ReplaceAll(watcher, "PATH", "z") + `},"haproxy":{}}`},
		{"d/c.yaml", strings.ReplaceAll(watcher, "PATH", "c")},
	}
	var r *Result
	for i, file := range files {
		var err error
		if r, err = Synapse(r, file[0], []byte(file[1])); err != nil {
			t.Fatal(err)
		}
		if lost := r.Lost() > 0; lost != (i == 0) {
			t.Errorf("after %s: %q", file[0], r.Notes())
		}
	}
	at := 0
	for _, want := range []string{"frontend z\n", "backend z\n", "frontend b\n", "backend b\n", "frontend c\n", "backend c\n"} {
		i := strings.Index(r.Templates[0].Text[at:], want)
		if i < 0 || len(r.Templates) != 1 {
			t.Fatalf("%q is not there in order: %s", want, r.Settings(true))
		}
		at += i
	}
	r, err := Synapse(r, "other.json", []byte(`{"services":{},"haproxy":{}}`))
	if err != nil || r.Lost() == 0 {
		t.Errorf("two main files: %v, %q", err, r.Notes())
	}
}
