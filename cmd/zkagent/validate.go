package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
)

func newValidateCommand(g *globals) *cobra.Command {
	var strict, host bool
	c := &cobra.Command{
		Use: "validate [FILE|DIR...]", Short: "Check the settings and the templates, and print every error",
		Long: `Check settings and templates without a server, and print every error, each with
file, line and column. A syntax error, such as a missing brace, hides the errors
after it until you repair the syntax. The exit code is 78 if there is an error. Settings can
be checked on any host: what only this host lacks, such as credentials, is a
warning unless --host is given.

The output says for each template what it does while no member of a group is up:
keep the file, write it without members, or fail.`,
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

// whileEmpty is what the words of on_empty mean.
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

// replaceFile replaces a file and keeps its mode.
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
