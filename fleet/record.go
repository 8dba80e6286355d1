package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Errors of this package, for errors.Is.
var (
	// ErrOpen says that another rollout of the tree is open.
	ErrOpen = errors.New("another rollout is open")
	// ErrNoRollout says that no such rollout exists, or none is open.
	ErrNoRollout = errors.New("no such rollout")
	// ErrAborted says that the version was refused, or the rollout given up.
	ErrAborted = errors.New("rollout aborted")
	// ErrReplaced says that another version has taken the rollout's place.
	ErrReplaced = errors.New("another version has taken its place")
	// ErrHalted says that the rollout stopped at a failure.
	ErrHalted = errors.New("rollout halted")
	// ErrStopping is the error of Host.Use when the process stops: the host
	// stays started, and its next life continues from there.
	ErrStopping = errors.New("the agent stops")
	// ErrNoPrevious says that nothing tells which version was in use before, because
	// there was none, or ready was damaged then.
	ErrNoPrevious = errors.New("the version before it is not known")
	// ErrNobody means that no host would check the version: no host subscribes, or
	// all are in maintenance.
	ErrNobody = errors.New("the vote cannot start")
	// ErrBadRecord says that a znode of a rollout does not hold a valid record.
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
	// Parallel is K: how many hosts may be between their grant and their end.
	Parallel int `json:"parallel"`
	// Canary is how many hosts start before the bake; 0: no canary phase, negative:
	// one in a fleet of several hosts.
	Canary int `json:"canary,omitempty"`
	// Bake is how long the rollout waits after the last canary is done.
	Bake Duration `json:"bake,omitempty"`
	// BakeCheck halts the rollout at the bake if its coordinator has no [BakeCheck].
	BakeCheck bool `json:"bake_check,omitempty"`
	// Pause is how long a host keeps its place among the K after it is done.
	Pause Duration `json:"pause,omitempty"`
	// MaxFailures is the number of failed hosts that halts the rollout; 1: the
	// first failure.
	MaxFailures int `json:"max_failures"`
	// VoteTimeout is how long the coordinator waits for votes after the last call.
	VoteTimeout Duration `json:"vote_timeout"`
	// Absent is the result of a host that has not voted at the deadline: abort
	// (default) or skip.
	Absent string `json:"absent,omitempty"`
	// Grace is how long a started host may be absent before it counts as failed. It
	// also bounds the time from a grant to the start.
	Grace Duration `json:"grace"`
	// Gate names a group. The rollout pauses when the group has fewer members than
	// at the decision, less one.
	Gate string `json:"gate,omitempty"`
	// Order, when set, names the canaries.
	Order []string `json:"order,omitempty"`
}

// Defaults of a strategy.
const (
	DefaultVoteTimeout = 60 * time.Second
	DefaultGrace       = 60 * time.Second
	DefaultBake        = 60 * time.Second
	// CanaryDefault stands for one canary in a fleet of several hosts.
	CanaryDefault = -1
)

// WithDefaults returns the strategy with unset fields filled in for a fleet
// of the given size: K = a tenth of it, one canary, the first failure halts.
func (s Strategy) WithDefaults(size int) Strategy {
	s.Parallel = cmp.Or(max(s.Parallel, 0), max(1, size/10))
	if s.Canary < 0 {
		s.Canary = max(0, min(1, size-1))
	}
	s.VoteTimeout = cmp.Or(max(s.VoteTimeout, 0), Duration(DefaultVoteTimeout))
	s.Grace = cmp.Or(max(s.Grace, 0), Duration(DefaultGrace))
	s.MaxFailures, s.Absent = max(s.MaxFailures, 1), cmp.Or(s.Absent, AbsentAbort)
	if len(s.Order) > 0 {
		s.Order = slices.Compact(slices.Sorted(slices.Values(s.Order)))
		s.Canary = len(s.Order)
	}
	return s
}

// What an absent host means at the deadline.
const (
	AbsentAbort = "abort"
	AbsentSkip  = "skip"
)

