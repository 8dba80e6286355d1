package translate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// corpusCase is one configuration of another program, with the data that it was
// used with and the bytes that it wrote for them.
type corpusCase struct {
	Name     string            `yaml:"name"`
	Class    string            `yaml:"class"`    // identical, edit, refused
	Template string            `yaml:"template"` // the template alone
	Settings string            `yaml:"settings"` // or the settings, with their templates in files
	Files    map[string]string `yaml:"files"`
	Data     template.Fixture  `yaml:"data"`
	Env      map[string]string `yaml:"env"`
	Want     string            `yaml:"want"`
	Has      []string          `yaml:"has"`  // what the settings have to hold
	Edit     []string          `yaml:"edit"` // OLD, NEW: what a person does to the result
	Why      string            `yaml:"why"`  // a part of the note that says what to do
}

// corpus is one file of cases.
type corpus struct {
	Data  template.Fixture `yaml:"data"`
	Cases []corpusCase     `yaml:"cases"`
}

// least is how many cases of each program there are, at least.
var least = map[string]int{"consul-template": 60, "confd": 30, "remco": 5, "nerve": 4, "synapse": 4}

// share is the least share of identical ones, at once or after one stated edit.
const share = 0.85

// TestCorpus translates the configurations of other programs: what comes out is
// the same to the byte, or the import says that it is not done.
func TestCorpus(t *testing.T) {
	counts := map[string]int{}
	for program, want := range least {
		c := readCorpus(t, program)
		if len(c.Cases) < want {
			t.Errorf("%s: %d cases, want at least %d", program, len(c.Cases), want)
		}
		for _, k := range c.Cases {
			counts[k.Class]++
			t.Run(program+"/"+k.Name, func(t *testing.T) { runCorpusCase(t, program, c, k) })
		}
	}
	all := counts["identical"] + counts["edit"] + counts["refused"]
	t.Logf("%d cases: %v", all, counts)
	if got := float64(counts["identical"]+counts["edit"]) / float64(all); got < share {
		t.Errorf("%.0f %% are identical at once or after an edit, want %.0f %%", got*100, share*100)
	}
}

func readCorpus(t *testing.T, program string) *corpus {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "corpus", program+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c corpus
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func runCorpusCase(t *testing.T, program string, c *corpus, k corpusCase) {
	t.Helper()
	r, err := translateCase(program, k)
	if err != nil {
		t.Fatal(err)
	}
	text := r.Settings(true)
	for _, has := range k.Has {
		if !strings.Contains(text, has) {
			t.Errorf("%q is missing", has)
		}
	}
	if k.Why != "" && !slices.ContainsFunc(r.Notes(), func(n string) bool { return strings.Contains(n, k.Why) }) {
		t.Errorf("no note says %q: %q", k.Why, r.Notes())
	}
	got, err := renderCase(t, c, k, text)
	switch k.Class {
	case "identical":
		if r.Lost() != 0 || err != nil || got != k.Want {
			t.Errorf("lost %d %q\n%s\ngot %q %v\nwant %q", r.Lost(), r.Notes(), text, got, err, k.Want)
		}
	case "edit":
		if r.Lost() == 0 || err == nil {
			t.Errorf("nothing says that an edit is needed:\n%s\ngot %q", text, got)
		}
		text = edited(t, r, k.Edit)
		var lines []string
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(strings.TrimSpace(line), "# import:") {
				lines = append(lines, line)
			}
		}
		if got, err := renderCase(t, c, k, strings.Join(lines, "")); err != nil || got != k.Want {
			t.Errorf("after the edit\n%s\ngot %q %v\nwant %q", text, got, err, k.Want)
		}
	case "refused":
		if r.Lost() == 0 || err == nil {
			t.Errorf("it is not refused:\n%s\ngot %q", text, got)
		}
	default:
		t.Errorf("the class %q", k.Class)
	}
	if r, _ := translateCase(program, k); r.Lost() > 0 {
		if _, err := settings.LoadBytes("zkagent.hcl", []byte(r.Settings(true)), settings.Options{Offline: true}); err == nil {
			t.Errorf("validate takes what is not translated:\n%s", r.Settings(true))
		}
	}
}

// failing is an action that fails; FAIL stands for it in an edit.
var failing = regexp.MustCompile(`fail "import: (\\.|[^"\\])*"`)

// edited makes the changes to the template, or else to the settings.
func edited(t *testing.T, r *Result, edit []string) string {
	t.Helper()
	for _, tmpl := range r.Templates {
		tmpl.Text = failing.ReplaceAllString(tmpl.Text, "FAIL")
	}
	for i := 0; i+1 < len(edit); i += 2 {
		done := false
		for _, tmpl := range r.Templates {
			if strings.Contains(tmpl.Text, edit[i]) {
				tmpl.Text, done = strings.ReplaceAll(tmpl.Text, edit[i], edit[i+1]), true
			}
		}
		if !done {
			t.Errorf("there is no %q to edit in\n%s", edit[i], r.Settings(true))
		}
	}
	return r.Settings(true)
}

func translateCase(program string, k corpusCase) (*Result, error) {
	read := func(name string) ([]byte, error) {
		for file, text := range k.Files {
			if filepath.Base(name) == file {
				return []byte(text), nil
			}
		}
		if k.Template != "" {
			return []byte(k.Template), nil
		}
		return nil, errors.New("there is no such file")
	}
	text := k.Settings
	switch program {
	case "confd":
		if text == "" {
			text = "[template]\nsrc = \"t.tmpl\"\ndest = \"/etc/t.conf\"\nkeys = [\"/\"]\n"
		}
		return Confd(nil, "t.toml", []byte(text), read)
	case "remco":
		if text == "" {
			text = "[[template]]\nsrc = \"t.tmpl\"\ndst = \"/etc/t.conf\"\n"
		}
		return Remco(nil, "t.toml", []byte(text), read)
	case "nerve":
		return Nerve(nil, "nerve.conf.json", []byte(text))
	case "synapse":
		return Synapse(nil, "synapse.conf.json", []byte(text))
	}
	if text == "" {
		text = "template {\n  source = \"t.ctmpl\"\n  destination = \"/etc/t.conf\"\n}\n"
	}
	return ConsulTemplate(nil, "t.hcl", []byte(text), read)
}

// renderCase renders the first template of some settings. Settings without one
// give nothing.
func renderCase(tb testing.TB, c *corpus, k corpusCase, text string) (string, error) {
	tb.Helper()
	env := func(name string) (string, bool) { v, ok := k.Env[name]; return v, ok }
	s, err := settings.LoadBytes("zkagent.hcl", []byte(text), settings.Options{Offline: true, Env: env, Hostname: func() (string, error) { return "host1", nil }})
	if err != nil {
		var list []string
		for _, d := range s.Diagnostics {
			list = append(list, settings.Line(d))
		}
		return "", fmt.Errorf("%w: %s", err, strings.Join(list, "\n"))
	}
	if len(s.Config.Bundles) == 0 {
		return "", nil
	}
	v, err := k.Data.Over(c.Data).View()
	if err != nil {
		tb.Fatal(err)
	}
	for _, g := range s.Config.Groups {
		if have, ok := v.Group(g.Name); ok {
			with := *have
			with.OnEmpty = g.OnEmpty
			v = v.With(&with)
		}
	}
	v.Agent = view.Agent{ID: "host1", Host: "host1"}
	parsed, err := s.Config.Bundles[0].Templates[0].Parse()
	if err != nil {
		return "", err
	}
	out, err := parsed.Render(tb.Context(), &v, nil)
	return string(out), err
}
