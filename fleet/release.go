package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// RolloutConfig sets how a version reaches the hosts.
type RolloutConfig struct {
	Strategy Strategy
	// Parallel, if it is not empty, sets Strategy.Parallel: a number of hosts, or a
	// share of the subscribers that are not in maintenance, such as "10%".
	Parallel string
	// Replace lets the rollout take the place of one that has halted or was refused.
	Replace bool
}

// For returns the strategy for this number of hosts.
func (r RolloutConfig) For(size int) Strategy {
	s := r.Strategy
	if share, err := pace.ParseShare(r.Parallel); err == nil {
		s.Parallel = share.Of(size)
	}
	return s.WithDefaults(size)
}

// Check returns an error for values that no rollout can have.
func (r RolloutConfig) Check() error {
	if _, err := pace.ParseShare(r.Parallel); err != nil && r.Parallel != "" {
		return fmt.Errorf("parallel: %w", err)
	}
	if err := session.ValidatePath(cmp.Or(r.Strategy.Gate, "/")); err != nil { // the coordinator could not read it
		return fmt.Errorf("gate: %w", err)
	}
	if !slices.Contains([]string{"", AbsentAbort, AbsentSkip}, r.Strategy.Absent) {
		return fmt.Errorf("absent: %q is not one of abort, skip", r.Strategy.Absent)
	}
	return nil
}

// Proposed is a rollout that was opened for a version.
type Proposed struct {
	// Result is the version. When it is Unchanged, every subscriber uses the tree
	// already, and no rollout was opened.
	Result

	Rollout     string // its name
	Hosts       int    // that vote
	Maintenance int    // subscribers in maintenance, which do not
}

// ErrVoting says that a rollout cannot be rolled back because no host has changed yet.
var ErrVoting = errors.New("it is still being voted on: nothing has changed yet")

// PublishByRollout writes a version and opens a rollout of it, which continues by
// itself: [Watch] follows it to its end. The errors are those of [Prepare] and
// [Propose]. A refused call writes nothing.
func PublishByRollout(ctx context.Context, s *session.Session, cfg PublishConfig, roll RolloutConfig) (Proposed, error) {
	replaced, err := mayPublish(ctx, s, cfg.Path, roll.Replace)
	if err != nil {
		return Proposed{}, err
	}
	if _, _, err = trees.ReadReady(ctx, s, cfg.Path); errors.Is(err, config.ErrNotReady) {
		return Proposed{}, fmt.Errorf("%w: no agent could vote; publish the first version without a rollout", err)
	} else if err != nil {
		return Proposed{}, err
	}
	if replaced == nil {
		if r, err := inUseEverywhere(ctx, s, cfg); err != nil || r.Unchanged {
			return Proposed{Result: r}, err
		}
	}
	return release(ctx, s, cfg, roll, Request{Why: cfg.Message}, replaced, func() (Result, error) { return Prepare(ctx, s, cfg) })
}

// RollbackByRollout is [Rollback] by a rollout. It halts the open rollout, if any, and
// takes its place. If to is 0, it takes the version in use when a rollout is open, and
// otherwise the one before. While that rollout is voted on, the error matches
// [ErrVoting].
func RollbackByRollout(ctx context.Context, s *session.Session, cfg PublishConfig, to int64, roll RolloutConfig) (Proposed, error) {
	if err := cfg.fill(); err != nil {
		return Proposed{}, err
	}
	if err := checkFreeze(ctx, s, cfg.Path); err != nil { // before anything is halted
		return Proposed{}, err
	}
	open, err := Opened(ctx, s, cfg.Path)
	if err != nil {
		return Proposed{}, err
	}
	ready, _, err := trees.ReadReady(ctx, s, cfg.Path)
	if err != nil {
		return Proposed{}, err
	}
	request := Request{Why: cmp.Or(cfg.Message, "rollback"), RollbackOf: ready.Version}
	if open != nil && !open.Proposal.Dry {
		if open.Gate.State == GateVoting && len(open.Proposal.Replaces) == 0 {
			return Proposed{}, fmt.Errorf("%s: %w", open.Name, ErrVoting)
		}
		if err := Abort(ctx, s, cfg.Path, open.Name, Order{Reason: "rolled back", By: cfg.Author}); err != nil && !errors.Is(err, ErrNoRollout) {
			return Proposed{}, err
		}
		to = cmp.Or(to, ready.Version) // hosts that have changed go back to the version in use
	}
	return release(ctx, s, cfg, roll, request, open, func() (Result, error) { return rollback(ctx, s, cfg, to, false) })
}