// Proposal is the data of rollouts/r-<S>; it never changes.
type Proposal struct {
	Version  int64  `json:"version"`
	Digest   string `json:"digest"`
	Previous int64  `json:"previous"` // the version in use
	// Ready is the ready znode that the proposal was made for.
	Ready ReadyAt `json:"ready"`
	// Hosts is how many subscribers there were.
	Hosts    int          `json:"hosts"`
	Strategy Strategy     `json:"strategy"`
	Delta    *trees.Delta `json:"delta,omitempty"` // to the version in use
	// Replaces names the rollout that this one replaced, and all that that one had
	// replaced, latest first.
	Replaces   []string  `json:"replaces,omitempty"`
	Dry        bool      `json:"dry,omitempty"` // the version is checked and never used
	Who        string    `json:"who,omitempty"`
	Why        string    `json:"why,omitempty"`
	RollbackOf int64     `json:"rollback_of,omitempty"`
	Created    time.Time `json:"created"`
}

// ReadyAt is one state of the ready znode.
type ReadyAt struct {
	Version int32 `json:"version"` // of the znode
	Mzxid   int64 `json:"mzxid"`
}

// shardCall is the data of a subscribers' shard. It calls the hosts of the shard to
// vote.
type shardCall struct {
	Format  int    `json:"zkagent"` // 2
	Rollout string `json:"rollout"`
	// Gate and State are the version and the state of the gate when the shard
	// was called.
	Gate  int32  `json:"gate"`
	State string `json:"state"`
	// Elect is the number of hosts that the proposal called. It is 0 in later
	// calls, whose hosts do not become candidates at once.
	Elect    int      `json:"elect,omitempty"`
	Proposal Proposal `json:"proposal"`
}

const callFormat = 2

// States of a gate.
const (
	GateVoting  = "voting"
	GateRefused = "refused"
	GateOpen    = "open"
	GateHalted  = "halted"
	GateClosed  = "closed"
)

// Waves of an open rollout.
const (
	WaveCanary = "canary"
	WaveAll    = "all"
)

