package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/translate"
)

func newImportCommand(g *globals) *cobra.Command {
	var dir string
	kinds := []string{"consul-template", "confd", "remco"}
	c := &cobra.Command{
		Use: "import consul-template|confd|remco FILE|DIR", Short: "Translate the settings and templates of another program",
		Long: `Translate the settings and templates of consul-template (HCL or JSON), confd or
remco (TOML). What could not be translated is a comment with "import:" where
somebody has to look, and is told on standard error; then the exit code is 1,
and what was translated is there all the same.

The settings are printed with the templates in them; --dir writes zkagent.hcl
and templates/ into a directory instead, and replaces nothing that is there.
For confd name its directory, or one file of conf.d.`,
		Args: cobra.ExactArgs(2), ValidArgs: kinds,
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(kinds, args[0]) {
				return usagef("import knows %s, not %q", strings.Join(kinds, ", "), args[0])
			}
			return g.importFrom(args[0], args[1], dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "write files into this directory instead of printing")
	return c
}

// importFrom translates all files of an import and gives them out.
func (g *globals) importFrom(kind, path, dir string) error {
	files, err := importFiles(kind, path)
	if err != nil {
		return fail(exitUsage, err)
	}
	var r *translate.Result
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		read := func(src string) ([]byte, error) { return readBeside(name, src) }
		switch kind {
		case "confd":
			r, err = translate.Confd(r, name, data, read)
		case "remco":
			r, err = translate.Remco(r, name, data, read)
		default:
			r, err = translate.ConsulTemplate(r, name, data, read)
		}
		if err != nil {
			return fail(exitConfig, err)
		}
	}
	text, err := settings.Format("zkagent.hcl", []byte(r.Settings(dir == "")))
	if err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	for _, n := range r.Notes() {
		g.Warnf("%s", n)
	}
	if dir == "" {
		_, err = g.Out.Write(text)
	} else {
		err = g.writeImport(dir, text, r)
	}
	if n := r.Lost(); err == nil && n > 0 {
		err = fail(exitFailed, fmt.Errorf("%s not translated", term.Count(n, "construct")), `each is a comment with "import:" in the result, which is valid otherwise`)
	}
	return err
}

// readBeside reads a template that settings name relative to their own file.
func readBeside(name, src string) ([]byte, error) {
	if !filepath.IsAbs(src) {
		src = filepath.Join(filepath.Dir(name), src)
	}
	return os.ReadFile(src)
}

// importFiles are the files to read: of a directory those of the program.
func importFiles(kind, path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	ext := map[string][]string{"confd": {".toml"}, "remco": {".toml"}, "consul-template": {".hcl", ".json", ".ctmpl.hcl"}}[kind]
	var files []string
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains(ext, filepath.Ext(name)) {
			files = append(files, name)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no settings of %s", path, kind)
	}
	return files, err
}

// writeImport writes the files; none that exists is replaced.
func (g *globals) writeImport(dir string, text []byte, r *translate.Result) error {
	if err := os.MkdirAll(filepath.Join(dir, "templates"), 0o755); err != nil { //nolint:gosec // settings that others may read.
		return err
	}
	files := map[string]string{filepath.Join(dir, "zkagent.hcl"): string(text)}
	for _, t := range r.Templates() {
		if t.Text != "" {
			files[filepath.Join(dir, "templates", t.Name+".tmpl")] = t.Text
		}
	}
	for name := range files {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fail(exitFailed, fmt.Errorf("%s exists", name), "name an empty directory")
		}
	}
	for name, data := range files {
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil { //nolint:gosec // as above.
			return err
		}
	}
	g.Say("%s written to %s; next: zkagent validate %s", term.Count(len(files), "file"), dir, dir)
	return nil
}
