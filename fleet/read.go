package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// State is all data of one rollout in ZooKeeper at one moment.
type State struct {
	Root     string
	Name     string
	Proposal Proposal
	Created  time.Time // ctime of the proposal, ZooKeeper's clock
	Gate     Gate
	// Progress is the coordinator's last report.
	Progress Progress
	// Called lists the called hosts in order. Hosts has the records, also of hosts that
	// came later.
	Called []string
	Hosts  map[string]HostRecord
	// Coordinator is the host that leads the rollout; empty: none.
	Coordinator string
	// GateAt and At are when the gate and the records were written last.
	GateAt Stamp
	At     map[string]Stamp
	// Whole is a zxid. The state has every change of the hosts up to it. The hosts are
	// read one after another, so the state may have or lack later changes.
	Whole int64

	gate int32 // version of the gate
}

// Stamp is when a znode was written: in the order of all writes, and by ZooKeeper's
// clock.
type Stamp struct {
	Zxid int64
	Time time.Time
}

func stampOf(st session.Stat) Stamp { return Stamp{st.Mzxid, time.UnixMilli(st.Mtime)} }

// Phase of a rollout, for people.
const (
	PhaseVoting  = "voting"
	PhaseRefused = "refused" // and to be replaced: hosts use different versions
	PhaseRolling = "rolling"
	PhasePaused  = "paused"
	PhaseHalted  = "halted"
	PhaseDone    = "done"
	PhasePlanned = "planned"
	PhaseAborted = "aborted" // no host has changed
	// Another version has taken the place of one that had halted, or went past it.
	PhaseReplaced = "replaced"
	// The version before has taken its place.
	PhaseRolledBack = "rolled back"
)

// Phase returns the phase of the rollout in one word.
func (s *State) Phase() string {
	switch s.Gate.State {
	case GateClosed:
		switch s.Gate.Result {
		case ResultDone:
			return PhaseDone
		case ResultPlanned:
			return PhasePlanned
		case ResultReplaced, ResultSuperseded:
			if s.Gate.RolledBack {
				return PhaseRolledBack
			}
			return PhaseReplaced
		}
		return PhaseAborted
	case GateRefused:
		if len(s.Proposal.Replaces) > 0 {
			return PhaseRefused
		}
		return PhaseVoting // other hosts may still add their reasons before it closes
	case GateHalted:
		return PhaseHalted
	}
	switch {
	case s.Gate.Paused:
		return PhasePaused
	case s.Gate.State == GateVoting:
		return PhaseVoting
	}
	return PhaseRolling
}

// Open reports whether the rollout keeps others from being opened.
func (s *State) Open() bool { return s.Gate.State != GateClosed }

// Reason has the reason for the state of the gate, and the host that gave it.
func (s *State) Reason() string {
	if s.Gate.Host != "" {
		return s.Gate.Host + ": " + s.Gate.Reason
	}
	return s.Gate.Reason
}

// Over reports whether a rollout in this phase has stopped: it ended, or it waits
// for an operator.
func Over(phase string) bool {
	return slices.Contains([]string{PhaseHalted, PhaseRefused, PhaseDone, PhasePlanned, PhaseAborted, PhaseReplaced, PhaseRolledBack}, phase)
}

// Err returns the error of a rollout that failed or halted: ErrAborted, ErrHalted
// or ErrReplaced with the reason. Otherwise it returns nil.
func (s *State) Err() error {
	reason := s.Reason()
	switch s.Phase() {
	case PhaseHalted:
		return fmt.Errorf("%w: %s", ErrHalted, reason)
	case PhaseReplaced, PhaseRolledBack:
		return fmt.Errorf("rollout %s by %s: %w: %s", s.Phase(), cmp.Or(s.Gate.By, "somebody"), ErrReplaced, cmp.Or(reason, s.Gate.Result))
	case PhaseAborted, PhaseRefused:
		reasons := []string{cmp.Or(reason, s.Gate.Result)}
		for _, id := range sortedKeys(s.Hosts) { // each says why
			if r := s.Hosts[id]; r.State == HostAbort && id != s.Gate.Host {
				reasons = append(reasons, id+": "+r.Error)
			}
		}
		return fmt.Errorf("%w: %s", ErrAborted, strings.Join(reasons, "\n"))
	}
	return nil
}

// Turn returns the state of a host's turn; empty: the turn has not come yet, or a
// retry is about to repeat a turn that failed.
func (s *State) Turn(id string) string {
	if s.retried(s.Hosts[id]) {
		return ""
	}
	return s.Hosts[id].Turn()
}

// retried reports whether a host failed before the operator's last retry, and the
// coordinator has not called it again yet.
func (s *State) retried(r HostRecord) bool {
	return r.State == HostFailed && s.Gate.State == GateOpen && r.Round < s.Gate.Round
}

// Counts returns the number of hosts in each state.
func (s *State) Counts() Counts {
	c := Counts{Called: len(s.Called)}
	for _, r := range s.Hosts {
		if s.retried(r) {
			r.State = HostWait
		}
		c.add(r)
	}
	return c
}