// Gate is the state of a rollout. Refusal, decision, pause, halt and end all change
// this one znode at its version. A host that starts checks it.
type Gate struct {
	State  string `json:"state"`
	Paused bool   `json:"paused,omitempty"`
	Wave   string `json:"wave,omitempty"`
	// Round counts the operator's retries: a failure counts in its own round.
	Round int `json:"round,omitempty"`
	// Members is how many members the strategy's group had at the decision.
	Members int `json:"members,omitempty"`
	// IgnoreGate lets the rollout continue although that group has lost members.
	IgnoreGate bool   `json:"ignore_gate,omitempty"`
	Result     string `json:"result,omitempty"` // of a closed one
	// RolledBack says that the version before replaced this rollout.
	RolledBack bool   `json:"rolled_back,omitempty"`
	Host       string `json:"host,omitempty"` // that refused, or failed
	Reason     string `json:"reason,omitempty"`
	By         string `json:"by,omitempty"`
	// Counts and the lists describe the end of the rollout.
	Counts  *Counts  `json:"counts,omitempty"`
	Failed  []string `json:"failed,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
	// Past lists the earlier states that somebody caused, oldest first, within a
	// bound. A writer of the gate adds the state that it replaces.
	Past []GateState `json:"past,omitempty"`
}

// after returns the gate with the state that it replaces, which was written at a
// time, in its past. A state that is written again is one state.
func (g Gate) after(was Gate, at time.Time) Gate {
	g.Past = was.Past
	if now, old := g.caused(time.Time{}), was.caused(time.Time{}); now != old {
		g.Past = addPast(was.Past, was.caused(at))
	}
	return g
}

// caused returns the state of the gate, and who caused it.
func (g Gate) caused(at time.Time) GateState {
	return GateState{State: g.State, Paused: g.Paused, Wave: g.Wave, Round: g.Round, IgnoreGate: g.IgnoreGate, Host: g.Host, Reason: g.Reason, By: g.By, At: at}
}

func (g Gate) runs() bool { return g.State == GateOpen && !g.Paused }

// Results of a closed rollout.
const (
	ResultDone       = "done"
	ResultAborted    = "aborted"
	ResultSuperseded = "superseded" // by a publish that did not wait for it
	ResultReplaced   = "replaced"   // by another rollout
	ResultPlanned    = "planned"    // a dry run: every host has answered
)

// Counts is the number of hosts in each state.
type Counts struct {
	Called  int `json:"called"` // in all snapshots
	Commit  int `json:"commit,omitempty"`
	Abort   int `json:"abort,omitempty"`
	Skipped int `json:"skipped,omitempty"`
	Wait    int `json:"wait,omitempty"`
	Granted int `json:"granted,omitempty"`
	Started int `json:"started,omitempty"`
	Done    int `json:"done,omitempty"`
	Failed  int `json:"failed,omitempty"`
	Lost    int `json:"lost,omitempty"` // of the started
	// Unchecked is how many voted for commit without having run all checks.
	Unchecked int `json:"unchecked,omitempty"`
}

// Progress is the coordinator's report, written once a second.
type Progress struct {
	Counts   Counts            `json:"counts"`
	Failures map[string]string `json:"failures,omitempty"` // the first 20 hosts, with their words
	// Baked is when the bake ends, by ZooKeeper's clock; zero: no bake runs.
	Baked time.Time `json:"baked,omitzero"`
	// BakeCheck is the state of the check during the bake: pending or holds; empty: the
	// coordinator has no check, or no bake runs.
	BakeCheck string `json:"bake_check,omitempty"`
}

// maxFailuresShown bounds the failures in a Progress.
const maxFailuresShown = 20

// maxNames bounds the lists of hosts in a closed gate.
const maxNames = 100

// shardHosts is the data of rollouts/r-<S>/hosts/<h>: who was called.
type shardHosts struct {
	IDs []string `json:"ids"`
}

// States of a host's record.
const (
	HostCommit  = "commit"  // its vote
	HostAbort   = "abort"   // its vote
	HostSkipped = "skipped" // in maintenance, or hung: not started, and not waited for
	HostWait    = "wait"    // it may be granted a start without a vote
	HostGranted = "granted" // it may start
	HostStarted = "started"
	HostDone    = "done"
	HostFailed  = "failed" // it uses the version from before again
)

// HostRecord is a host's own record in a rollout.
type HostRecord struct {
	State   string `json:"state"`
	Version int64  `json:"version,omitempty"`
	// From is the version that the host used when it made the record.
	From  int64  `json:"from,omitempty"`
	Error string `json:"error,omitempty"`
	// Unchecked says that the host voted for commit without having run all checks: it
	// can run them only with the new files in place.
	Unchecked bool `json:"unchecked,omitempty"`
	// Gate is the version of the gate that a grant is for, and Round the retry
	// that the turn belongs to.
	Gate  int32 `json:"gate,omitempty"`
	Round int   `json:"round,omitempty"`
	// Life names the process that started the turn. Attempts counts the processes that
	// did: a host whose agent dies of the version gives up after maxAttempts.
	Life     string `json:"life,omitempty"`
	Attempts int    `json:"lives,omitempty"`
	Lost     bool   `json:"lost,omitempty"` // started, and absent for the grace time
	// Canary says that the host got its grant in the canary wave.
	Canary bool `json:"canary,omitempty"`
	// Files lists the files that the version would change here. Only votes of a dry run
	// have it.
	Files []FileChange `json:"files,omitempty"`
	More  int          `json:"more,omitempty"` // files beside those
}

// Vote returns the host's vote; empty: none.
func (r HostRecord) Vote() string {
	switch r.State {
	case "", HostWait:
		return ""
	case HostAbort, HostSkipped:
		return r.State
	}
	return HostCommit
}

// VoteText is the vote for people: also whether all checks were run.
func (r HostRecord) VoteText() string {
	if vote := r.Vote(); vote != HostCommit || !r.Unchecked {
		return vote
	}
	return HostCommit + " (" + ErrCheckNotRun.Error() + ")"
}

// Turn returns the state of the host's turn; empty: it has not come.
func (r HostRecord) Turn() string {
	switch r.State {
	case HostCommit, HostAbort, HostWait:
		return ""
	}
	return r.State
}

// FileChange is the change that a version would make to one file of a host.
type FileChange struct {
	Path    string `json:"path"`
	Digest  string `json:"digest,omitempty"` // of the new content
	Added   int    `json:"added"`            // lines
	Removed int    `json:"removed"`
	Diff    string `json:"diff,omitempty"` // of a sample of the hosts
	Reload  string `json:"reload,omitempty"`
}

// DigestGone is the digest of a file that would be removed.
const DigestGone = "gone"

// maxReason bounds a check's output in a record or a gate, in bytes.
const maxReason = 1024

func clip(s string) string { return Clip(s, maxReason) }

// encode returns the JSON of a record. Encoding cannot fail for our record types.
func encode(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("fleet: encode %T: %v", record, err))
	}
	return b
}

// readRecord reads the record at a path. Without one the error is [session.ErrNoNode].
func readRecord[T any](ctx context.Context, s *session.Session, path string) (T, session.Stat, error) {
	data, stat, err := s.Get(ctx, path)
	if err != nil {
		return *new(T), stat, err
	}
	record, err := decode[T](path, data)
	return record, stat, err
}

// decode parses a record. It ignores unknown fields, so that a newer program
// version may add some.
func decode[T any](path string, data []byte) (T, error) {
	var record T
	if err := json.Unmarshal(data, &record); err != nil {
		return record, fmt.Errorf("%s: %w: %w", path, ErrBadRecord, err)
	}
	return record, nil
}

// Act is one thing that somebody did to a rollout.
type Act struct {
	At  time.Time
	Who string // an operator or a host; empty: not known
	// What is a sentence without its subject, such as "paused it".
	What string
	Why  string
}

// Acts returns the acts on the rollout with their authors, oldest first, as far as its gate keeps them.
func (s *State) Acts() []Act {
	acts := []Act{{At: s.Created, Who: s.Proposal.Who, What: fmt.Sprintf("proposed version %d", s.Proposal.Version), Why: s.Proposal.Why}}
	before := GateState{State: GateVoting}
	for _, g := range s.Gate.Past {
		acts = append(acts, Act{g.At, whoOf(g), actOf(before, g), g.Reason})
		before = g
	}
	now := s.Gate.caused(s.GateAt.Time)
	if now.By == "" && now.Host == "" && s.Open() {
		return acts // the vote, as proposed
	}
	last := Act{now.At, whoOf(now), actOf(before, now), now.Reason}
	if !s.Open() {
		last.Who, last.What = now.By, "ended it: "+s.Phase()
		if now.Reason == before.Reason {
			last.Why = "" // that of the state before
		}
	}
	return append(acts, last)
}

// DecidedAt returns when the version was accepted or refused, by ZooKeeper's clock: the
// gate was written then, and perhaps again later. It is the time of the last write
// while there is no decision.
func (s *State) DecidedAt() time.Time {
	for _, g := range s.Gate.Past {
		if (g.State == GateOpen || g.State == GateRefused) && !g.At.IsZero() {
			return g.At
		}
	}
	return s.GateAt.Time
}

// whoOf returns the host that refused or failed, or the operator or coordinator.
func whoOf(g GateState) string { return cmp.Or(g.Host, g.By) }

func actOf(before, now GateState) string {
	switch {
	case now.State == GateRefused:
		return "refused it"
	case now.State == GateHalted && now.Host == "":
		return "halted it"
	case now.State == GateHalted:
		return "failed, which halted it"
	case now.Paused:
		return "paused it"
	case before.Paused && now.IgnoreGate:
		return "resumed it past its health gate"
	case before.Paused:
		return "resumed it"
	case before.State == GateHalted:
		return fmt.Sprintf("lifted the halt, for try %d", now.Round+1)
	case before.Wave == WaveCanary && now.Wave == WaveAll:
		return "let all hosts start after the canaries"
	case now.Wave == WaveCanary:
		return "let the canaries start"
	case now.State == GateOpen:
		return "let all hosts start"
	}
	return "changed it"
}

// GateState is a state of a rollout's gate that somebody caused. Its fields have the
// names that they have in the gate.
type GateState struct {
	State      string    `json:"state"`
	Paused     bool      `json:"paused,omitempty"`
	Wave       string    `json:"wave,omitempty"`
	Round      int       `json:"round,omitempty"`
	IgnoreGate bool      `json:"ignore_gate,omitempty"`
	Host       string    `json:"host,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	At         time.Time `json:"at,omitzero"` // when it was written, by ZooKeeper's clock
}

// Bounds of the past of a gate, and of freezes: their number and the bytes of a reason.
const (
	maxPast       = 20
	maxPastReason = 200
)

// addPast adds a state to the past of a gate, unless nobody caused it: the first.
func addPast(past []GateState, was GateState) []GateState {
	if was.By == "" && was.Host == "" {
		return past
	}
	was.Reason, was.At = clipPast(was.Reason), was.At.UTC()
	past = append(slices.Clone(past), was)
	return past[max(0, len(past)-maxPast):]
}

func clipPast(reason string) string { return Clip(reason, maxPastReason) }
