package settings

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
)

// maxFileSize bounds one settings file, so that a device or a wrong path does
// not fill the memory.
const maxFileSize = 4 << 20

// Expand returns the files that the paths name: a file is itself, a directory
// the sorted list of its *.hcl files without hidden ones.
func Expand(paths []string) ([]string, error) {
	var names []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("read settings: %w", err)
		}
		if !info.IsDir() {
			names = append(names, p)
			continue
		}
		if openDirectory(p, 0) {
			return nil, fmt.Errorf("every user can add settings to %s, and run commands as the agent: chmod o-w %s", p, p)
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, fmt.Errorf("read settings: %w", err)
		}
		for _, e := range entries {
			if isSettingsName(e.Name()) && !e.IsDir() {
				names = append(names, filepath.Join(p, e.Name()))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// isSettingsName reports whether a file of a settings directory is read.
func isSettingsName(name string) bool {
	return strings.HasSuffix(name, ".hcl") && !strings.HasPrefix(name, ".")
}

// readClosed reads a file of settings or a template. One that every user can write would
// let every user run commands, or decide what is written, as the agent.
func readClosed(name string, limit int64) ([]byte, error) {
	if err := closedToOthers(name); err != nil {
		return nil, err
	}
	return files.ReadNamed(name, limit)
}

// closedToOthers returns an error for a file that every user can write, or replace.
func closedToOthers(name string) error {
	const harm = "who could act as the agent"
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil //nolint:nilerr // Only regular files are checked. The reader reports what it cannot read.
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s can be written by every user, %s: chmod o-w %s", name, harm, name)
	}
	if dir := filepath.Dir(name); openDirectory(dir, os.ModeSticky) {
		return fmt.Errorf("%s can be replaced by every user, %s: chmod o-w %s", name, harm, dir)
	}
	return nil
}

// openDirectory reports whether every user can write to a directory that has none of
// the bits. Where nobody can write, as on a volume that is mounted to be read, the
// mode says nothing.
func openDirectory(dir string, bits fs.FileMode) bool {
	info, err := os.Stat(dir)
	return err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&bits == 0 && !errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS)
}

// parse parses the files and remembers their bytes for diagnostics.
func (s *Settings) parse(names []string, data map[string][]byte) []hcl.Body {
	sum := sha256.New()
	bodies := make([]hcl.Body, 0, len(names))
	for _, name := range names {
		if err := template.CheckNesting(string(data[name])); err != nil {
			at := hcl.Range{Filename: name, Start: hcl.InitialPos, End: hcl.InitialPos}
			s.errorAt(at, "Settings nest too deeply", "%s", sentence(err.Error()))
			continue
		}
		s.leftoverComments(name, data[name])
		file, diags := hclsyntax.ParseConfig(data[name], name, hcl.InitialPos)
		s.add(diags...)
		_, _ = fmt.Fprintf(sum, "%s\x00%d\x00", filepath.Base(name), len(data[name]))
		_, _ = sum.Write(data[name])
		if file != nil {
			s.Sources[name] = file
			bodies = append(bodies, file.Body)
		}
	}
	s.Config.Hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return bodies
}

// Format returns the canonical form of a settings file: indentation, spaces
// around "=", and aligned arguments. What does not parse is not formatted.
func Format(name string, data []byte) ([]byte, error) {
	if _, diags := hclsyntax.ParseConfig(data, name, hcl.InitialPos); diags.HasErrors() {
		return nil, diags
	}
	out := hclwrite.Format(data)
	out = bytes.TrimRight(out, " \t\r\n")
	if len(out) > 0 {
		out = append(out, '\n')
	}
	return out, nil
}

// What "zkagent import" could not translate is marked: by a comment in the
// settings, and by an action that fails in a template. Neither may stay.

var (
	leftoverComment = regexp.MustCompile(`^(?:#|//)\s*import:\s*(.*)`)
	leftoverAction  = regexp.MustCompile(`\bfail[ \t]+"import: `)
)

func (s *Settings) leftoverComments(name string, data []byte) {
	tokens, _ := hclsyntax.LexConfig(data, name, hcl.InitialPos) // The parser reports errors.
	for _, t := range tokens {
		if m := leftoverComment.FindSubmatch(t.Bytes); t.Type == hclsyntax.TokenComment && m != nil {
			s.errorAt(t.Range, "Left over from import", "%s Follow it, then delete the comment.", sentence(string(m[1])))
		}
	}
}
