package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/tmpltest"
)

type testOptions struct {
	update bool
	run    string
	junit  string
}

func newTestCommand(g *globals) *cobra.Command {
	var o testOptions
	c := &cobra.Command{
		Use: "test [FILE|DIR...]", Short: "Run unit tests of templates: data in, expected file or error out",
		Long: `Run unit tests of templates. A test file is YAML: data (members, config keys,
leaders) goes in, the expected file or error comes out; no server is asked and
nothing of this host is read. A directory means every *_test.yaml below it;
without arguments these are the directories of the settings.

The exit code is 1 when a test failed, and 78 when a test file, the settings or
a template cannot be read. --update writes what was rendered into the want_file
of each test; expectations that stand in the test file itself are left to you.`,
		Example: "  zkagent test\n  zkagent test web_test.yaml --run 'empty|one'\n  zkagent test /etc/zkagent --junit report.xml",
		RunE: func(c *cobra.Command, args []string) error {
			return g.test(c.Context(), args, o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.update, "update", false, "write what was rendered into the files that are expected")
	f.StringVar(&o.run, "run", "", "run only tests whose name matches this regular expression")
	f.StringVar(&o.junit, "junit", "", "write a report in JUnit's format to this file")
	return c
}

// test runs the tests of the files and reports them.
func (g *globals) test(ctx context.Context, args []string, o testOptions) error {
	match, err := regexp.Compile(o.run)
	if err != nil {
		return usagef("--run: %v", err)
	}
	files, err := g.testFiles(args)
	if err != nil {
		return err
	}
	results, err := tmpltest.Run(ctx, files, tmpltest.Options{Match: match, Update: o.update})
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
	return g.tellTests(results)
}

// testFiles are the test files that the arguments mean; without arguments those
// beside the settings.
func (g *globals) testFiles(args []string) ([]string, error) {
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

// tellTests prints the results; a failed test is the exit code 1.
func (g *globals) tellTests(results []tmpltest.Result) error {
	failed := 0
	for _, r := range results {
		if !r.OK {
			failed++
		}
	}
	if g.IsJSON() {
		if err := term.PrintList(&g.Console, "tests", results); err != nil {
			return err
		}
	} else if err := g.printTests(results); err != nil {
		return err
	}
	if failed > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s failed", failed, term.Count(len(results), "test")))
	}
	g.Say("%s passed", term.Count(len(results), "test"))
	return nil
}

func (g *globals) printTests(results []tmpltest.Result) error {
	for _, r := range results {
		word := "ok"
		switch {
		case !r.OK:
			word = "FAIL"
		case r.Updated:
			word = "updated"
		}
		if _, err := fmt.Fprintf(g.Out, "%-7s %s: %s\n", word, r.File, r.Name); err != nil {
			return err
		}
		if r.Error != "" {
			if _, err := fmt.Fprintf(g.Out, "        %s\n", r.Error); err != nil {
				return err
			}
		}
		if r.Diff != "" {
			if err := g.PrintDiff(r.Diff); err != nil {
				return err
			}
		}
	}
	return nil
}
