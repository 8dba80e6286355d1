// Package show is the one way to show the state of an agent and of a fleet: the
// documents, the severity of each state, and the rows that the commands, the page,
// the monitoring check and the metrics have in common.
//
// Not here: how a row looks on a terminal (internal/term) or on the page
// (internal/web).
package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// Row is one thing that the agent manages.
type Row struct {
	Kind, Name, State string
	Since             time.Time
	Detail            string // what is in use, and what is wrong
	Parts             []Row  // such as the checks of a service
}

// Rows lists everything that the agent manages, with its parts.
func (s *Status) Rows() []Row {
	rows := slices.Concat(s.serviceRows(), s.templateRows(), s.sourceRows(), s.electionRows(), s.runRows())
	if s.ZooKeeper.Outage() {
		s.markOld(rows)
	}
	return rows
}

// readKinds are the kinds of rows that show what was read from ZooKeeper.
var readKinds = []string{"config", "group", "groups", "election", "uses", "znode"}

// markOld calls old what was read from ZooKeeper, and says since when. What is wrong stays.
func (s *Status) markOld(rows []Row) {
	for i := range rows {
		row := &rows[i]
		s.markOld(row.Parts)
		read := slices.Contains(readKinds, row.Kind) || row.Kind == "service" && row.State == registry.StateRegistered
		if !read || SeverityOf(row.State) > OK {
			continue
		}
		row.State, row.Detail = "old", Joined("; ", s.ZooKeeper.AsOf(), row.Detail)
	}
}

func (s *Status) serviceRows() []Row {
	rows := make([]Row, len(s.Services))
	for i, v := range s.Services {
		row := Row{Kind: "service", Name: v.Name, State: v.State, Since: v.Since}
		details := []string{v.Address, MaintenanceText(v.Maintenance)}
		for _, c := range v.Checks {
			output := strings.TrimSpace(c.Output)
			if c.State == registry.Critical {
				details = append(details, "check "+c.Name+": "+output)
			}
			row.Parts = append(row.Parts, Row{Kind: "check", Name: c.Name, State: c.State.String(), Since: c.Since, Detail: output})
		}
		for _, node := range v.Nodes {
			row.Parts = append(row.Parts, Row{Kind: "znode", Detail: node})
		}
		row.Detail = Joined("; ", append(details, v.Error)...)
		rows[i] = row
	}
	return rows
}

// MaintenanceText says why a host or service is in maintenance, and until when; ""
// when it is in none.
func MaintenanceText(m *registry.Maintenance) string {
	switch {
	case m == nil || !m.On:
		return ""
	case m.Until.IsZero():
		return m.Reason
	}
	return Joined(", ", m.Reason, "until "+m.Until.UTC().Format(time.RFC3339))
}

func (s *Status) templateRows() []Row {
	rows := make([]Row, len(s.Templates))
	for i, v := range s.Templates {
		row := Row{Kind: "template", Name: v.Name, State: v.State, Since: v.LastChange, Detail: v.Error}
		explained := v.State == "failed" && s.has(condition.TemplateFailed, v.Name) || v.State == "kept" && s.has(condition.GroupEmpty, v.Name)
		switch {
		case explained:
			row.Detail = ""
		case v.Error == "" && v.Version != "":
			row.Detail = "version " + v.Version
		}
		pending := ""
		if v.PendingReload {
			pending = "pending for " + term.Age(v.PendingSince)
			text := v.PendingText
			if s.has(condition.ReloadPending, v.Name) {
				text = "" // The condition says it.
			}
			row.Detail = Joined("; ", "reload "+pending, text, row.Detail)
		}
		for _, name := range v.Sources {
			i := slices.IndexFunc(s.Sources, func(src SourceStatus) bool { return src.Kind+"."+src.Name == name })
			if i >= 0 {
				src := &s.Sources[i]
				row.Parts = append(row.Parts, Row{Kind: "uses", Name: name, State: src.State(), Since: src.Changed, Detail: src.InUse()})
			}
		}
		for _, f := range v.Files {
			row.Parts = append(row.Parts, Row{Kind: "file", Since: v.LastChange, Detail: f})
		}
		switch r := v.LastReload; {
		case r == nil && v.PendingReload:
			row.Parts = append(row.Parts, Row{Kind: "reload", State: "reload-pending", Since: v.PendingSince, Detail: "not tried in this process"})
		case r != nil:
			state := "done"
			if r.Error != "" {
				state = "failed"
			}
			row.Parts = append(row.Parts, Row{Kind: "reload", State: state, Since: r.At, Detail: Joined("; ", pending, "took "+term.Short(time.Duration(r.Took)), r.Error)})
		}
		rows[i] = row
	}
	return rows
}

