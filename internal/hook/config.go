package hook

import (
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/view"
)

// DefaultTimeout bounds a hook that names no timeout.
const DefaultTimeout = 30 * time.Second

// Values of Config.CatchUp and Overlap.
const (
	catchUpLatest = "latest"
	catchUpAll    = "all"
	catchUpSkip   = "skip"

	overlapAllow   = "allow"
	overlapReplace = "replace"
)

// Config is a hook block.
type Config struct {
	Name       string
	Leader     string        // election; empty: every host
	OnChange   []view.Source // sources whose changes run it
	Schedule   string        // cron line
	OnElected  bool
	OnDeposed  bool
	Command    command.Command
	Timeout    time.Duration
	Retries    int
	Jitter     time.Duration
	Overlap    string // forbid, allow or replace
	CatchUp    string // latest, all or skip
	Idempotent bool
}

// triggered reports whether the hook has a trigger that is followed as long as
// it runs; on_deposed is what happens after a term.
func (c Config) triggered() bool { return len(c.OnChange) > 0 || c.Schedule != "" || c.OnElected }
