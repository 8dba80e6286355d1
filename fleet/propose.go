package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// Request is what is proposed: a version that has been written and is not in
// use.
type Request struct {
	Root     string // root znode of the tree
	Version  int64
	Digest   string
	Strategy Strategy
	Who      string
	Why      string
	// RollbackOf is the version that this one takes back; 0 otherwise.
	RollbackOf int64
	// Replace closes the rollout of that name, which must have halted, in the
	// same step; empty: an open rollout is an error.
	Replace string
	// Expect is the version of the ready znode that the proposal was made
	// for; -1: whatever is there now.
	Expect int32
	// Base is the version that must be in use when the rollout is opened; 0:
	// any. It guards a version that was made from it, or planned on it.
	Base int64
}

// maxTries bounds the races with other proposers that are tried again.
const maxTries = 16

// Propose opens a rollout and returns its name. Everything is created in one
// multi, or nothing. The errors are [ErrOpen], config.ErrFrozen,
// config.ErrConflict when ready is not at Expect, and those of the session.
func Propose(ctx context.Context, s *session.Session, r Request) (string, error) {
	if err := s.CreateParents(ctx, currentPath(r.Root)); err != nil {
		return "", fmt.Errorf("propose: %w", err)
	}
	for range maxTries {
		name, again, err := propose(ctx, s, r)
		if !again {
			return name, err
		}
	}
	return "", fmt.Errorf("propose %s: lost %d races with other proposers", r.Root, maxTries)
}

func propose(ctx context.Context, s *session.Session, r Request) (string, bool, error) {
	if r.Replace != "" {
		if open, err := Current(ctx, s, r.Root); errors.Is(err, ErrNoRollout) {
			r.Replace = "" // it was closed meanwhile
		} else if err == nil && open != r.Replace {
			return "", false, fmt.Errorf("propose: %w: %s", ErrOpen, open)
		}
	}
	p, err := prepare(ctx, s, r)
	if err != nil {
		return "", false, err
	}
	names, err := Names(ctx, s, r.Root)
	if err != nil {
		return "", false, fmt.Errorf("propose: %w", err)
	}
	next := int64(0)
	if len(names) > 0 {
		last, _ := rolloutNumber(names[len(names)-1])
		next = last + 1
	}
	name := rolloutName(next)
	ops := proposeOps(r, p, name)
	_, err = s.Multi(ctx, ops...)
	if errors.Is(err, session.ErrUnknown) {
		// The proposal's data is unlike any other's: it carries its own time
		// in nanoseconds beside who and why.
		return settle(ctx, s, r.Root, name, p)
	}
	return explain(ctx, s, r, name, err)
}

// prepare makes the proposal from what is there now.
func prepare(ctx context.Context, s *session.Session, r Request) (Proposal, error) {
	data, stat, err := s.Get(ctx, readyPath(r.Root))
	if err != nil {
		return Proposal{}, fmt.Errorf("propose: %w", err)
	}
	if r.Expect >= 0 && stat.Version != r.Expect {
		return Proposal{}, fmt.Errorf("propose: %w", config.ErrConflict)
	}
	ready, versioned, err := config.ParseReady(data)
	if err != nil {
		return Proposal{}, fmt.Errorf("propose: %w", err)
	}
	if !versioned {
		return Proposal{}, fmt.Errorf("propose: %s is a flat tree, only a versioned one can be rolled out", r.Root)
	}
	if r.Base != 0 && ready.Version != r.Base {
		return Proposal{}, fmt.Errorf("propose: %w", &config.ConflictError{Path: r.Root, Want: r.Base, Have: ready.Version})
	}
	base, err := baseVersion(ctx, s, r.Root, ready)
	if err != nil {
		return Proposal{}, fmt.Errorf("propose: %w", err)
	}
	participants, skipped, err := voters(ctx, s, r.Root)
	if err != nil {
		return Proposal{}, fmt.Errorf("propose: %w", err)
	}
	return Proposal{
		Version: r.Version, Digest: r.Digest, Previous: base, Participants: participants, Skipped: skipped,
		Strategy: r.Strategy.WithDefaults(len(participants)), Who: r.Who, Why: r.Why,
		RollbackOf: r.RollbackOf, Created: time.Now(), Ready: stat.Version,
	}, nil
}

