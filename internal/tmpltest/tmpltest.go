// Package tmpltest runs unit tests of templates: data in, expected file or error
// out. docs/templates.md describes the files of tests.
package tmpltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Options say which tests are run, and how.
type Options struct {
	Match  *regexp.Regexp // of the names of tests
	Update bool           // write what was rendered into the files that are expected
	Cover  *Cover         // collects what was rendered; nil: nothing
}

// Result is how one test ended.
type Result struct {
	File     string       `json:"file"`
	Name     string       `json:"name"`
	Template string       `json:"template,omitempty"`
	OK       bool         `json:"ok"`
	Updated  bool         `json:"updated,omitempty"`
	Error    string       `json:"error,omitempty"` // what is wrong, in one line
	Diff     string       `json:"diff,omitempty"`
	Took     view.Seconds `json:"took_seconds"`
}

// Run runs the tests of the files. The error is of a file itself.
func Run(ctx context.Context, files []string, o Options) ([]Result, error) {
	results := []Result{}
	for _, name := range files {
		list, err := runFile(ctx, name, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, list...)
	}
	return results, nil
}

// Inputs are all files that decide how the tests of these files end, and the
// files themselves.
func Inputs(files []string) []string {
	var list []string
	for _, name := range files {
		list = append(list, name)
		f, err := readTestFile(name)
		if err != nil {
			continue // it has to change before anything else matters
		}
		if f.Settings != "" {
			list = append(list, f.settingsFiles()...)
		}
		for _, c := range f.Tests {
			for _, path := range []string{c.Source, c.DataFile, c.WantFile} {
				if path != "" {
					list = append(list, f.at(path))
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (f *testFile) settingsFiles() []string {
	s, err := settings.Load([]string{f.at(f.Settings)}, f.options())
	if err != nil {
		list, _ := filepath.Glob(filepath.Join(f.at(f.Settings), "*.hcl"))
		return append(list, f.at(f.Settings))
	}
	list := slices.Clone(s.Config.Files)
	for _, b := range s.Config.Bundles {
		for _, t := range b.Templates {
			if t.Source != "" {
				list = append(list, t.Source)
			}
		}
	}
	return list
}

// Files are the test files that the arguments mean, in order: a directory means
// every *_test.yaml below it.
func Files(args []string) ([]string, error) {
	var files []string
	for _, a := range args {
		info, err := os.Stat(a)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, a)
			continue
		}
		err = filepath.WalkDir(a, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (strings.HasSuffix(path, "_test.yaml") || strings.HasSuffix(path, "_test.yml")) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

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
	data, err := files.ReadNamed(path, files.MaxSize)
	if err != nil {
		return nil, err
	}
	f := &testFile{path: path, lines: testLines(data)}
	if err := template.UnmarshalStrict(data, f); err != nil {
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
	switch {
	case !one(c.Template != "", c.Source != "", c.Contents != ""):
		return errors.New("give one of template, source and contents")
	case !one(c.Want != nil, c.WantFile != "", c.WantError != ""):
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

// one reports whether one of these is set, and no other.
func one(set ...bool) bool {
	i := slices.Index(set, true)
	return i >= 0 && !slices.Contains(set[i+1:], true)
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
		text, err := files.ReadNamed(f.at(c.DataFile), files.MaxSize)
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
	v.Agent.ID, v.Agent.Host = cmp.Or(v.Agent.ID, "agent1"), cmp.Or(v.Agent.Host, "host1.example.com")
	return v, err
}
