// Package tmpltest runs unit tests of templates: data in, expected file or error
// out. docs/templates.md describes the files of tests.
package tmpltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
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
	f, n := &testFile{path: path, lines: map[string]int{}}, 0
	for line := range strings.Lines(string(data)) {
		n++
		if m := testName.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			var name string
			if yaml.Unmarshal([]byte(m[1]), &name) == nil && f.lines[name] == 0 {
				f.lines[name] = n
			}
		}
	}
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

type testRun struct {
	file   *testFile
	config *agent.Config // nil without settings
	cover  *Cover
}

func runFile(ctx context.Context, name string, o Options) ([]Result, error) {
	f, err := readTestFile(name)
	if err != nil {
		return nil, err
	}
	run := &testRun{file: f, cover: o.Cover}
	if f.Settings != "" {
		s, err := settings.Load([]string{f.at(f.Settings)}, f.options())
		if err != nil {
			return nil, err
		}
		run.config = &s.Config
		run.cover.settings(run.config)
	}
	var results []Result
	for i := range f.Tests {
		c := &f.Tests[i]
		if !o.Match.MatchString(c.Name) {
			continue
		}
		began := time.Now()
		r, err := run.test(ctx, c, o.Update)
		if err != nil { // A test that cannot be run has failed; the others continue.
			r = Result{Error: err.Error()}
		}
		if !r.OK && f.lines[c.Name] > 0 {
			r.Error = fmt.Sprintf("%s:%d: %s", name, f.lines[c.Name], r.Error)
		}
		r.File, r.Name, r.Template, r.Took = name, c.Name, c.Template, view.Seconds(time.Since(began))
		results = append(results, r)
	}
	return results, nil
}

// options read nothing of the host.
func (f *testFile) options() settings.Options {
	return settings.Options{Offline: true, Env: lookup(f.Env), Hostname: func() (string, error) { return "host1.example.com", nil }}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// test runs one test. The error is one of the test itself, not of what is
// tested.
func (r *testRun) test(ctx context.Context, c *testCase, update bool) (Result, error) {
	want, err := r.wanted(c, update)
	if err != nil {
		return Result{}, err
	}
	v, err := r.file.view(c)
	if err != nil {
		return Result{}, err
	}
	v = r.onEmpty(v)
	t, b, tc, err := r.template(c)
	var data []byte
	if err == nil {
		each, bad := r.element(c, b, &v)
		if bad == nil && c.WantDestination != "" {
			var got string
			got, bad = tc.Path(each)
			if want := filepath.Clean(r.file.at(c.WantDestination)); bad == nil && got != want {
				bad = fmt.Errorf("got destination %s, want %s", got, want)
			}
		}
		if bad != nil {
			return Result{}, bad
		}
		data, err = t.Render(ctx, &v, each)
	}
	if c.WantError != "" {
		return expectError(c.WantError, err)
	}
	if err != nil {
		return Result{Error: err.Error()}, nil //nolint:nilerr // the error is the result of the test
	}
	return r.compare(c, want, data, update)
}

// onEmpty gives the groups of the data what the settings say of them, where the
// data do not say it.
func (r *testRun) onEmpty(v view.View) view.View {
	if r.config == nil {
		return v
	}
	with := func(g view.Group, word string) *view.Group {
		g.OnEmpty = cmp.Or(g.OnEmpty, word)
		return &g
	}
	for _, c := range r.config.Groups {
		if g, ok := v.Group(c.Name); ok {
			v = v.With(with(*g, c.OnEmpty))
		}
	}
	for _, c := range r.config.GroupSets {
		if set, ok := v.Groups(c.Name); ok {
			one := *set
			one.Groups = slices.Clone(set.Groups)
			for i, g := range one.Groups {
				one.Groups[i] = with(*g, c.OnEmpty)
			}
			v = v.With(&one)
		}
	}
	return v
}

func (r *testRun) wanted(c *testCase, update bool) ([]byte, error) {
	if c.WantFile == "" {
		return []byte(*cmp.Or(c.Want, new(""))), nil
	}
	data, err := files.ReadNamed(r.file.at(c.WantFile), files.MaxSize)
	switch missing := errors.Is(err, os.ErrNotExist); {
	case missing && update:
		return nil, nil
	case missing:
		return nil, fmt.Errorf("%w; --update writes it", err)
	}
	return data, err
}

func expectError(want string, err error) (Result, error) {
	match, bad := regexp.Compile(want)
	switch {
	case bad != nil:
		return Result{}, fmt.Errorf("want_error: %w", bad)
	case err == nil:
		return Result{Error: fmt.Sprintf("rendered without an error, want one that matches %q", want)}, nil
	case !match.MatchString(err.Error()):
		return Result{Error: fmt.Sprintf("got error %q, want one that matches %q", err, want)}, nil
	}
	return Result{OK: true}, nil
}

// compare compares what was rendered, or makes it what is expected.
func (r *testRun) compare(c *testCase, want, got []byte, update bool) (Result, error) {
	_, err := os.Stat(r.file.at(c.WantFile))
	if string(want) == string(got) && (c.WantFile == "" || err == nil) {
		return Result{OK: true}, nil
	}
	name := "want of " + c.Name
	if c.WantFile != "" {
		name = r.file.at(c.WantFile)
		if update {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // beside the test, for its readers.
				return Result{}, err
			}
			return Result{OK: true, Updated: true}, os.WriteFile(name, got, 0o644) //nolint:gosec // as above.
		}
	}
	return Result{Error: "the rendered text is not the expected one", Diff: term.Diff(name, want, true, got)}, nil
}

