package show

import (
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// Condition is an open condition: a problem, and since when it exists.
type Condition = condition.Condition

// Status is the whole status document of the agent.
type Status struct {
	Agent      AgentStatus              `json:"agent"`
	Health     fleet.Health             `json:"health"`
	Summary    string                   `json:"summary"`
	ZooKeeper  ZooKeeperStatus          `json:"zookeeper"`
	Conditions []Condition              `json:"conditions"`
	Sources    []SourceStatus           `json:"sources"`
	Configs    []ConfigStatus           `json:"configs"`
	Services   []registry.ServiceStatus `json:"services"`
	Groups     []registry.GroupStatus   `json:"groups"`
	GroupSets  []registry.GroupsStatus  `json:"group_sets"`
	Elections  []ElectionStatus         `json:"elections"`
	Templates  []TemplateStatus         `json:"templates"`
	Hooks      []HookStatus             `json:"hooks"`
	Execs      []ExecStatus             `json:"execs"`
	Settings   SettingsStatus           `json:"settings"`
}

// ExecStatus is about a supervised program.
type ExecStatus struct {
	Name     string    `json:"name"`
	State    string    `json:"state"` // waiting, running, exited or stopped
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Starts   int       `json:"starts"`
	Code     int       `json:"code"` // of the latest exit
	Error    string    `json:"error,omitempty"`
	Restarts string    `json:"on_change"`
}

// AgentStatus is about the process.
type AgentStatus struct {
	ID       string    `json:"id"`
	Host     string    `json:"host"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	State    string    `json:"state"` // starting, cached, running or stopping
	StateDir string    `json:"state_dir,omitempty"`
	// Maintenance is that of the host as a whole; nil: it is in none.
	Maintenance *registry.Maintenance `json:"maintenance,omitempty"`
}

// ZooKeeperStatus is about the session.
type ZooKeeperStatus struct {
	State       string       `json:"state"`
	Server      string       `json:"server,omitempty"`
	SessionID   string       `json:"session_id,omitempty"` // hexadecimal, as in the log
	Timeout     view.Seconds `json:"timeout_seconds"`
	Since       time.Time    `json:"since,omitzero"`
	LastAnswer  time.Time    `json:"last_answer,omitzero"`
	Expirations uint64       `json:"expirations"`
	Reconnects  uint64       `json:"reconnects"`
	Watches     int          `json:"watches"`
	Resumed     bool         `json:"resumed"`
	LastError   string       `json:"last_error,omitempty"`
	Warning     string       `json:"warning,omitempty"` // what is wrong with the server, as that it is too old
	// Outages are the latest times without a connection that have ended, the oldest
	// first. Those of less than a second are not among them. They outlive the process.
	Outages []Outage `json:"outages,omitempty"`
}

// Outage is a time without ZooKeeper.
type Outage struct {
	Since   time.Time    `json:"since"`
	Until   time.Time    `json:"until"`
	Seconds view.Seconds `json:"duration_seconds"`
	Reason  string       `json:"reason,omitempty"` // as last known
}

// Outage reports whether what was read from ZooKeeper may be old.
func (z *ZooKeeperStatus) Outage() bool { return z.State != "connected" }

// LastOutage is the latest of the outages; nil: there was none.
func (z ZooKeeperStatus) LastOutage() *Outage {
	if len(z.Outages) == 0 {
		return nil
	}
	return &z.Outages[len(z.Outages)-1]
}

// SourceStatus is about one declared source.
type SourceStatus struct {
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	Path     string    `json:"path"`
	Reported bool      `json:"reported"` // in this process
	Changed  time.Time `json:"changed,omitzero"`
	Version  string    `json:"version,omitempty"`
	Known    int64     `json:"known,omitempty"` // the latest version that was read, when Version is an older one
	Zxid     int64     `json:"zxid,omitempty"`
	Size     int       `json:"size"` // keys, members or groups
}

// ConfigStatus is the state of a config tree's watcher.
type ConfigStatus struct {
	config.Status

	Error string `json:"error,omitempty"`
}

// ElectionStatus is about one election.
type ElectionStatus struct {
	view.Leader

	Held bool `json:"held"` // this agent leads and its lease holds now
}

// TemplateStatus is about one template or bundle.
type TemplateStatus struct {
	Name          string        `json:"name"`
	State         string        `json:"state"` // waiting, ok, kept (a group is empty) or failed
	Stage         string        `json:"stage,omitempty"`
	Error         string        `json:"error,omitempty"`
	Files         []string      `json:"files"`
	Sources       []string      `json:"sources"`
	Version       string        `json:"version,omitempty"`
	LastApply     time.Time     `json:"last_apply,omitzero"`
	LastChange    time.Time     `json:"last_change,omitzero"` // latest swap; of a previous process: the files' time
	Took          view.Seconds  `json:"took_seconds"`
	PendingReload bool          `json:"pending_reload"` // the program has not read the files in place
	PendingSince  time.Time     `json:"pending_since,omitzero"`
	PendingText   string        `json:"pending_text,omitempty"` // what is in place meanwhile
	LastReload    *ReloadStatus `json:"last_reload,omitempty"`  // in this process
	Position      string        `json:"position,omitempty"`
	Check         string        `json:"check,omitempty"` // when its check runs on this host
}

// ReloadStatus is the latest run of a reload command.
type ReloadStatus struct {
	At    time.Time    `json:"at"`
	Took  view.Seconds `json:"took_seconds"`
	Code  int          `json:"code"`
	Error string       `json:"error,omitempty"`
}

// HookStatus is about one hook.
type HookStatus struct {
	Name     string     `json:"name"`
	Leader   string     `json:"leader,omitempty"`
	Command  string     `json:"command"`
	Triggers []string   `json:"triggers"`
	Schedule string     `json:"schedule,omitempty"`
	Next     time.Time  `json:"next,omitzero"`
	Here     bool       `json:"here"` // it runs on this host now
	Runs     []hook.Run `json:"runs"` // the last ones, oldest first
}

// Last is the latest run; nil when there was none.
func (h HookStatus) Last() *hook.Run {
	if len(h.Runs) == 0 {
		return nil
	}
	return &h.Runs[len(h.Runs)-1]
}

// SettingsStatus is about the settings in use.
type SettingsStatus struct {
	Hash   string    `json:"hash"`
	Loaded time.Time `json:"loaded"`
	Files  []string  `json:"files"`
	Error  string    `json:"error,omitempty"` // of the latest reload
}
