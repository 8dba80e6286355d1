// Package tmpltest runs unit tests of templates: data in, expected file or error
// out. docs/templates.md describes the files of tests.
package tmpltest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/settings"
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