// release proposes the version that prepare writes. It writes nothing when nobody
// could vote.
func release(ctx context.Context, s *session.Session, cfg PublishConfig, roll RolloutConfig, r Request, replaced *State, prepare func() (Result, error)) (Proposed, error) {
	if err := cfg.fill(); err != nil {
		return Proposed{}, err
	}
	if err := roll.Check(); err != nil {
		return Proposed{}, err
	}
	able, aside, err := voters(ctx, s, cfg.Path, roll.Strategy.Order)
	if err != nil {
		return Proposed{}, err
	}
	r.Root, r.Who, r.Strategy = cfg.Path, cfg.Author, roll.For(able)
	p := Proposed{Hosts: able, Maintenance: aside}
	if p.Result, err = prepare(); err != nil {
		return Proposed{}, err
	}
	r.Version, r.Digest, r.Delta, r.Base = p.Version, p.Digest, p.Delta, p.Previous
	if replaced != nil {
		r.Replace = replaced.Name
	}
	p.Rollout, err = Propose(ctx, s, r)
	return p, err
}

// voters counts the subscribers that check a version, and those in maintenance. It
// returns [ErrNobody] when none checks it, or a canary does not subscribe.
func voters(ctx context.Context, s *session.Session, root string, canaries []string) (able, aside int, err error) { //nolint:nonamedreturns // two numbers need names
	ids, away, err := subscribed(ctx, s, root)
	if err != nil {
		return 0, 0, err
	}
	if err := mustVote(root, ids, canaries); err != nil {
		return 0, 0, err
	}
	if len(ids) == len(away) {
		return 0, 0, fmt.Errorf("%w: all subscribers are in maintenance: %s", ErrNobody, strings.Join(away, ", "))
	}
	return len(ids) - len(away), len(away), nil
}

// mustVote returns [ErrNobody] when nobody subscribes, or a canary does not.
func mustVote(root string, ids, canaries []string) error {
	for _, id := range canaries {
		if !slices.Contains(ids, id) {
			return fmt.Errorf("%w: canary %s does not subscribe to %s", ErrNobody, id, root)
		}
	}
	if len(ids) == 0 {
		return fmt.Errorf("%w: no agent subscribes to %s: a rollout needs agents that vote", ErrNobody, root)
	}
	return nil
}

// subscribed returns the ids of all subscribers, and of those in maintenance.
func subscribed(ctx context.Context, s *session.Session, root string) (ids, away []string, err error) { //nolint:nonamedreturns // two lists need names
	list, err := Subscribers(ctx, s, root)
	ids = []string{}
	for _, sub := range list {
		ids = append(ids, sub.ID)
		if sub.State == StateMaintenance {
			away = append(away, sub.ID)
		}
	}
	return ids, away, err
}

// CheckPublish returns the error that a publish would end with because the tree is
// frozen, or because a rollout is open that replace does not let it take the place of.
// It is for programs that ask a person before they publish.
func CheckPublish(ctx context.Context, s *session.Session, root string, replace bool) error {
	_, err := mayPublish(ctx, s, root, replace)
	return err
}

// mayPublish returns the open rollout that a new one replaces; nil: none.
func mayPublish(ctx context.Context, s *session.Session, root string, replace bool) (*State, error) {
	if err := checkFreeze(ctx, s, root); err != nil {
		return nil, err
	}
	open, err := Opened(ctx, s, root)
	switch {
	case err != nil:
		return nil, err
	case open == nil || open.Proposal.Dry:
		return nil, nil //nolint:nilnil // no open rollout is no error
	case !replace:
		return nil, fmt.Errorf("config %s: %w: %s", root, ErrOpen, open.Name)
	}
	return open, open.replaceable()
}

// replaceable returns an error for a rollout that still changes hosts.
func (s *State) replaceable() error {
	if s.Gate.State != GateHalted && s.Gate.State != GateRefused {
		return fmt.Errorf("%w: %s has not halted", ErrOpen, s.Name)
	}
	return nil
}

// inUseEverywhere returns an unchanged result if every subscriber uses the tree
// already, so that a rollout would have no effect. A host may have kept the old
// version after a tolerated failure; a rollout of the same content tries it again.
func inUseEverywhere(ctx context.Context, s *session.Session, cfg PublishConfig) (Result, error) {
	cfg.Layout = config.LayoutAuto
	plan, err := NewPlan(ctx, s, cfg)
	if err != nil || plan.Refused != nil || plan.From == 0 || plan.Layout != config.LayoutVersioned || len(plan.Changes) > 0 {
		return Result{}, err
	}
	ready, _, err := trees.ReadReady(ctx, s, cfg.Path)
	if err != nil {
		return Result{}, err
	}
	if ready.Rollout != "" {
		state, err := Head(ctx, s, cfg.Path, ready.Rollout)
		if err != nil && !errors.Is(err, ErrNoRollout) {
			return Result{}, err
		}
		if err == nil && state.Gate.Counts != nil && state.Gate.Counts.Failed > 0 {
			return Result{}, nil
		}
	}
	return Result{Unchanged: true, Layout: plan.Layout, Generation: plan.From, Version: plan.From, Digest: plan.Digest, Count: plan.Count, Size: plan.Size, Changes: plan.Changes}, nil
}
