package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/filewatch"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/tmpltest"
)

func newValidateCommand(g *globals) *cobra.Command {
	var strict, host bool
	c := &cobra.Command{
		Use: "validate [FILE|DIR...]", Short: "Check the settings and the templates, and print every error",
		Long: `Check settings and templates without a server, and print every error, each with
file, line and column. A syntax error, such as a missing brace, hides the errors
after it until you repair the syntax. The exit code is 78 if there is an error. You can
check settings on any host. Things that this host lacks, such as credentials, are
warnings; with --host they are errors.

For each template, the output shows its behaviour while no member of a group is up:
it keeps the file, writes it without members, or fails.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				g.config = args
			}
			if g.IsJSON() {
				s, err := settings.Load(g.configPaths(), settings.Options{Offline: !host})
				if jerr := printDiagnostics(&g.Console, s); jerr != nil {
					return jerr
				}
				if err != nil || strict && len(s.Diagnostics) > 0 {
					return codeError(exitConfig)
				}
				return nil
			}
			s, err := g.loadSettings(settings.Options{Offline: !host})
			if err != nil {
				return err
			}
			if strict && len(s.Diagnostics) > 0 {
				return fail(exitConfig, fmt.Errorf("%s with --strict", term.Count(len(s.Diagnostics), "warning")))
			}
			c := s.Config
			g.Say("settings are valid: %s, %s, %s, %s, %s, %s, %s", term.Count(len(c.Files), "file"), term.Count(len(c.Services), "service"),
				term.Count(len(c.Configs), "config"), term.Count(len(c.Groups)+len(c.GroupSets), "group"), term.Count(len(c.Elections), "election"),
				term.Count(len(c.Bundles), "template"), term.Count(len(c.Hooks), "hook"))
			for _, b := range c.Bundles {
				if _, err := apply.PreviewOf(b.Check); err != nil {
					g.Warnf("template %s: on this host the check runs after the swap, and votes do not run it: %v", b.Name, err)
				}
			}
			for _, e := range s.OnEmpty() {
				g.Say("template %s, while no member of group %s is up: %s (%s)", e.Template, e.Group, whileEmpty[e.OnEmpty], e.Because)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors; by default they do not change the exit code")
	c.Flags().BoolVar(&host, "host", false, "treat things that this host lacks as errors; by default they are warnings")
	return c
}

var whileEmpty = map[string]string{"keep": "the file stays as it is", "render": "the file is written without members", "fail": "an error"}

type diagnosticJSON struct {
	Severity string `json:"severity"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Summary  string `json:"summary"`
	Detail   string `json:"detail,omitempty"`
}

func printDiagnostics(console *term.Console, s *settings.Settings) error {
	list := []diagnosticJSON{}
	for _, d := range s.Diagnostics {
		j := diagnosticJSON{Severity: settings.Severity(d), Summary: d.Summary, Detail: d.Detail}
		if d.Subject != nil {
			j.File, j.Line, j.Column = d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column
		}
		list = append(list, j)
	}
	if console.Format == "ndjson" {
		return term.PrintList(console, "diagnostics", list)
	}
	return console.PrintObject(map[string]any{"diagnostics": list, "on_empty": s.OnEmpty()})
}

type fmtOptions struct{ check, diff, write bool }

func newFmtCommand(g *globals) *cobra.Command {
	var o fmtOptions
	c := &cobra.Command{
		Use: "fmt [FILE|DIR|-...]", Short: "Print settings in their canonical form",
		Long: `Print settings files in their canonical form, or with -w write them. --check
names the files that differ and exits with 1 when there is one; --diff shows the
differences. "-" is standard input.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = g.configPaths()
			}
			var files []string
			for _, a := range args {
				if a == "-" {
					files = append(files, a)
					continue
				}
				list, err := settings.Expand([]string{a})
				if err != nil {
					return err
				}
				files = append(files, list...)
			}
			differs := false
			for _, name := range files {
				changed, err := formatFile(g, name, o)
				if err != nil {
					return err
				}
				differs = differs || changed
			}
			if o.check && differs {
				return codeError(exitFailed)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&o.check, "check", false, "name the files that differ, and exit with 1 if there is one")
	c.Flags().BoolVar(&o.diff, "diff", false, "show the differences")
	c.Flags().BoolVarP(&o.write, "write", "w", false, "write the files (default: print them)")
	return c
}

// formatFile formats one file and reports whether that changes it.
func formatFile(g *globals, name string, o fmtOptions) (bool, error) {
	data, err := g.readInput(name)
	if err != nil {
		return false, err
	}
	out, err := settings.Format(name, data)
	if err != nil {
		return false, fail(exitConfig, err)
	}
	changed := !bytes.Equal(data, out)
	if o.check && changed {
		g.Printf("%s\n", name)
	}
	if o.diff && changed {
		_ = g.PrintDiff(string(diff.Diff(name, data, name+" (formatted)", out)))
	}
	switch {
	case o.write && name != "-" && changed:
		return true, replaceFile(name, out)
	case o.write && name != "-", o.check, o.diff:
		return changed, nil
	}
	g.Printf("%s", out)
	return changed, nil
}

func replaceFile(name string, data []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".zkagent-fmt-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

type testOptions struct {
	update bool
	run    string
	junit  string
	tap    bool
	cover  bool
	watch  bool
}

func newTestCommand(g *globals) *cobra.Command {
	var o testOptions
	c := &cobra.Command{
		Use: "test [FILE|DIR...]", Short: "Run unit tests of templates: data in, expected file or error out",
		Long: `Run unit tests of templates. A test file is YAML: data (members, config keys,
leaders), and the file or error that the template must produce from it. The command
asks no server and reads nothing of this host. A directory means every *_test.yaml
below it; without arguments the directories of the settings are used.

The exit code is 1 when a test failed, and 78 when a test file, the settings or
a template cannot be read. --update writes the rendered text into the want_file of
each test. It does not change a "want" in the test file.

--cover lists the lines and branches of templates that no test renders.
Templates of the settings that no test names are listed, too.`,
		Example: "  zkagent test\n  zkagent test web_test.yaml --run 'empty|one'\n  zkagent test /etc/zkagent --junit report.xml\n  zkagent test --watch --cover",
		RunE: func(c *cobra.Command, args []string) error {
			match, err := regexp.Compile(o.run)
			if err != nil {
				return usagef("--run: %v", err)
			}
			if o.tap && (g.IsJSON() || o.cover) {
				return usagef("--tap excludes --output and --cover")
			}
			if o.watch {
				return watchTests(c.Context(), g, args, match, o)
			}
			files, err := testFiles(g, args)
			if err != nil {
				return err
			}
			return runTestsOnce(c.Context(), &g.Console, files, match, o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.update, "update", false, "write the rendered text into each want_file; review the change before you commit it")
	f.StringVar(&o.run, "run", "", "run only tests whose name matches this regular expression (default: all)")
	f.StringVar(&o.junit, "junit", "", "write a report in JUnit's format to this file, for a build server (default: none)")
	f.BoolVar(&o.tap, "tap", false, "print the results in the Test Anything Protocol, for other tools")
	f.BoolVar(&o.cover, "cover", false, "list the lines and branches of templates that no test renders")
	f.BoolVar(&o.watch, "watch", false, "run the tests again when one of their files changes, until Ctrl-C")
	return c
}

func runTestsOnce(ctx context.Context, console *term.Console, files []string, match *regexp.Regexp, o testOptions) error {
	options := tmpltest.Options{Match: match, Update: o.update}
	if o.cover {
		options.Cover = &tmpltest.Cover{}
	}
	results, err := tmpltest.Run(ctx, files, options)
	if err != nil {
		return fail(exitConfig, err)
	}
	if len(results) == 0 {
		return fail(exitFailed, errors.New("no test was found"), "a test file is called NAME_test.yaml; --run may match none")
	}
	if o.junit != "" {
		if err := tmpltest.WriteJUnit(o.junit, results); err != nil {
			return err
		}
	}
	if err := printTests(console, results, options.Cover, o.tap); err != nil {
		return err
	}
	total := term.Count(len(results), "test")
	if bad := slices.DeleteFunc(results, func(r tmpltest.Result) bool { return r.OK }); len(bad) > 0 {
		return failf(exitFailed, "%d of %s failed", len(bad), total)
	}
	console.Say("%s passed", total)
	return nil
}

// watchTests runs the tests at each change of a file; a failed test does not end it.
func watchTests(ctx context.Context, g *globals, args []string, match *regexp.Regexp, o testOptions) error {
	files, err := testFiles(g, args)
	if err != nil {
		return err
	}
	w := filewatch.Watch{
		AtOnce: true,
		New:    []string{"_test.yaml", "_test.yml"},
		Files:  func() []string { return tmpltest.Inputs(files) },
		Changed: func() {
			if found, err := testFiles(g, args); err == nil {
				files = found // there may be new ones.
			}
			if err := runTestsOnce(ctx, &g.Console, files, match, o); err != nil && ctx.Err() == nil {
				g.Warnf("%v", err)
			}
			g.Say("waiting for a change; Ctrl-C ends")
		},
		Problem: func(dir string, err error) {
			if err != nil {
				g.Warnf("changes below %s are not seen: %v", dir, err)
			}
		},
		Lost: func(err error) { g.Warnf("%v", err) },
	}
	w.Run(ctx)
	return nil
}

func testFiles(g *globals, args []string) ([]string, error) {
	if len(args) == 0 {
		for _, p := range g.configPaths() {
			if info, err := os.Stat(p); err == nil && !info.IsDir() {
				p = filepath.Dir(p)
			}
			args = append(args, p)
		}
	}
	files, err := tmpltest.Files(args)
	if errors.Is(err, fs.ErrNotExist) {
		err = fail(exitUsage, err)
	}
	return files, err
}

func printTests(console *term.Console, results []tmpltest.Result, cover *tmpltest.Cover, tap bool) error {
	switch {
	case tap:
		return tmpltest.WriteTAP(console.Out, results)
	case console.IsJSON() && cover != nil:
		return console.PrintObject(map[string]any{"tests": results, "cover": cover.Report()})
	case console.IsJSON():
		return term.PrintList(console, "tests", results)
	}
	for _, r := range results {
		word := "ok"
		switch {
		case !r.OK:
			word = "FAIL"
		case r.Updated:
			word = "updated"
		}
		console.Printf("%-7s %s: %s\n", word, r.File, r.Name)
		if r.Error != "" {
			console.Printf("        %s\n", r.Error)
		}
		_ = console.PrintDiff(r.Diff)
	}
	if cover == nil {
		return console.Failed()
	}
	for _, c := range cover.Report() {
		console.Printf("cover   %s: %d of %s, %d of %d branches\n", c.Template, c.LinesDone, term.Count(c.Lines, "line"), c.BranchesTaken, c.Branches)
		for _, m := range c.Missed {
			text := fmt.Sprintf("%d: not rendered", m.Line)
			if m.Branch != "" {
				text = fmt.Sprintf("%d:%d: %s", m.Line, m.Column, m.Branch)
			}
			console.Printf("        %s:%s\n", c.Template, text)
		}
	}
	return console.Failed()
}
