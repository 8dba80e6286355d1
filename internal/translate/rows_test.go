package translate

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// row is what stands behind one row of a table in docs/migrating.md.
type row struct {
	Settings string   `yaml:"settings"`
	Template string   `yaml:"template"`
	Env      []string `yaml:"env"`  // NAME=VALUE of the import
	Has      []string `yaml:"has"`  // what the result holds
	Lost     []string `yaml:"lost"` // what a note says that is not translated
	Test     string   `yaml:"test"` // the test that shows the row, where no translation does
}

var tableRow = regexp.MustCompile(`^\| (.*?[^\\]) \| .* \|$`)

// Each row of the tables of docs/migrating.md has a pair in testdata/rows.yaml: what
// stands in its first cell, and what it becomes. No pair is without a row.
func TestRows(t *testing.T) {
	data, err := os.ReadFile("testdata/rows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows map[string]map[string]row
	if err := yaml.UnmarshalStrict(data, &rows); err != nil {
		t.Fatal(err)
	}
	for program, cells := range documentedRows(t) {
		for _, cell := range cells {
			r, ok := rows[program][cell]
			if !ok {
				t.Errorf("%s: the row %q has no pair", program, cell)
				continue
			}
			delete(rows[program], cell)
			t.Run(program+"/"+cell, func(t *testing.T) { runRow(t, program, r) })
		}
		for cell := range rows[program] {
			t.Errorf("%s: no row of the page is %q", program, cell)
		}
	}
}

// documentedRows are the first cells of the tables, by program.
func documentedRows(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migrating.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, program, head := map[string][]string{}, "", true
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "## From "); ok {
			program = strings.ToLower(name)
		}
		m := tableRow.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "|--") || program == "":
		case m == nil:
			head = true
		case head:
			head = false
		default:
			rows[program] = append(rows[program], m[1])
		}
	}
	if len(rows) < 3 {
		t.Fatalf("got %d tables", len(rows))
	}
	return rows
}

func runRow(t *testing.T, program string, r row) {
	t.Helper()
	if r.Test != "" {
		if !declared(t, r.Test) {
			t.Errorf("there is no test %s", r.Test)
		}
		return
	}
	read := func(string) ([]byte, error) {
		if r.Template == "" {
			return nil, errors.New("there is no such file")
		}
		return []byte(r.Template), nil
	}
	res, err := translateCase(program, corpusCase{Settings: r.Settings, Template: r.Template})
	if parts := strings.Fields(r.Settings); len(parts) == 2 && parts[0] == "--template" {
		res, err = ConsulTemplateFlag(nil, parts[1], read)
	}
	if err != nil {
		t.Fatal(err)
	}
	ConsulTemplateEnv(res, func(name string) (string, bool) {
		for _, pair := range r.Env {
			if v, ok := strings.CutPrefix(pair, name+"="); ok {
				return v, true
			}
		}
		return "", false
	})
	text := res.Settings(true)
	for _, tmpl := range res.Templates {
		text += tmpl.Text
	}
	for _, has := range r.Has {
		if !strings.Contains(text, has) {
			t.Errorf("%q is missing in\n%s", has, text)
		}
	}
	for _, lost := range r.Lost {
		if !slices.ContainsFunc(res.Notes(), func(n string) bool { return strings.Contains(n, lost) }) || !strings.Contains(text, "# import: ") {
			t.Errorf("nothing says that %q is not translated: %q", lost, res.Notes())
		}
	}
	if len(r.Lost) == 0 && res.Lost() > 0 {
		t.Errorf("not translated: %q", res.Notes())
	}
	if len(r.Has)+len(r.Lost) == 0 {
		t.Error("the pair says nothing")
	}
}

// declared reports whether a package of the module has a test: DIRECTORY:NAME.
func declared(t *testing.T, test string) bool {
	t.Helper()
	dir, name, _ := strings.Cut(test, ":")
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "func "+name+"(") {
			return true
		}
	}
	return false
}

// ls and tree list what is below a path. consul-template takes the path as the
// beginning of keys, too.
func TestRows_PrefixOfAName(t *testing.T) {
	c := readCorpus(t, "consul-template")
	for text, want := range map[string]string{`{{ range ls "app/d" }}{{ .Key }}{{ end }}|`: "|", `{{ range tree "app/db" }}{{ .Key }} {{ end }}|`: "host port |"} {
		k := corpusCase{Template: text}
		r, err := translateCase("consul-template", k)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := renderCase(t, c, k, r.Settings(true)); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// A program that is not enabled is not translated.
func TestConsulTemplate_ExecThatIsNotEnabled(t *testing.T) {
	r, err := ConsulTemplate(nil, "a.hcl", []byte("exec {\n command = \"x\"\n enabled = false\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := r.Settings(true); strings.Contains(text, "exec \"main\"") || strings.Contains(text, "pass_env") {
		t.Errorf("got %s", text)
	}
}
