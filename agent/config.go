package agent

import (
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// Config describes everything that one agent does, as plain values. Package
// internal/settings creates it from the settings files. Nobody changes a Config that an
// agent uses; a reload brings a new one.
type Config struct {
	ID       string        // agent id
	Host     string        // host name
	StateDir string        // empty: no handoff, no cache
	OnStop   string        // auto, leave or hand_over
	Env      command.Env   // of every command
	Splay    time.Duration // largest random delay of re-registration and reloads
	// NeverCoordinate keeps this host from being elected to coordinate rollouts.
	NeverCoordinate bool
	// HistorySize is how many bytes of the past files of each bundle are kept.
	HistorySize int64
	// ShareDiffs lets dry runs put differences of files that everybody may read into
	// ZooKeeper.
	ShareDiffs bool
	Log        LogConfig
	HTTP       *web.HTTPConfig // nil: no listener
	DNS        *dns.Config     // nil: no listener
	Admin      web.AdminConfig

	ZooKeeper session.Config

	Services []registry.ServiceConfig
	Configs  []config.Config
	// BakeChecks are the checks of this host as the coordinator of a rollout, by the name
	// of the config.
	BakeChecks map[string]*registry.CheckConfig
	Groups     []registry.GroupConfig
	GroupSets  []registry.GroupConfig
	Elections  []election.Config // this agent is a candidate
	Bundles    []apply.Config
	Hooks      []hook.Config
	Execs      []ExecConfig

	// Files are the settings files that were read, for the file watcher.
	Files []string
	// Hash is a digest of the settings files, for status and metrics.
	Hash string

	Logger *slog.Logger `json:"-"`

	// Load reads the settings again, for a reload; nil: there is nothing to
	// reload. The one that New was given stays in use.
	Load func() (Config, error) `json:"-"`
	// Run runs a command; nil: proc.Run. Tests in virtual time replace it.
	Run command.Run `json:"-"`
	// Version of the program, for status and the page.
	Version string
}

// LogConfig is the log block.
type LogConfig struct {
	Level  string // debug, info, warn or error
	Format string // auto, text or json
}
