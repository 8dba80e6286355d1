// Package settings reads the agent's own settings: HCL 2 files, resolved to a
// plain [agent.Config]. HCL ends here: nothing outside this package and the
// commands that print diagnostics knows the language.
//
// Each block has a function that reads it. It names an argument, what it is, its
// default, its limits and what it means where it uses the value, and nowhere else: the
// checks, the errors about other names, and the reference in
// docs/reference/settings.md come from these calls.
//
// Guarantees: every problem is found in one run, sorted by position, each with
// file, line and column; a configuration with errors is never returned; no
// file is changed and no server is asked.
//
// Not here: settings that other hosts share, which live in ZooKeeper (package
// config).
package settings

import (
	"bytes"
	"cmp"
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

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
)

// Options are what differs between the commands that load settings.
type Options struct {
	// Offline turns what is missing on this host only (credentials,
	// certificates) into warnings: settings may be validated on another host
	// than the one that they are for.
	Offline bool
	// Env looks up environment variables; nil is os.LookupEnv.
	Env func(string) (string, bool)
	// Hostname returns the name of the host; nil is os.Hostname.
	Hostname func() (string, error)
}

// Settings are loaded settings.
type Settings struct {
	// Config is what the settings say. It is valid when there was no error.
	Config agent.Config
	// Sources are the parsed files by name, for printing diagnostics.
	Sources map[string]*hcl.File
	// Diagnostics are all errors and warnings, sorted by position.
	Diagnostics hcl.Diagnostics

	opts       Options
	secrets    secrets
	blocks     []block // with labels, in order
	evals      map[string]*hcl.EvalContext
	missing    []string           // what the expression being evaluated lacks on this host
	claims     map[string]claimed // by destination: the template that writes it
	realFiles  []string           // paths of the settings files without links, once they are needed
	given      []string           // the files and directories that were named
	describing bool               // every block is read once, as an empty one: for the reference
	loaded     bool               // commands are evaluated from now on, by others; nothing is recorded
}

// Load reads, checks and resolves the settings at the paths: files and
// directories. The error is non-nil when nothing could be read at all, or
// when there is an error among the diagnostics; the settings are returned in
// either case, so that all diagnostics can be shown.
func Load(paths []string, opts Options) (*Settings, error) {
	s := newSettings(opts)
	s.given = paths
	files, err := Expand(paths)
	if err != nil {
		return s, err
	}
	if len(files) == 0 {
		return s, fmt.Errorf("read settings: no *.hcl file in %s", strings.Join(paths, ", "))
	}
	data := map[string][]byte{}
	for _, name := range files {
		if data[name], err = readClosed(name, maxFileSize); err != nil {
			return s, errors.Join(errors.New("read settings"), err)
		}
	}
	s.load(files, data)
	return s, s.Err()
}

// LoadBytes loads one file that is already in memory. Relative paths in it
// are relative to the directory of name.
func LoadBytes(name string, data []byte, opts Options) (*Settings, error) {
	s := newSettings(opts)
	s.load([]string{name}, map[string][]byte{name: data})
	return s, s.Err()
}

func newSettings(opts Options) *Settings {
	if opts.Env == nil {
		opts.Env = os.LookupEnv
	}
	if opts.Hostname == nil {
		opts.Hostname = os.Hostname
	}
	return &Settings{opts: opts, Sources: map[string]*hcl.File{}, evals: map[string]*hcl.EvalContext{}}
}

