package tmpltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// testFile is one file of tests. docs/templates.md describes it.
type testFile struct {
	Settings string            `yaml:"settings"` // file or directory; names in template are looked up there
	Env      map[string]string `yaml:"env"`      // the whole environment of settings and templates
	Data     template.Fixture  `yaml:"data"`     // for all tests of the file
	Tests    []testCase        `yaml:"tests"`

	// The results of timestamp and sockaddr in all tests of the file.
	Now      string            `yaml:"now"` // RFC 3339
	Sockaddr map[string]string `yaml:"sockaddr"`

	path  string
	lines map[string]int // of the tests, by name
}

type testCase struct {
	Name     string            `yaml:"name"`
	Template string            `yaml:"template"` // name in the settings: TEMPLATE, or BUNDLE/TEMPLATE
	Source   string            `yaml:"source"`   // or a template file
	Contents string            `yaml:"contents"` // or the template itself
	Allow    []string          `yaml:"allow"`    // for source and contents, as in a template block
	Syntax   string            `yaml:"syntax"`
	Missing  *bool             `yaml:"error_on_missing_key"`
	Each     string            `yaml:"each"` // key of the element, for a template with for_each
	Env      map[string]string `yaml:"env"`
	Data     template.Fixture  `yaml:"data"` // laid over that of the file
	DataFile string            `yaml:"data_file"`
	Now      string            `yaml:"now"`
	Sockaddr map[string]string `yaml:"sockaddr"`

	Want            *string `yaml:"want"`
	WantFile        string  `yaml:"want_file"`
	WantError       string  `yaml:"want_error"` // regular expression
	WantDestination string  `yaml:"want_destination"`
}

func readTestFile(path string) (*testFile, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the user names his tests
	if err != nil {
		return nil, err
	}
	f := &testFile{path: path, lines: testLines(data)}
	if err := yaml.UnmarshalStrict(data, f); err != nil {
		return nil, err
	}
	if len(f.Tests) == 0 {
		return nil, errors.New("it has no tests")
	}
	seen := map[string]bool{}
	for i, c := range f.Tests {
		if c.Name == "" {
			return nil, fmt.Errorf("test %d has no name", i+1)
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("two tests are called %q", c.Name)
		}
		seen[c.Name] = true
		if err := c.check(f); err != nil {
			return nil, fmt.Errorf("test %q: %w", c.Name, err)
		}
	}
	return f, nil
}

var testName = regexp.MustCompile(`^\s*(?:-\s+)?name:\s*(.*?)\s*$`)

func testLines(data []byte) map[string]int {
	lines := map[string]int{}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if m := testName.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			var name string
			if yaml.Unmarshal([]byte(m[1]), &name) == nil && lines[name] == 0 {
				lines[name] = n
			}
		}
	}
	return lines
}

// check finds what is missing in a test, or there twice.
func (c *testCase) check(f *testFile) error {
	sources, wants := 0, 0
	for _, set := range []bool{c.Template != "", c.Source != "", c.Contents != ""} {
		if set {
			sources++
		}
	}
	for _, set := range []bool{c.Want != nil, c.WantFile != "", c.WantError != ""} {
		if set {
			wants++
		}
	}
	switch {
	case sources != 1:
		return errors.New("give one of template, source and contents")
	case wants != 1:
		return errors.New("give one of want, want_file and want_error")
	case c.Template != "" && f.Settings == "":
		return errors.New("template is a name in the settings: name them by \"settings\" at the top of the file, or give source")
	case c.Template != "" && (c.Allow != nil || c.Syntax != "" || c.Missing != nil):
		return errors.New("allow, syntax and error_on_missing_key come from the settings")
	case c.Template == "" && c.WantDestination != "":
		return errors.New("want_destination needs a template of the settings")
	}
	return nil
}

func (f *testFile) at(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.path), path)
}

func (f *testFile) view(c *testCase) (view.View, error) {
	data := f.Data
	if c.DataFile != "" {
		text, err := os.ReadFile(f.at(c.DataFile))
		if err != nil {
			return view.View{}, err
		}
		more, err := template.ParseFixture(text)
		if err != nil {
			return view.View{}, fmt.Errorf("%s: %w", c.DataFile, err)
		}
		data = more.Over(data)
	}
	v, err := c.Data.Over(data).View()
	if v.Agent.ID == "" {
		v.Agent.ID = "agent1"
	}
	if v.Agent.Host == "" {
		v.Agent.Host = "host1.example.com"
	}
	return v, err
}