func (c *Counts) add(r HostRecord) {
	if r.Unchecked {
		c.Unchecked++
	}
	switch r.State {
	case HostCommit:
		c.Commit++
	case HostAbort:
		c.Abort++
	case HostSkipped:
		c.Skipped++
	case HostWait:
		c.Wait++
	case HostGranted:
		c.Granted++
	case HostStarted:
		c.Started++
		if r.Lost {
			c.Lost++
		}
	case HostDone:
		c.Done++
	case HostFailed:
		c.Failed++
	}
}

// Current returns the name of the open rollout of the tree; ErrNoRollout when
// none is open.
func Current(ctx context.Context, s *session.Session, root string) (string, error) {
	data, _, err := s.Get(ctx, currentPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return "", fmt.Errorf("%s: %w", root, ErrNoRollout)
	}
	if err != nil {
		return "", err
	}
	return string(data), nil
}

// Names returns the names of all rollouts of the tree, oldest first.
func Names(ctx context.Context, s *session.Session, root string) ([]string, error) {
	children, _, err := s.Children(ctx, trees.RolloutsPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return inOrder(children), nil
}

// inOrder leaves the rollouts that are no dry runs, oldest first.
func inOrder(children []string) []string {
	children = slices.DeleteFunc(children, func(c string) bool { _, ok := rolloutNumber(c); return !ok })
	slices.Sort(children)
	return children
}

// Rollouts returns the rollouts of the tree without their hosts, oldest first. When some
// cannot be decoded, it returns the others with an error that matches [ErrBadRecord].
func Rollouts(ctx context.Context, s *session.Session, root string) ([]*State, error) {
	names, err := Names(ctx, s, root)
	if err != nil {
		return nil, err
	}
	var list []*State
	var bad error
	for _, name := range names {
		state, err := Head(ctx, s, root, name)
		switch {
		case err == nil:
			list = append(list, state)
		case errors.Is(err, ErrBadRecord):
			bad = cmp.Or(bad, err)
		case !errors.Is(err, ErrNoRollout): // it was not deleted meanwhile
			return nil, err
		}
	}
	return list, bad
}

// Head returns the state of one rollout without its hosts: two requests,
// whatever their number.
func Head(ctx context.Context, s *session.Session, root, name string) (*State, error) {
	state := &State{Root: root, Name: name, Hosts: map[string]HostRecord{}, At: map[string]Stamp{}}
	results, err := s.GetMany(ctx, []string{rolloutPath(root, name), gatePath(root, name), progressPath(root, name)})
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		if ignore(r.Err, session.ErrNoNode) != nil {
			return nil, r.Err
		}
	}
	if len(results[0].Data) == 0 { // perhaps left behind by a late candidate of a deleted rollout
		return nil, fmt.Errorf("%s: %w", rolloutPath(root, name), ErrNoRollout)
	}
	if state.Proposal, err = decode[Proposal](rolloutPath(root, name), results[0].Data); err != nil {
		return nil, err
	}
	state.Created = time.UnixMilli(results[0].Stat.Ctime)
	state.Gate = Gate{State: GateClosed, Result: ResultAborted}
	if results[1].Err == nil {
		if state.Gate, err = decode[Gate](gatePath(root, name), results[1].Data); err != nil {
			return nil, err
		}
		state.gate, state.GateAt = results[1].Stat.Version, stampOf(results[1].Stat)
	}
	if len(results[2].Data) > 0 {
		state.Progress, err = decode[Progress](progressPath(root, name), results[2].Data)
	}
	return state, err
}

// Read returns the state of one rollout. It is not a snapshot: records of
// hosts may be newer than the gate.
func Read(ctx context.Context, s *session.Session, root, name string) (*State, error) {
	state, err := Head(ctx, s, root, name)
	if err != nil {
		return nil, err
	}
	state.Whole = s.Zxid()
	shards, err := s.GetChildren(ctx, hostsPath(root, name))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, err
	}
	var paths []string
	for _, shard := range shards {
		if shard.Err != nil {
			continue
		}
		if snap, err := decode[shardHosts](shard.Name, shard.Data); err == nil {
			state.Called = append(state.Called, snap.IDs...)
		}
		paths = append(paths, snapshotPath(root, name, shard.Name))
	}
	slices.Sort(state.Called)
	if err := state.readHosts(ctx, s, paths); err != nil || !state.Open() {
		return state, err
	}
	candidates, err := recipe.Contenders(ctx, s, coordinatorPath(root, name))
	if len(candidates) > 0 {
		state.Coordinator = string(candidates[0].Data)
	}
	return state, err
}