// voters are the subscribers that are to vote, and those in maintenance.
func voters(ctx context.Context, s *session.Session, root string) (participants, skipped []string, err error) { //nolint:nonamedreturns // two lists of ids need names
	subscribers, err := config.Subscribers(ctx, s, root)
	if err != nil {
		return nil, nil, err
	}
	for _, sub := range subscribers {
		if sub.State == config.StateMaintenance {
			skipped = append(skipped, sub.ID)
		} else {
			participants = append(participants, sub.ID)
		}
	}
	if len(skipped) > 0 && len(participants) == 0 {
		return nil, nil, fmt.Errorf("%w: %s", ErrNobody, strings.Join(skipped, ", "))
	}
	return participants, skipped, nil
}

// baseVersion is the last version that was in use everywhere: a host that
// returns while the rollout is under way uses it.
func baseVersion(ctx context.Context, s *session.Session, root string, ready config.Ready) (int64, error) {
	if ready.Rollout == "" {
		return ready.Version, nil
	}
	_, done, err := s.Exists(ctx, donePath(root, ready.Rollout))
	if err != nil {
		return 0, err
	}
	if done {
		data, _, err := s.Get(ctx, donePath(root, ready.Rollout))
		if err != nil {
			return 0, err
		}
		d, err := decode[Done](donePath(root, ready.Rollout), data)
		if err != nil || d.Result == ResultDone {
			return ready.Version, err
		}
	}
	if ready.Previous == 0 {
		return ready.Version, nil
	}
	return ready.Previous, nil
}

// proposeOps is the multi that opens a rollout.
func proposeOps(r Request, p Proposal, name string) []session.Op {
	budget := -1
	switch canary := p.Strategy.Canary; {
	case len(p.Strategy.Order) > 0:
		budget = len(p.Strategy.Order) // the others wait until these are done
	case canary > 0 && canary < len(p.Participants):
		budget = canary
	}
	var ops []session.Op
	if r.Replace != "" {
		ops = append(ops,
			session.CheckOp(haltPath(r.Root, r.Replace), -1),
			session.CreateOp(donePath(r.Root, r.Replace), encode(Done{Result: ResultAborted, Reason: "replaced by " + name}), session.Persistent),
			session.DeleteOp(currentPath(r.Root), -1))
	}
	return append(ops,
		session.CreateOp(freezePath(r.Root), nil, session.Persistent),
		session.DeleteOp(freezePath(r.Root), -1),
		session.CheckOp(readyPath(r.Root), p.Ready),
		session.CreateOp(currentPath(r.Root), []byte(name), session.Persistent),
		session.CreateOp(rolloutPath(r.Root, name), encode(p), session.Persistent),
		session.CreateOp(votesPath(r.Root, name), nil, session.Persistent),
		session.CreateOp(hostsPath(r.Root, name), encode(Activity{Budget: budget}), session.Persistent),
		session.CreateOp(controlPath(r.Root, name), encode(Control{Action: ActionRun}), session.Persistent))
}

// settle finds out whether a proposal whose reply was lost was made.
func settle(ctx context.Context, s *session.Session, root, name string, p Proposal) (string, bool, error) {
	if err := s.Sync(ctx, root); err != nil {
		return "", false, fmt.Errorf("propose: %w", err)
	}
	data, _, err := s.Get(ctx, rolloutPath(root, name))
	if err == nil && string(data) == string(encode(p)) {
		return name, false, nil
	}
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return "", false, fmt.Errorf("propose: %w", err)
	}
	return "", true, nil
}

// explain turns the failure of the multi into what the proposer can act on.
func explain(ctx context.Context, s *session.Session, r Request, name string, err error) (string, bool, error) {
	if err == nil {
		return name, false, nil
	}
	if open, openErr := Current(ctx, s, r.Root); openErr == nil && open != r.Replace {
		return "", false, fmt.Errorf("propose: %w: %s", ErrOpen, open)
	}
	if reason, _, freezeErr := s.Get(ctx, freezePath(r.Root)); freezeErr == nil {
		return "", false, fmt.Errorf("propose: %w: %s", config.ErrFrozen, reason)
	}
	switch {
	case errors.Is(err, session.ErrBadVersion):
		if r.Expect >= 0 {
			return "", false, fmt.Errorf("propose: %w", config.ErrConflict)
		}
		return "", true, nil
	case errors.Is(err, session.ErrNodeExists):
		return "", true, nil
	}
	return "", false, fmt.Errorf("propose: %w", err)
}
