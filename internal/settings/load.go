package settings

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
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
		return s, errors.New("read settings: the directory holds no *.hcl file")
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
	s.sort()
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

// sort orders the diagnostics by file, position and text, and drops repeated
// ones: the same mistake is reported once.
func (s *Settings) sort() {
	pos := func(d *hcl.Diagnostic) hcl.Range {
		if d.Subject == nil {
			return hcl.Range{}
		}
		return *d.Subject
	}
	slices.SortStableFunc(s.Diagnostics, func(a, b *hcl.Diagnostic) int {
		ra, rb := pos(a), pos(b)
		return cmp.Or(cmp.Compare(ra.Filename, rb.Filename), cmp.Compare(ra.Start.Line, rb.Start.Line),
			cmp.Compare(ra.Start.Column, rb.Start.Column), cmp.Compare(a.Summary, b.Summary), cmp.Compare(a.Detail, b.Detail))
	})
	s.Diagnostics = slices.CompactFunc(s.Diagnostics, func(a, b *hcl.Diagnostic) bool {
		return pos(a) == pos(b) && a.Summary == b.Summary && a.Detail == b.Detail
	})
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