// template finds and parses the template of a test; the bundle is nil for one
// that is not of the settings.
func (r *testRun) template(c *testCase) (*template.Template, *apply.Config, *apply.FileConfig, error) {
	env := map[string]string{}
	maps.Copy(env, r.file.Env)
	maps.Copy(env, c.Env)
	var b *apply.Config
	tc := &apply.FileConfig{
		Name: "contents", Contents: c.Contents,
		Config: template.Config{
			Dir: filepath.Dir(r.file.path), Allow: c.Allow, MissingKeyOK: c.Missing != nil && !*c.Missing,
			Syntax: c.Syntax, Syntaxes: settings.Syntaxes(),
		},
	}
	if c.Source != "" {
		tc.Source = r.file.at(c.Source)
	}
	if c.Template != "" {
		var err error
		if b, tc, err = r.find(c.Template); err != nil {
			return nil, nil, nil, err
		}
	}
	mine := *tc
	mine.LookupEnv = lookup(env)
	text, err := mine.Text()
	if err != nil {
		return nil, nil, nil, err
	}
	cfg := mine.Template(text)
	at, err := time.Parse(time.RFC3339, cmp.Or(c.Now, r.file.Now, defaultNow))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("now: %w", err)
	}
	cfg.Now = func() time.Time { return at }
	cfg.Sockaddr = func(expression string) (string, error) {
		for _, m := range []map[string]string{c.Sockaddr, r.file.Sockaddr} {
			if a, ok := m[expression]; ok {
				return a, nil
			}
		}
		return "", fmt.Errorf("sockaddr %q: nothing of this host is read; give the address by sockaddr: {%q: ADDRESS}", expression, expression)
	}
	cfg.Coverage = r.cover.of(tc)
	t, err := template.Parse(cfg)
	return t, b, tc, err
}

// defaultNow is what timestamp gives in a test that does not say it.
const defaultNow = "2006-01-02T15:04:05Z"

func (r *testRun) find(name string) (*apply.Config, *apply.FileConfig, error) {
	bundle, file, inside := strings.Cut(name, "/")
	var names []string
	for i := range r.config.Bundles {
		b := &r.config.Bundles[i]
		names = append(names, b.Name)
		if b.Name != bundle {
			continue
		}
		for j := range b.Templates {
			if b.Templates[j].Name == file || !inside && len(b.Templates) == 1 {
				return b, &b.Templates[j], nil
			}
		}
	}
	return nil, nil, fmt.Errorf("the settings have no template %q: they have %v; one of a bundle is BUNDLE/TEMPLATE", name, names)
}

// element is the element of for_each that a test is about.
func (r *testRun) element(c *testCase, b *apply.Config, v *view.View) (*template.Each, error) {
	if b == nil || b.ForEach == nil {
		if c.Each != "" {
			return nil, errors.New("each: the template has no for_each")
		}
		return nil, nil //nolint:nilnil // there is no element.
	}
	if c.Each == "" {
		return nil, fmt.Errorf("the template is rendered for each of %s: name one by \"each\"", b.ForEach)
	}
	list, err := template.Elements(v, *b.ForEach)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(e template.Each) bool { return e.Key == c.Each })
	if i < 0 {
		return nil, fmt.Errorf("each: %s of the data has no element %q", b.ForEach, c.Each)
	}
	return &list[i], nil
}
