package agent

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Config is everything that one agent does, as plain values: what
// internal/settings makes of the settings files. It is not changed once it
// has been handed over; a reload brings a new one.
type Config struct {
	ID       string        // agent id
	Host     string        // host name
	StateDir string        // empty: no handoff, no cache
	OnStop   string        // auto, leave or hand_over
	Splay    time.Duration // largest random delay of re-registration and reloads
	Log      LogConfig
	HTTP     *web.HTTPConfig // nil: no listener
	DNS      *dns.Config     // nil: no listener
	Admin    web.AdminConfig

	ZooKeeper session.Config

	Services  []registry.ServiceConfig
	Configs   []config.Config
	Groups    []registry.GroupConfig
	GroupSets []registry.GroupsConfig
	Elections []ElectionConfig
	Bundles   []BundleConfig
	Hooks     []hook.Config
	Execs     []ExecConfig

	// Files are the settings files that were read, for the file watcher.
	Files []string
	// Hash is a digest of the settings files, for status and metrics.
	Hash string
	// Syntax are parsers of rendered bytes that package template does not
	// bring itself (hcl), by name.
	Syntax map[string]func([]byte) error

	Logger *slog.Logger `json:"-"`

	// Load reads the settings again, for a reload; nil: there is nothing to
	// reload. The one that New was given stays in use.
	Load func() (Config, error) `json:"-"`
	// Run runs a command; nil: proc.Run. Tests in virtual time replace it.
	Run RunFunc `json:"-"`
	// Gate is asked before a bundle is swapped; nil: always.
	Gate Gate `json:"-"`
	// Version of the program, for status and the page.
	Version string
}

// What commands are made of.
type (
	RunFunc = command.Run
	Command = command.Command
	Vars    = command.Vars
	Each    = command.Each
	trigger = command.Trigger
)

// LogConfig is the log block.
type LogConfig struct {
	Level  string // debug, info, warn or error
	Format string // auto, text or json
}

// ElectionConfig is an election block: this agent is a candidate.
type ElectionConfig struct {
	Name     string
	Path     string
	Dialect  string // curator, curator-selector or kazoo
	Priority int    // higher numbers join later
}

// BundleConfig is a template block (a bundle of one) or a bundle block:
// files that change together or not at all.
type BundleConfig struct {
	Name      string
	Templates []TemplateConfig
	ForEach   *view.Source // nil: once
	WaitMin   time.Duration
	WaitMax   time.Duration
	Check     *CheckConfig
	Reload    *ReloadConfig
	Splay     time.Duration
	Position  string // file:line of the block
}

// TemplateConfig is one file of a bundle.
type TemplateConfig struct {
	Name     string
	Source   string // path of the template file; empty when Contents is set
	Contents string
	// Destination evaluates the path of the file for one element (nil
	// without for_each).
	Destination     func(*Each) (string, error) `json:"-"`
	DestinationText string                      // as the settings spell it
	Mode            fs.FileMode                 // 0: of the present file, else 0644
	Owner           string                      // user name or number; empty: unchanged
	Group           string
	Backup          int      // number of old files kept
	Allow           []string // env, file
	Syntax          string   // none, json, yaml, toml, xml, hcl or ini
	MissingKeyOK    bool     // error_on_missing_key = false
	InPlace         bool     // write into the file (bind mounts) instead of renaming over it
	Symlink         string   // follow or refuse
	Drift           string   // repair or report
	MaxSize         int64    // bytes; 0: default
	Timeout         time.Duration
	Position        string // file:line of the block
}

// CheckConfig is a check block.
type CheckConfig struct {
	Command Command
	At      string // staged or swapped
	Timeout time.Duration
}

// ReloadConfig is a reload block.
type ReloadConfig struct {
	Command     Command
	Timeout     time.Duration
	MinInterval time.Duration
	Retry       int
	OnFailure   string // restore or keep
	Leader      string // name of the election whose leader runs it; empty: every host
	Rolling     *RollingConfig
	// VerifyPIDFile is the pid file of the master whose workers must be new
	// after the reload; empty: the exit code is believed.
	VerifyPIDFile string
	VerifyTimeout time.Duration
}

// RollingConfig limits how many hosts of the fleet reload at the same time.
type RollingConfig struct {
	Permits   string // a number, or a share such as "10%"
	Pause     time.Duration
	PostCheck Command
}

// ExecConfig is an exec block: a supervised child program.
type ExecConfig struct {
	Name        string
	Command     Command
	Env         map[string]string // variable -> "config/key" reference
	After       []string          // bundles that must be rendered first
	OnChange    string            // restart, signal or ignore
	Signal      string
	Splay       time.Duration
	KillTimeout time.Duration
	Position    string
}
