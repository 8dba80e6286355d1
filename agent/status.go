package agent

import (
	"os"
	"time"

	"github.com/zkagent/zkagent/internal/command"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Condition is an open condition: what is not as it should be, since when.
type Condition = condition.Condition

// Status is everything that the agent tells about itself.
type Status struct {
	Agent      AgentStatus              `json:"agent"`
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
	State       string        `json:"state"`
	Server      string        `json:"server,omitempty"`
	SessionID   string        `json:"session_id,omitempty"` // hexadecimal, as in the log
	Timeout     time.Duration `json:"timeout"`
	Since       time.Time     `json:"since,omitzero"`
	LastAnswer  time.Time     `json:"last_answer,omitzero"`
	Expirations uint64        `json:"expirations"`
	Reconnects  uint64        `json:"reconnects"`
	Watches     int           `json:"watches"`
	Resumed     bool          `json:"resumed"`
	LastError   string        `json:"last_error,omitempty"`
}

// SourceStatus is about one declared source.
type SourceStatus struct {
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	Path     string    `json:"path"`
	Reported bool      `json:"reported"` // in this process
	Changed  time.Time `json:"changed,omitzero"`
	Version  string    `json:"version,omitempty"`
	Zxid     int64     `json:"zxid,omitempty"`
	Size     int       `json:"size"` // keys, members or groups
}

// ConfigStatus is what a config tree's watcher tells.
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
	Name       string        `json:"name"`
	State      string        `json:"state"` // waiting, ok, kept (a group is empty) or failed
	Stage      string        `json:"stage,omitempty"`
	Error      string        `json:"error,omitempty"`
	Files      []string      `json:"files"`
	Sources    []string      `json:"sources"`
	Version    string        `json:"version,omitempty"`
	LastApply  time.Time     `json:"last_apply,omitzero"`
	LastChange time.Time     `json:"last_change,omitzero"` // newest swap; of a former process: the files' time
	Took       time.Duration `json:"took"`
	Owed       bool          `json:"owed"` // a reload is owed
	OwedSince  time.Time     `json:"owed_since,omitzero"`
	LastReload *ReloadStatus `json:"last_reload,omitempty"` // in this process
	Position   string        `json:"position,omitempty"`
}

// ReloadStatus is the newest run of a reload command.
type ReloadStatus struct {
	At    time.Time     `json:"at"`
	Took  time.Duration `json:"took"`
	Code  int           `json:"code"`
	Error string        `json:"error,omitempty"`
}

// HookStatus is about one hook.
type HookStatus struct {
	Name     string    `json:"name"`
	Leader   string    `json:"leader,omitempty"`
	Command  string    `json:"command"`
	Triggers []string  `json:"triggers"`
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Here     bool      `json:"here"` // it runs on this host now
	Runs     []HookRun `json:"runs"` // the last ones, oldest first
}

// Last is the newest run; nil when there was none.
func (h HookStatus) Last() *HookRun {
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
	Error  string    `json:"error,omitempty"` // of the newest reload
}

// Status returns the present status. It costs nothing when nobody asks.
func (a *Agent) Status() Status {
	cfg, snap := a.cfg.Load(), a.loop.snapshot.Load()
	s := Status{
		Agent: AgentStatus{
			ID: cfg.ID, Host: cfg.Host, Version: a.first.Version, PID: os.Getpid(), Started: a.started,
			State: a.state(snap), StateDir: a.stateDir, Maintenance: a.hostMaint.status(),
		},
		Summary: a.Summary(), ZooKeeper: zooKeeperStatus(a.sessions.Status()), Conditions: a.conds.List(),
		Sources: sourceStatus(cfg, snap), Templates: a.templateStatus(cfg, snap), Hooks: a.HookStatus(), Execs: a.execs.status(),
	}
	a.unitStatus(cfg, snap, &s)
	st := a.settings.Load()
	s.Settings = SettingsStatus{Hash: st.hash, Loaded: st.loaded, Files: st.files}
	if st.err != nil {
		s.Settings.Error = st.err.Error()
	}
	return s
}

func (a *Agent) state(snap *snapshot) string {
	select {
	case <-a.loop.done:
		return "stopping"
	default:
	}
	switch {
	case snap.complete:
		return "running"
	case snap.cached:
		return "cached"
	}
	return "starting"
}

func zooKeeperStatus(z session.Status) ZooKeeperStatus {
	s := ZooKeeperStatus{
		State: z.State.String(), Server: z.Server, Timeout: z.Timeout, Since: z.Since,
		LastAnswer: z.LastAnswer, Expirations: z.Expirations, Reconnects: z.Reconnects, Watches: z.Watches,
		Resumed: z.Resumed, LastError: z.LastError,
	}
	if z.SessionID != 0 {
		s.SessionID = hexID(z.SessionID)
	}
	return s
}