// load does the work: parse all, index all names, read all blocks.
// No step is left out because of an error in a previous one.
func (s *Settings) load(names []string, data map[string][]byte) {
	bodies := s.parse(names, data)
	s.Config.Files = names
	d := &decoder{s: s, body: hcl.MergeBodies(bodies), shape: &shape{}}
	s.index(d)
	s.resolve(d)
	// By file, position and text; the same mistake is reported once.
	pos := func(d *hcl.Diagnostic) hcl.Range { return *cmp.Or(d.Subject, &hcl.Range{}) }
	slices.SortStableFunc(s.Diagnostics, func(a, b *hcl.Diagnostic) int {
		ra, rb := pos(a), pos(b)
		return cmp.Or(cmp.Compare(ra.Filename, rb.Filename), cmp.Compare(ra.Start.Line, rb.Start.Line),
			cmp.Compare(ra.Start.Column, rb.Start.Column), cmp.Compare(a.Summary, b.Summary), cmp.Compare(a.Detail, b.Detail))
	})
	s.Diagnostics = slices.CompactFunc(s.Diagnostics, func(a, b *hcl.Diagnostic) bool {
		return pos(a) == pos(b) && a.Summary == b.Summary && a.Detail == b.Detail
	})
	s.loaded = true
}

// InvalidError says that settings are invalid. Its text holds every error, with
// its place.
type InvalidError struct{ Diagnostics hcl.Diagnostics }

// Error implements error.
func (e *InvalidError) Error() string {
	var lines []string
	for _, d := range e.Diagnostics {
		if d.Severity == hcl.DiagError {
			lines = append(lines, Line(d))
		}
	}
	return strings.Join(lines, " | ")
}

// Unwrap gives the diagnostics.
func (e *InvalidError) Unwrap() error { return e.Diagnostics }

// Err returns an [InvalidError] when there is an error among the diagnostics.
func (s *Settings) Err() error {
	if s.Diagnostics.HasErrors() {
		return &InvalidError{s.Diagnostics}
	}
	return nil
}

// resolve reads all blocks, in an order in which what is used by others comes first.
func (s *Settings) resolve(d *decoder) {
	s.claims = map[string]claimed{}
	s.resolveAgent(d)
	s.resolveZooKeeper(d)
	s.resolveServices(d)
	s.resolveConfigs(d)
	s.resolveGroups(d)
	s.resolveElections(d)
	s.resolveBundles(d)
	s.resolveHooks(d)
	s.resolveExecs(d)
	d.end()
}

// maxFileSize bounds a settings file: a device must not fill the memory.
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

// readClosed reads a file of settings or a template. One that every user can write, or
// replace, would let every user run commands, or decide what is written, as the agent.
func readClosed(name string, limit int64) ([]byte, error) {
	const harm = "who could act as the agent"
	info, err := os.Stat(name)
	switch dir := filepath.Dir(name); {
	case err != nil || !info.Mode().IsRegular(): // Only regular files are checked.
	case info.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("%s can be written by every user, %s: chmod o-w %s", name, harm, name)
	case openDirectory(dir, os.ModeSticky):
		return nil, fmt.Errorf("%s can be replaced by every user, %s: chmod o-w %s", name, harm, dir)
	}
	return files.ReadNamed(name, limit)
}

// openDirectory reports whether every user can write to a directory that has none of
// the bits. Where nobody can write, as on a volume that is mounted to be read, the
// mode says nothing.
func openDirectory(dir string, bits fs.FileMode) bool {
	info, err := os.Stat(dir)
	return err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&bits == 0 && !errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS)
}

func (s *Settings) parse(names []string, data map[string][]byte) []hcl.Body {
	sum := sha256.New()
	bodies := make([]hcl.Body, 0, len(names))
	for _, name := range names {
		if err := template.CheckNesting(string(data[name])); err != nil {
			at := hcl.Range{Filename: name, Start: hcl.InitialPos, End: hcl.InitialPos}
			s.errorAt(at, "Settings nest too deeply", "%s", sentence(err.Error()))
			continue
		}
		tokens, _ := hclsyntax.LexConfig(data[name], name, hcl.InitialPos) // The parser reports errors.
		for _, t := range tokens {
			if m := leftoverComment.FindSubmatch(t.Bytes); t.Type == hclsyntax.TokenComment && m != nil {
				s.errorAt(t.Range, "Left over from import", "%s Follow it, then delete the comment.", sentence(string(m[1])))
			}
		}
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
	out := bytes.TrimRight(hclwrite.Format(data), " \t\r\n")
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
