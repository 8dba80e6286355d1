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
	"time"
)

// Options say which tests are run, and how.
type Options struct {
	Match  *regexp.Regexp // of the names of tests
	Update bool           // write what was rendered into the files that are expected
}

// Result is how one test ended.
type Result struct {
	File     string        `json:"file"`
	Name     string        `json:"name"`
	Template string        `json:"template,omitempty"`
	OK       bool          `json:"ok"`
	Updated  bool          `json:"updated,omitempty"`
	Error    string        `json:"error,omitempty"` // what is wrong, in one line
	Diff     string        `json:"diff,omitempty"`
	Took     time.Duration `json:"took"` // nanoseconds
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