func sourceStatus(cfg *Config, snap *snapshot) []SourceStatus {
	paths := sourcePaths(cfg)
	list := make([]SourceStatus, 0, len(snap.declared))
	for _, src := range snap.declared {
		s := SourceStatus{Kind: string(src.Kind), Name: src.Name, Path: paths[src]}
		s.Changed = snap.live[src]
		s.Reported = !s.Changed.IsZero()
		switch u := snap.view.Get(src).(type) {
		case *view.Tree:
			s.Version, s.Zxid, s.Size = u.Version(), u.Last, u.Len()
		case *view.Group:
			s.Zxid, s.Size = u.Last, len(u.Members)
		case *view.Groups:
			s.Zxid, s.Size = u.Last, len(u.Groups)
		case *view.Leader:
			s.Path, s.Zxid = u.Path, u.Term
		}
		list = append(list, s)
	}
	return list
}

func (a *Agent) templateStatus(cfg *Config, snap *snapshot) []TemplateStatus {
	list := make([]TemplateStatus, 0, len(cfg.Bundles))
	for _, b := range cfg.Bundles {
		r := snap.report(b.Name)
		t := TemplateStatus{
			Name: b.Name, State: r.State, Stage: r.Stage, Files: r.Files, Version: r.Version, LastApply: r.LastApply,
			LastChange: r.LastChange, Took: r.Took, Position: b.Position, Sources: []string{},
			OwedSince: a.owed.at(b.Name), LastReload: a.reloads.newest(b.Name),
		}
		t.Owed = !t.OwedSince.IsZero()
		if t.LastChange.IsZero() {
			t.LastChange = newestFile(t.Files)
		}
		for _, s := range snap.sources[b.Name] {
			t.Sources = append(t.Sources, s.String())
		}
		if r.Err != nil {
			t.Error = r.Err.Error()
		}
		if t.State == "" {
			t.State = "waiting"
		}
		list = append(list, t)
	}
	return list
}

// newestFile is when the newest of some files was written, as far as the first
// of them tell.
func newestFile(files []string) time.Time {
	var newest time.Time
	for _, f := range files[:min(len(files), 20)] {
		if info, err := os.Stat(f); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest
}

// unitStatus asks the units themselves.
func (a *Agent) unitStatus(cfg *Config, snap *snapshot, s *Status) {
	s.Configs, s.Services, s.Groups = []ConfigStatus{}, []registry.ServiceStatus{}, []registry.GroupStatus{}
	s.GroupSets, s.Elections = []registry.GroupsStatus{}, []ElectionStatus{}
	for _, c := range cfg.Configs {
		if w, ok := a.sup.value("config", c.Name).(*config.Watcher); ok {
			st := ConfigStatus{Status: w.Status()}
			if st.Err != nil {
				st.Error = st.Err.Error()
			}
			s.Configs = append(s.Configs, st)
		}
	}
	for _, c := range cfg.Services {
		if r, ok := a.sup.value("service", c.Name).(*registry.Registrar); ok {
			s.Services = append(s.Services, r.Status())
		}
	}
	for _, c := range cfg.Groups {
		if g, ok := a.sup.value("group", c.Name).(*registry.Group); ok {
			s.Groups = append(s.Groups, g.Status())
		}
	}
	for _, c := range cfg.GroupSets {
		if g, ok := a.sup.value("groups", c.Name).(*registry.Groups); ok {
			s.GroupSets = append(s.GroupSets, g.Status())
		}
	}
	for _, c := range cfg.Elections {
		e := ElectionStatus{Leader: view.Leader{Name: c.Name, Path: c.Path}, Held: a.terms.get(c.Name) != nil}
		if l, ok := snap.view.Leader(c.Name); ok {
			e.Leader = *l
		}
		s.Elections = append(s.Elections, e)
	}
}

// HookStatus lists the hooks with their last runs.
func (a *Agent) HookStatus() []HookStatus {
	cfg := a.cfg.Load()
	list := make([]HookStatus, 0, len(cfg.Hooks))
	for _, h := range cfg.Hooks {
		s := HookStatus{Name: h.Name, Leader: h.Leader, Command: h.Command.Text, Schedule: h.Schedule, Runs: a.history.of(h.Name), Triggers: []string{}}
		s.Here = h.Leader == "" || a.terms.get(h.Leader) != nil
		for _, src := range h.OnChange {
			s.Triggers = append(s.Triggers, "change of "+src.String())
		}
		if h.OnElected {
			s.Triggers = append(s.Triggers, command.EventElected)
		}
		if h.OnDeposed {
			s.Triggers = append(s.Triggers, command.EventDeposed)
		}
		if h.Schedule != "" {
			s.Triggers = append(s.Triggers, command.EventSchedule)
			if sched, err := ParseSchedule(h.Schedule, a.scheduleKey(h)); err == nil {
				s.Next = sched.Next(time.Now())
			}
		}
		if s.Runs == nil {
			s.Runs = []HookRun{}
		}
		list = append(list, s)
	}
	return list
}
