package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors of this package, for errors.Is.
var (
	// ErrOpen says that another rollout of the tree is open.
	ErrOpen = errors.New("another rollout is open")
	// ErrNoRollout says that no such rollout exists, or none is open.
	ErrNoRollout = errors.New("no such rollout")
	// ErrAborted says that the proposal was decided abort.
	ErrAborted = errors.New("rollout aborted")
	// ErrHalted says that the rollout stopped at a failure.
	ErrHalted = errors.New("rollout halted")
	// ErrStopping is what Host.Use returns when the process stops: the host
	// stays started, and its next life goes on from there.
	ErrStopping = errors.New("the agent stops")
	// ErrNobody says that all subscribers are in maintenance, so that nobody
	// would check the version.
	ErrNobody = errors.New("all subscribers are in maintenance")
	// ErrBadRecord says that a znode of a rollout holds something else.
	ErrBadRecord = errors.New("not a rollout record")
)

// Duration is a time.Duration that JSON spells as "30s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Strategy is how a version reaches the hosts.
type Strategy struct {
	// Parallel is K: how many hosts may be between swap and post-check.
	Parallel int `json:"parallel"`
	// Canary is how many hosts start before the bake; 0: no canary phase.
	Canary int `json:"canary,omitempty"`
	// Bake is how long the rollout waits after the last canary is done.
	Bake Duration `json:"bake,omitempty"`
	// Pause is how long a host keeps its permit after it is done.
	Pause Duration `json:"pause,omitempty"`
	// MaxFailures is at which failed host the rollout halts; 1: at the first.
	MaxFailures int `json:"max_failures"`
	// VoteTimeout is how long votes are waited for, from the creation of the
	// proposal, in ZooKeeper's time.
	VoteTimeout Duration `json:"vote_timeout"`
	// Absent says what a participant that has not voted at the deadline
	// means: abort (default) or skip.
	Absent string `json:"absent,omitempty"`
	// Grace is how long a started host may be absent before it is a failure.
	Grace Duration `json:"grace"`
	// Gate is a group whose number of members must not fall below what it
	// was at the decision, less one: else the rollout pauses.
	Gate string `json:"gate,omitempty"`
	// Order, when set, lists agents that start before all others.
	Order []string `json:"order,omitempty"`
}

// Defaults of a strategy.
const (
	DefaultVoteTimeout = 60 * time.Second
	DefaultGrace       = 60 * time.Second
	DefaultBake        = 60 * time.Second
)

// WithDefaults returns the strategy with what is unset filled in for a fleet
// of the given size: K = a tenth of it, one canary, the first failure halts.
func (s Strategy) WithDefaults(size int) Strategy {
	if s.Parallel <= 0 {
		s.Parallel = max(1, size/10)
	}
	if s.MaxFailures <= 0 {
		s.MaxFailures = 1
	}
	if s.VoteTimeout <= 0 {
		s.VoteTimeout = Duration(DefaultVoteTimeout)
	}
	if s.Grace <= 0 {
		s.Grace = Duration(DefaultGrace)
	}
	if s.Absent == "" {
		s.Absent = AbsentAbort
	}
	return s
}

// What an absent participant means at the deadline.
const (
	AbsentAbort = "abort"
	AbsentSkip  = "skip"
)

// Proposal is the data of rollouts/r-<S>; it never changes.
type Proposal struct {
	Version      int64    `json:"version"`
	Digest       string   `json:"digest"`
	Previous     int64    `json:"previous"`
	Participants []string `json:"participants"`
	// Skipped are the subscribers that were in maintenance: they do not vote.
	Skipped    []string  `json:"skipped,omitempty"`
	Strategy   Strategy  `json:"strategy"`
	Who        string    `json:"who,omitempty"`
	Why        string    `json:"why,omitempty"`
	RollbackOf int64     `json:"rollback_of,omitempty"`
	Created    time.Time `json:"created"`
	// Ready is the version (of the znode) of ready that the flip expects.
	Ready int32 `json:"ready"`
}

// Vote is one host's answer to a proposal.
type Vote struct {
	Commit bool   `json:"commit"`
	Reason string `json:"reason,omitempty"` // the check's own words
	// Skip says that the host is in maintenance: it neither says yes nor no.
	Skip bool `json:"skip,omitempty"`
}

// Decision is what became of a proposal.
type Decision struct {
	Commit  bool     `json:"commit"`
	Reason  string   `json:"reason,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
	By      string   `json:"by"`
	// Members is how many members the gate's group had.
	Members int `json:"members,omitempty"`
}

// Actions of a control record.
const (
	ActionRun   = "run"
	ActionPause = "pause"
	ActionAbort = "abort"
)

// Control is what an operator, or the health gate, asks of a rollout.
type Control struct {
	Action string `json:"action"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// IgnoreGate lets the rollout go on although the health gate says no.
	IgnoreGate bool `json:"ignore_gate,omitempty"`
}

// States of a host in a rollout.
const (
	HostStarted = "started"
	HostDone    = "done"
	HostFailed  = "failed"
	HostSkipped = "skipped" // in maintenance: not started, and not waited for
)

// HostRecord is one host's progress.
type HostRecord struct {
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// Life names the process that started, and Lives counts the processes that
	// have: one that dies of the version is not started for ever.
	Life  string `json:"life,omitempty"`
	Lives int    `json:"lives,omitempty"`
}

// Activity is the data of rollouts/r-<S>/hosts, changed only by version: the
// hosts between started and done, and how many may have started in all.
type Activity struct {
	Active  []string `json:"active"`
	Started int      `json:"started"`
	Failed  int      `json:"failed"`
	Budget  int      `json:"budget"` // -1: no limit
}

// admits reports whether one more host may start under the strategy.
func (a Activity) admits(s Strategy, agent string) bool {
	if slices.Contains(a.Active, agent) {
		return true
	}
	return len(a.Active) < s.Parallel && (a.Budget < 0 || a.Started < a.Budget)
}

// start returns the activity with the agent active.
func (a Activity) start(agent string) Activity {
	if slices.Contains(a.Active, agent) {
		return a
	}
	a.Active = append(slices.Clone(a.Active), agent)
	a.Started++
	return a
}

// finish returns the activity without the agent.
func (a Activity) finish(agent string, failed bool) Activity {
	a.Active = slices.DeleteFunc(slices.Clone(a.Active), func(id string) bool { return id == agent })
	if failed {
		a.Failed++
	}
	return a
}

// Halt says why a rollout stopped.
type Halt struct {
	Host   string `json:"host,omitempty"`
	Reason string `json:"reason"`
}

// Done closes a rollout.
type Done struct {
	Result  string   `json:"result"` // done, aborted or superseded
	Hosts   int      `json:"hosts"`  // that use the version
	Failed  []string `json:"failed,omitempty"`
	Skipped []string `json:"skipped,omitempty"` // in maintenance
	Reason  string   `json:"reason,omitempty"`
}

// Results of a closed rollout.
const (
	ResultDone       = "done"
	ResultAborted    = "aborted"
	ResultSuperseded = "superseded"
)

// encode returns the JSON of a record; records hold nothing that cannot be
// encoded.
func encode(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("fleet: encode %T: %v", record, err))
	}
	return b
}

// decode parses a record; other fields are ignored, so that a newer version
// may add some.
func decode[T any](path string, data []byte) (T, error) {
	var record T
	if err := json.Unmarshal(data, &record); err != nil {
		return record, fmt.Errorf("%s: %w: %w", path, ErrBadRecord, err)
	}
	return record, nil
}
