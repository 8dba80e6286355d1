package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/filewatch"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/tmpltest"
)

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

// watchTests runs the tests now and whenever one of their files changes, until ctx
// ends. A failed test does not end it.
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
	if cover != nil {
		printCover(console, cover.Report())
	}
	return console.Failed()
}

func printCover(console *term.Console, report []tmpltest.TemplateCover) {
	for _, c := range report {
		console.Printf("cover   %s: %d of %s, %d of %d branches\n", c.Template, c.LinesDone, term.Count(c.Lines, "line"), c.BranchesTaken, c.Branches)
		for _, m := range c.Missed {
			text := fmt.Sprintf("%d: not rendered", m.Line)
			if m.Branch != "" {
				text = fmt.Sprintf("%d:%d: %s", m.Line, m.Column, m.Branch)
			}
			console.Printf("        %s:%s\n", c.Template, text)
		}
	}
}
