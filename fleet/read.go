package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// State is everything that ZooKeeper holds of one rollout at a moment.
type State struct {
	Root     string
	Name     string
	Proposal Proposal
	Created  time.Time // ctime of the proposal, ZooKeeper's clock
	Votes    map[string]Vote
	Decision *Decision
	Control  Control
	Activity Activity
	Hosts    map[string]HostRecord
	Halt     *Halt
	Done     *Done
}

// Phase of a rollout, for people.
const (
	PhaseVoting  = "voting"
	PhaseRolling = "rolling"
	PhasePaused  = "paused"
	PhaseHalted  = "halted"
	PhaseDone    = "done"
	PhaseAborted = "aborted"
)

// Phase says in one word where the rollout stands.
func (s *State) Phase() string {
	switch {
	case s.Done != nil && s.Done.Result == ResultDone:
		return PhaseDone
	case s.Done != nil || s.Decision != nil && !s.Decision.Commit:
		return PhaseAborted
	case s.Halt != nil:
		return PhaseHalted
	case s.Decision == nil:
		return PhaseVoting
	case s.Control.Action == ActionPause:
		return PhasePaused
	}
	return PhaseRolling
}

// Err is the error of a rollout that will not go on by itself: ErrAborted or
// ErrHalted with the reason; nil otherwise.
func (s *State) Err() error {
	switch s.Phase() {
	case PhaseHalted:
		if s.Halt.Host != "" {
			return fmt.Errorf("%w: %s: %s", ErrHalted, s.Halt.Host, s.Halt.Reason)
		}
		return fmt.Errorf("%w: %s", ErrHalted, s.Halt.Reason)
	case PhaseAborted:
		reason := "aborted"
		if s.Decision != nil && s.Decision.Reason != "" {
			reason = s.Decision.Reason
		} else if s.Done != nil && s.Done.Reason != "" {
			reason = s.Done.Reason
		}
		return fmt.Errorf("%w: %s", ErrAborted, reason)
	}
	return nil
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
	children, _, err := s.Children(ctx, rolloutsPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	children = slices.DeleteFunc(children, func(c string) bool { _, ok := rolloutNumber(c); return !ok })
	slices.Sort(children)
	return children, nil
}

// Read returns the state of one rollout. It is not a snapshot: records of
// hosts may be newer than the activity.
func Read(ctx context.Context, s *session.Session, root, name string) (*State, error) {
	state := &State{Root: root, Name: name, Control: Control{Action: ActionRun}}
	data, stat, err := s.Get(ctx, rolloutPath(root, name))
	if errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("%s: %w", rolloutPath(root, name), ErrNoRollout)
	}
	if err != nil {
		return nil, err
	}
	if state.Proposal, err = decode[Proposal](rolloutPath(root, name), data); err != nil {
		return nil, err
	}
	state.Created = time.UnixMilli(stat.Ctime)
	if err := readParts(ctx, s, state); err != nil {
		return nil, err
	}
	if state.Votes, err = readRecords[Vote](ctx, s, votesPath(root, name)); err != nil {
		return nil, err
	}
	state.Hosts, err = readRecords[HostRecord](ctx, s, hostsPath(root, name))
	return state, err
}

// readParts reads the single records of a rollout in one request.
func readParts(ctx context.Context, s *session.Session, state *State) error {
	root, name := state.Root, state.Name
	parts := []struct {
		path string
		into func([]byte) error
	}{
		{decisionPath(root, name), into(&state.Decision, pointer[Decision])},
		{controlPath(root, name), into(&state.Control, value[Control])},
		{hostsPath(root, name), into(&state.Activity, value[Activity])},
		{haltPath(root, name), into(&state.Halt, pointer[Halt])},
		{donePath(root, name), into(&state.Done, pointer[Done])},
	}
	paths := make([]string, len(parts))
	for i, p := range parts {
		paths[i] = p.path
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return err
	}
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue
		}
		if r.Err != nil {
			return r.Err
		}
		if err := parts[i].into(r.Data); err != nil {
			return err
		}
	}
	return nil
}

// into returns what decodes a record into its place.
func into[T any](place *T, parse func([]byte) (T, error)) func([]byte) error {
	return func(data []byte) error {
		record, err := parse(data)
		*place = record
		return err
	}
}

// value decodes a record.
func value[T any](data []byte) (T, error) { return decode[T]("record", data) }

// pointer decodes a record that may be absent.
func pointer[T any](data []byte) (*T, error) {
	record, err := decode[T]("record", data)
	return &record, err
}

// readRecords reads all children of a znode as records by their names. A
// child that vanishes meanwhile, or holds something else, is left out.
func readRecords[T any](ctx context.Context, s *session.Session, parent string) (map[string]T, error) {
	children, _, err := s.Children(ctx, parent)
	if errors.Is(err, session.ErrNoNode) {
		return map[string]T{}, nil
	}
	if err != nil {
		return nil, err
	}
	return readChildren[T](ctx, s, parent, children)
}

func readChildren[T any](ctx context.Context, s *session.Session, parent string, children []string) (map[string]T, error) {
	paths := make([]string, len(children))
	for i, c := range children {
		paths[i] = parent + "/" + c
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	records := make(map[string]T, len(children))
	for i, r := range results {
		if r.Err != nil {
			continue
		}
		if record, err := decode[T](paths[i], r.Data); err == nil {
			records[children[i]] = record
		}
	}
	return records, nil
}
