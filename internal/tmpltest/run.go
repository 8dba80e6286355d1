package tmpltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

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
		if bad == nil {
			bad = r.destination(c, tc, each)
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
	if c.Want != nil {
		return []byte(*c.Want), nil
	}
	if c.WantFile == "" {
		return nil, nil
	}
	data, err := files.ReadNamed(r.file.at(c.WantFile), files.MaxSize)
	if update && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w; --update writes it", err)
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
	for i := range list {
		if list[i].Key == c.Each {
			return &list[i], nil
		}
	}
	return nil, fmt.Errorf("each: %s of the data has no element %q", b.ForEach, c.Each)
}

// destination checks where the file would be written.
func (r *testRun) destination(c *testCase, tc *apply.FileConfig, e *template.Each) error {
	if c.WantDestination == "" {
		return nil
	}
	got, err := tc.Path(e)
	if want := filepath.Clean(r.file.at(c.WantDestination)); err == nil && got != want {
		err = fmt.Errorf("got destination %s, want %s", got, want)
	}
	return err
}
