package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/settings"
)

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
			return formatFiles(g, args, o)
		},
	}
	c.Flags().BoolVar(&o.check, "check", false, "name the files that differ, exit code 1 for any")
	c.Flags().BoolVar(&o.diff, "diff", false, "show the differences")
	c.Flags().BoolVarP(&o.write, "write", "w", false, "write the files instead of printing them")
	return c
}

func formatFiles(g *globals, args []string, o fmtOptions) error {
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
	differs := 0
	for _, name := range files {
		changed, err := formatFile(g, name, o)
		if err != nil {
			return err
		}
		if changed {
			differs++
		}
	}
	if o.check && differs > 0 {
		return codeError(exitFailed)
	}
	return nil
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
		_, _ = fmt.Fprintln(g.Out, name)
	}
	if o.diff && changed {
		if err = g.PrintDiff(string(diff.Diff(name, data, name+" (formatted)", out))); err != nil {
			return changed, err
		}
	}
	switch {
	case o.write && name != "-" && changed:
		return true, replaceFile(name, out)
	case o.write && name != "-", o.check, o.diff:
		return changed, nil
	}
	_, err = g.Out.Write(out)
	return changed, err
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
	if _, err := io.Copy(f, bytes.NewReader(data)); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
