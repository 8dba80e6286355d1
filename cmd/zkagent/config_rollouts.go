package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// versionRollout is the newest rollout that a version was proposed by.
type versionRollout struct {
	Name  string `json:"name"`
	Phase string `json:"phase"`

	open bool
}

// String is the rollout in a table.
func (r versionRollout) String() string {
	if r.Name == "" {
		return "-"
	}
	return r.Name + " " + r.Phase
}

// rolloutsOf are the rollouts of a config by the versions that they bring.
func rolloutsOf(ctx context.Context, s *session.Session, t target) (map[int64]versionRollout, error) {
	names, err := fleet.Names(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	rollouts := map[int64]versionRollout{}
	for _, name := range names {
		// Skip an unreadable rollout: it must not break the history.
		if state, err := fleet.Head(ctx, s, t.path, name); err == nil {
			rollouts[state.Proposal.Version] = versionRollout{name, state.Phase(), state.Open() && !state.Proposal.Dry}
		}
	}
	return rollouts, nil
}

// bringing says which version is in use and which one the open rollout brings;
// empty: no rollout is open.
func bringing(ctx context.Context, s *session.Session, t target) (string, error) {
	name, err := fleet.Current(ctx, s, t.path)
	if errors.Is(err, fleet.ErrNoRollout) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	state, err := fleet.Head(ctx, s, t.path, name)
	if errors.Is(err, fleet.ErrNoRollout) || err == nil && (!state.Open() || state.Proposal.Dry) {
		return "", nil // it ended meanwhile, or changes nothing
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("v%d is in use, %s brings v%d (%s)", state.Proposal.Previous, name, state.Proposal.Version, state.Phase()), nil
}

type historyEntry struct {
	config.Version
	Rollout *versionRollout `json:"rollout,omitempty"`
}

func withRollouts(list []config.Version, rollouts map[int64]versionRollout) []historyEntry {
	entries := make([]historyEntry, len(list))
	for i, v := range list {
		entries[i] = historyEntry{Version: v}
		if r, ok := rollouts[v.Number]; ok {
			entries[i].Rollout = &r
		}
	}
	return entries
}