func (s *State) readHosts(ctx context.Context, zk *session.Session, snapshots []string) error {
	lists, err := zk.ChildrenMany(ctx, snapshots)
	if err != nil {
		return err
	}
	var ids, paths []string
	for i, l := range lists {
		for _, id := range l.Names { // none where it is gone
			ids = append(ids, id)
			paths = append(paths, snapshots[i]+"/"+id)
		}
	}
	results, err := zk.GetMany(ctx, paths)
	if err != nil {
		return err
	}
	for i, r := range results {
		if record, err := decode[HostRecord](paths[i], r.Data); err == nil && r.Err == nil {
			s.Hosts[ids[i]], s.At[ids[i]] = record, stampOf(r.Stat)
		}
	}
	return nil
}

// What a rollout waits for.
const (
	WaitPaused  = "paused"
	WaitVotes   = "votes"
	WaitBake    = "bake"
	WaitLost    = "lost"
	WaitPermits = "permits"
)

// Waiting is the event that a rollout waits for before another host starts.
type Waiting struct {
	For  string
	Text string        // for people
	Left time.Duration // of a bake
}

// Waiting says why no further host starts now. It returns the zero Waiting when the
// next host can start or the rollout is over. Every view shows this result.
func (s *State) Waiting(now time.Time) Waiting {
	switch phase := s.Phase(); {
	case phase == PhasePaused:
		text := "paused"
		if s.Gate.By != "" {
			text += " by " + s.Gate.By
		}
		if s.Gate.Reason != "" {
			text += ": " + s.Gate.Reason
		}
		return Waiting{For: WaitPaused, Text: text}
	case phase == PhaseVoting && s.Gate.State == GateVoting:
		if missing := s.in(""); len(missing) > 0 {
			return Waiting{For: WaitVotes, Text: "waiting for the votes of " + someNames(missing)}
		}
		return Waiting{For: WaitVotes, Text: "waiting for votes"}
	case phase != PhaseRolling:
		return Waiting{}
	}
	if s.Gate.Wave == WaveCanary && (!s.Progress.Baked.IsZero() || s.Progress.BakeCheck != "") {
		left := max(0, min(s.Progress.Baked.Sub(now), time.Duration(s.Proposal.Strategy.Bake)).Round(time.Second))
		if text := bakeWords(left, s.Progress.BakeCheck); text != "" {
			return Waiting{For: WaitBake, Text: text, Left: left}
		}
	}
	active, ready := slices.Concat(s.in(HostGranted), s.in(HostStarted)), slices.Concat(s.in(HostCommit), s.in(HostWait))
	slices.Sort(active)
	switch lost := slices.DeleteFunc(slices.Clone(active), func(id string) bool { return !s.Hosts[id].Lost }); {
	case len(active) > 0 && len(lost) == len(active):
		return Waiting{For: WaitLost, Text: "waiting for " + someNames(lost) + ": its agent is gone"}
	case len(active) == 0 && s.Progress.BakeCheck != "":
		return Waiting{For: WaitBake, Text: "waiting for the bake check"}
	case len(active) >= s.Proposal.Strategy.Parallel && len(ready) > 0:
		return Waiting{For: WaitPermits, Text: "waiting for permits: " + someNames(active) + " at work"}
	}
	return Waiting{}
}

// in returns the hosts in a state, sorted; "": called hosts without a record.
func (s *State) in(state string) []string {
	var ids []string
	if state == "" {
		ids = slices.DeleteFunc(slices.Clone(s.Called), func(id string) bool { return s.Hosts[id].State != "" })
	}
	for id, r := range s.Hosts {
		if r.State == state && state != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// inWords is a duration such as "1 min 30 s".
func inWords(d time.Duration) string {
	minutes, seconds := int(d/time.Minute), int(d%time.Minute/time.Second)
	switch {
	case minutes == 0:
		return fmt.Sprintf("%d s", seconds)
	case seconds == 0:
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d min %d s", minutes, seconds)
}

// wholeUpTo is the largest number of hosts for which Watch reads all records. Above
// it, Watch uses the coordinator's counts.
const wholeUpTo = 1000

// watchPause is the least time between two looks of Watch.
const watchPause = 100 * time.Millisecond

// Watch calls see with the state of a rollout now and after each change that it
// notices, until see returns false, ctx ends or the session ends. It folds changes
// that follow each other closely. It sees changes of the gate at once, and changes
// of hosts once a second.
func Watch(ctx context.Context, s *session.Session, root, name string, see func(*State) bool) error {
	s = session.Usable(s, root, see != nil)
	for {
		_, _, gate, err := s.ExistsW(ctx, gatePath(root, name))
		if err != nil {
			return err
		}
		_, _, progress, err := s.ExistsW(ctx, progressPath(root, name))
		if err != nil {
			gate.Stop()
			return err
		}
		// Read after arming: what changes from here on fires a watch.
		state, err := Head(ctx, s, root, name)
		if err == nil && state.Proposal.Hosts <= wholeUpTo {
			state, err = Read(ctx, s, root, name)
		}
		if err != nil || !see(state) {
			gate.Stop()
			progress.Stop()
			return err
		}
		err = s.WaitAny(ctx, gate, progress)
		gate.Stop()
		progress.Stop()
		if err == nil && !pace.Sleep(ctx, watchPause) {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}
