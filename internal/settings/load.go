package settings

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"reflect"
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
	// NeedZooKeeper makes a missing zookeeper block an error even when no
	// block uses ZooKeeper.
	NeedZooKeeper bool
	// Logger is handed to what the settings configure; nil discards.
	Logger *slog.Logger
}

// Settings are loaded settings.
type Settings struct {
	// Config is what the settings say. It is valid when there was no error.
	Config agent.Config
	// Sources are the parsed files by name, for printing diagnostics.
	Sources map[string]*hcl.File
	// Diagnostics are all errors and warnings, sorted by position.
	Diagnostics hcl.Diagnostics

	opts    Options
	secrets secrets
	blocks  []block // with labels, in order
	evals   map[string]*hcl.EvalContext
	missing []string           // what the expression being evaluated lacks on this host
	claims  map[string]claimed // by destination: the template that writes it
	given   []string           // the files and directories that were named
	loaded  bool               // commands are evaluated from now on, by others; nothing is recorded
}

type root struct {
	Agent     *agentBlock      `hcl:"agent,block" doc:"This agent."`
	Log       *logBlock        `hcl:"log,block" doc:"Where and how it logs."`
	HTTP      *httpBlock       `hcl:"http,block" doc:"The page, the metrics and the health checks. Without the block the agent does not listen."`
	DNS       *dnsBlock        `hcl:"dns,block" doc:"DNS answers from the groups and elections of the settings. Without the block the agent does not listen."`
	Admin     *adminBlock      `hcl:"admin,block" doc:"The unix socket that the commands on this host talk to."`
	ZooKeeper *zookeeperBlock  `hcl:"zookeeper,block" doc:"The ensemble. Required as soon as another block uses ZooKeeper."`
	Services  []*serviceBlock  `hcl:"service,block" doc:"A service of this host: a member of a group for as long as its checks pass."`
	Configs   []*configBlock   `hcl:"config,block" doc:"A config tree in ZooKeeper that templates and hooks use."`
	Groups    []*groupBlock    `hcl:"group,block" doc:"A group whose members templates and hooks use."`
	GroupSets []*groupsBlock   `hcl:"groups,block" doc:"Every child of a znode as a group."`
	Formats   []*formatBlock   `hcl:"format,block" doc:"Your own member format, for programs whose members no other format reads."`
	Elections []*electionBlock `hcl:"election,block" doc:"An election that this agent takes part in as a candidate."`
	Templates []*templateBlock `hcl:"template,block" doc:"A file that is rendered: a bundle of one."`
	Bundles   []*bundleBlock   `hcl:"bundle,block" doc:"Files that change together or not at all."`
	Hooks     []*hookBlock     `hcl:"hook,block" doc:"A command that runs on a change, on a schedule, or with leadership."`
	Execs     []*execBlock     `hcl:"exec,block" doc:"A program that the agent starts once its files are rendered, and supervises."`
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
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	return &Settings{opts: opts, Sources: map[string]*hcl.File{}, evals: map[string]*hcl.EvalContext{}}
}

// load does the work: parse all, decode all, index all names, resolve all.
// No step is left out because of an error in a previous one.
func (s *Settings) load(names []string, data map[string][]byte) {
	bodies := s.parse(names, data)
	s.Config.Files = names
	s.Config.Logger = s.opts.Logger
	all := &root{}
	for _, body := range bodies {
		s.decode(body, hcl.Range{}, reflect.ValueOf(all).Elem())
	}
	s.index(all)
	s.resolve(all)
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

// resolve resolves all blocks, in an order in which what is used by others
// comes first.
func (s *Settings) resolve(all *root) {
	s.claims = map[string]claimed{}
	s.resolveAgent(all)
	s.resolveZooKeeper(all)
	s.resolveServices(all.Services)
	s.resolveConfigs(all.Configs)
	s.resolveGroups(all)
	s.resolveElections(all.Elections)
	s.resolveBundles(all)
	s.resolveHooks(all.Hooks)
	s.resolveExecs(all.Execs)
}