func (s *Status) has(kind *condition.Kind, subject string) bool {
	return slices.ContainsFunc(s.Conditions, func(c Condition) bool { return c.Code == kind.Code && c.Subject == subject })
}

// State is the state of the source in one word.
func (s *SourceStatus) State() string {
	if s.Reported {
		return "ok"
	}
	return "waiting"
}

// InUse is what is in use of the source.
func (s *SourceStatus) InUse() string {
	switch s.Kind {
	case "config":
		if s.Version == "" {
			return s.Path
		}
		version := s.Version
		if s.Known != 0 {
			version += fmt.Sprintf(" (knows v%d)", s.Known)
		}
		return fmt.Sprintf("%s, version %s, %s", s.Path, version, term.Count(s.Size, "key"))
	case "group":
		return fmt.Sprintf("%s, %s", s.Path, term.Count(s.Size, "member"))
	case "groups":
		return fmt.Sprintf("%s, %s", s.Path, term.Count(s.Size, "group"))
	}
	return s.Path
}

// sourceRows are the configs and groups, with what is wrong.
func (s *Status) sourceRows() []Row {
	var rows []Row
	for _, v := range s.Sources {
		row := Row{Kind: v.Kind, Name: v.Name, State: v.State(), Since: v.Changed}
		fault, failed := "", false
		switch v.Kind {
		case "election":
			continue
		case "config":
			if i := slices.IndexFunc(s.Configs, func(c ConfigStatus) bool { return c.Name == v.Name }); i >= 0 {
				fault, failed = s.Configs[i].Error, s.Configs[i].Error != ""
				if waiting := s.Configs[i].Waiting; !failed && waiting != "" {
					fault = "waiting for " + strings.TrimPrefix(waiting, "for ")
				}
			}
		case "group":
			if i := slices.IndexFunc(s.Groups, func(g registry.GroupStatus) bool { return g.Name == v.Name }); i >= 0 {
				fault, failed = GroupFault(&s.Groups[i]), s.Groups[i].Error != ""
			}
		}
		if failed {
			row.State = "failed"
		}
		row.Detail = Joined("; ", v.InUse(), fault)
		rows = append(rows, row)
	}
	return rows
}

// flappingShown is how many flapping members the row of a group explains.
const flappingShown = 3

// GroupFault returns the fault of a group.
func GroupFault(v *registry.GroupStatus) string {
	var parts []string
	if v.Missing {
		parts = append(parts, "the znode does not exist")
	}
	if v.Held > 0 {
		parts = append(parts, fmt.Sprintf("the guard holds %s for %s", term.Count(v.Held, "member"), term.Age(v.Holding)))
	}
	flapping := 0
	for _, s := range v.Out {
		if s.State != view.StandingFlapping && s.State != view.StandingSpared {
			continue
		}
		if flapping++; flapping <= flappingShown {
			parts = append(parts, s.ID+" "+s.String())
		}
	}
	if more := flapping - flappingShown; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more are flapping", more))
	}
	if n := len(v.Rejected); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not taken as members: %s: %s", n, v.Rejected[0].Znode, v.Rejected[0].Reason))
	}
	if i := slices.IndexFunc(v.Members, func(m view.Member) bool { return len(m.RawLabels) > 0 }); i >= 0 {
		parts = append(parts, "label of "+RawLabels(v.Members[i].ID, v.Members[i].RawLabels))
	}
	if i := slices.IndexFunc(v.Members, func(m view.Member) bool { return m.LabelsLeftOut != "" }); i >= 0 {
		parts = append(parts, "left out of "+v.Members[i].ID+": "+string(v.Members[i].LabelsLeftOut))
	}
	return Joined("; ", append(parts, v.Error)...)
}

// RawLabels says which labels of a member are no tokens, and what that means.
func RawLabels(id string, labels map[string]string) string {
	return fmt.Sprintf("%s: %s %s not made of letters, digits and ._:/@+-: a template that names it leaves the member out, and rawLabel gives it",
		id, strings.Join(slices.Sorted(maps.Keys(labels)), ", "), map[bool]string{true: "is", false: "are"}[len(labels) == 1])
}

func (s *Status) electionRows() []Row {
	rows := make([]Row, len(s.Elections))
	for i, v := range s.Elections {
		row := Row{Kind: "election", Name: v.Name, State: "follower", Detail: fmt.Sprintf("%s, term %d", cmp.Or(v.ID, "nobody"), v.Term)}
		switch {
		case v.Held:
			row.State = "leader"
		case v.Term == 0: // a candidate in line sees only its own turn.
			row.State, row.Detail = "not leading", fmt.Sprintf("`zkagent elect --list %s` shows who leads", v.Name)
		}
		rows[i] = row
	}
	return rows
}

