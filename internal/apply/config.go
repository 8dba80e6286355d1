package apply

import (
	"io/fs"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/view"
)

// Values of CheckConfig.At, ReloadConfig.OnFailure and FileConfig.Drift.
const (
	atSwapped     = "swapped"
	onFailureKeep = "keep"
	driftReport   = "report"
)

// Defaults of checks and reloads that name no time.
const (
	DefaultCheckTimeout  = 30 * time.Second
	DefaultReloadTimeout = 30 * time.Second
	DefaultMinInterval   = time.Second
	DefaultVerifyTimeout = 10 * time.Second
)

// Config is a template block (a bundle of one) or a bundle block:
// files that change together or not at all.
type Config struct {
	Name      string
	Templates []FileConfig
	ForEach   *view.Source // nil: once
	WaitMin   time.Duration
	WaitMax   time.Duration
	Check     *CheckConfig
	Reload    *ReloadConfig
	Splay     time.Duration
	Position  string // file:line of the block
}

// FileConfig is one file of a bundle.
type FileConfig struct {
	Name     string
	Source   string // path of the template file; empty when Contents is set
	Contents string
	// Destination evaluates the path of the file for one element (nil
	// without for_each).
	Destination     func(*command.Each) (string, error) `json:"-"`
	DestinationText string                              // as the settings spell it
	Mode            fs.FileMode                         // 0: of the present file, else 0644
	Owner           string                              // user name or number; empty: unchanged
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
	Command command.Command
	At      string // staged or swapped
	Timeout time.Duration
}

// ReloadConfig is a reload block.
type ReloadConfig struct {
	Command     command.Command
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
	PostCheck command.Command
}