// runRows are the hooks and the supervised programs.
func (s *Status) runRows() []Row {
	var rows []Row
	for _, v := range s.Hooks {
		row := Row{Kind: "hook", Name: v.Name, State: "idle"}
		if last := v.Last(); last != nil {
			row.State, row.Since, row.Detail = last.State, last.Began, last.Error
		}
		if row.Detail == "" && !v.Next.IsZero() {
			row.Detail = "next " + v.Next.UTC().Format(time.RFC3339)
		}
		rows = append(rows, row)
	}
	for _, v := range s.Execs {
		pid := ""
		if v.PID != 0 {
			pid = fmt.Sprintf("pid %d", v.PID)
		}
		rows = append(rows, Row{Kind: "exec", Name: v.Name, State: v.State, Since: v.Since, Detail: Joined(" ", pid, v.Error)})
	}
	return rows
}

// Severity is how much a state needs a look. It is the one place where states
// become colours, on terminals and on the page; the word always stands beside it.
type Severity int

// The severities.
const (
	Plain Severity = iota // neither good nor bad, or unknown
	OK
	Active  // on its way
	Warning // it serves, and something is held, kept or stopped on purpose
	Critical
)

var severities = map[string]Severity{
	"ok": OK, "connected": OK, "running": OK, "done": OK, "up": OK, "passing": OK, "leader": OK, "registered": OK,

	"started": Active, "rolling": Active, "voting": Active, "granted": Active,

	"degraded": Warning, "drain": Warning, "draining": Warning, "maint": Warning, "maintenance": Warning, "suspended": Warning,
	"connecting": Warning, "cached": Warning, "paused": Warning, "waiting": Warning, "warning": Warning, "starting": Warning,
	"stopping": Warning, "stopped": Warning, "held": Warning, "kept": Warning, "reloading": Warning, "baking": Warning,
	"skipped": Warning, "rolled back": Warning,

	"lost": Critical, "failing": Critical, "failed": Critical, "expired": Critical, "closed": Critical, "down": Critical,
	"critical": Critical, "blocked": Critical, "halted": Critical, "aborted": Critical, "refused": Critical, "exited": Critical,
	"reload-failed": Critical, "reload-pending": Critical, "rejected": Critical,
}

// SeverityOf returns the severity of a state, of a word of health, or of the code of
// a condition; Plain for a word that it does not know.
func SeverityOf(state string) Severity {
	if s, ok := severities[state]; ok {
		return s
	}
	switch k := (Condition{Code: state}).Kind(); {
	case k.Failing:
		return Critical
	case k != condition.Kind{}:
		return Warning
	}
	return Plain
}

// Class is the class of the severity in the style sheet of the page.
func (s Severity) Class() string { return [...]string{"mut", "ok", "acc", "warn", "bad"}[s] }

// Color is the number of the severity's colour on a terminal; "": none.
func (s Severity) Color() string { return [...]string{"", "32", "", "33", "31"}[s] }

// States of a monitoring system, as its plugins exit.
const (
	CheckOK = iota
	CheckWarning
	CheckCritical
	CheckUnknown
)

// Check makes the health of the host a state of a monitoring system, with its word
// and a text. Maintenance is on purpose: it alarms nobody, and is not called ok.
func (s *Status) Check() (code int, word, text string) { //nolint:nonamedreturns // two of them are texts
	texts := lists.Map(s.Conditions, func(c Condition) string { return c.Name() + ": " + c.Text })
	if text = strings.Join(texts, "; "); text == "" {
		text = s.Summary
	}
	switch s.Health {
	case fleet.OK:
		if slices.ContainsFunc(s.Templates, func(t TemplateStatus) bool { return t.State == "waiting" }) {
			return CheckWarning, "WARNING", text // The agent has just started.
		}
		return CheckOK, "OK", text
	case fleet.Maintenance:
		return CheckOK, "MAINTENANCE", text
	case fleet.Degraded:
		return CheckWarning, "WARNING", text
	case fleet.Failing:
		return CheckCritical, "CRITICAL", text
	case fleet.Lost, fleet.Stopped: // an agent that answers is not.
	}
	return CheckUnknown, "UNKNOWN", fmt.Sprintf("unknown health %q, probably of another version; %s", s.Health, text)
}

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
	Warning     string       `json:"warning,omitempty"` // a problem of the server, such as that it is too old
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

// AsOf says when ZooKeeper last answered; "": it never has.
func (z *ZooKeeperStatus) AsOf() string {
	if z.LastAnswer.IsZero() {
		return ""
	}
	return "as of " + z.LastAnswer.UTC().Format(time.RFC3339)
}

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
