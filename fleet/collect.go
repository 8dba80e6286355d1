package fleet

import (
	"context"
	"errors"
	"slices"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// Bounds of what stays of rollouts.
const (
	// keepRollouts is how many of the newest rollouts stay for people to look at.
	keepRollouts = 20
	// keepRecords is up to how many records a closed rollout keeps them all.
	keepRecords = 1000
	// keepAborts is how many refusals a larger one keeps.
	keepAborts = 100
	// deletes is how many znodes one transaction deletes.
	deletes = 256
)

// collect deletes the records of old rollouts, and most of those of large ones that
// are closed. Those that the open rollout replaces stay, for hosts that return look
// into them, and so does the one that brought the version in use. Old records cost
// nothing but room: what fails is tried again at the end of the next rollout.
func (c *coordinator) collect(ctx context.Context) error {
	if err := c.collectDry(ctx); err != nil {
		return err
	}
	if c.proposal.Dry {
		return c.linger(ctx)
	}
	names, err := Names(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	ready, _, err := config.ReadReady(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	needed := []string{ready.Rollout}
	if open, err := Current(ctx, c.s, c.root); err == nil {
		proposal, err := readProposal(ctx, c.s, c.root, open)
		if err != nil {
			return err
		}
		needed = append(append(needed, open), proposal.Replaces...)
	} else if !errors.Is(err, ErrNoRollout) {
		return err
	}
	for i, name := range names {
		if i >= len(names)-keepRollouts && name != c.name {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		if err != nil {
			return ignoreNoRollout(err)
		}
		switch {
		case state.Open():
		case i < len(names)-keepRollouts && !contains(needed, name):
			err = forgetRollout(ctx, c.s, c.root, name)
		case name == c.name && !contains(needed[1:], name) && state.Proposal.Hosts > keepRecords:
			err = c.compact(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func ignoreNoRollout(err error) error {
	if errors.Is(err, ErrNoRollout) {
		return nil
	}
	return err
}

// compact deletes the snapshots and records of a closed rollout, except those that
// failed, which their hosts look for, and some that say why it was refused.
func (c *coordinator) compact(ctx context.Context, name string) error {
	state, err := Read(ctx, c.s, c.root, name)
	if err != nil {
		return ignoreNoRollout(err)
	}
	aborts := 0
	stays := map[string]bool{}
	var paths []string
	for _, id := range sortedKeys(state.Hosts) {
		r := state.Hosts[id]
		if r.State == HostAbort {
			aborts++
		}
		if r.State == HostFailed || r.State == HostAbort && aborts <= keepAborts {
			stays[config.Shard(id)] = true
			continue
		}
		paths = append(paths, recordPath(c.root, name, id))
	}
	for _, shard := range config.ShardNames() {
		if !stays[shard] {
			paths = append(paths, snapshotPath(c.root, name, shard))
		}
	}
	return deleteAll(ctx, c.s, paths)
}

// forgetRollout deletes one closed rollout: what is below it first, the gate that
// says that it was closed with the rollout itself.
func forgetRollout(ctx context.Context, s *session.Session, root, name string) error {
	var paths []string
	for _, dir := range []string{hostsPath(root, name), coordinatorPath(root, name)} {
		below, err := deepest(ctx, s, dir)
		if err != nil {
			return err
		}
		paths = append(append(paths, below...), dir)
	}
	paths = append(paths, progressPath(root, name), gatePath(root, name), rolloutPath(root, name))
	return deleteAll(ctx, s, paths)
}

// deepest are the znodes below a path, children before their parents.
func deepest(ctx context.Context, s *session.Session, path string) ([]string, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil {
		return nil, ignoreGone(err)
	}
	slices.Sort(names)
	var paths []string
	for _, name := range names {
		below, err := deepest(ctx, s, path+"/"+name)
		if err != nil {
			return nil, err
		}
		paths = append(append(paths, below...), path+"/"+name)
	}
	return paths, nil
}

// deleteAll deletes znodes, in order; what is gone, or has children again, does not
// matter.
func deleteAll(ctx context.Context, s *session.Session, paths []string) error {
	for chunk := range slices.Chunk(paths, deletes) {
		var ops []session.Op
		for _, path := range chunk {
			ops = append(ops, session.DeleteOp(path, -1))
		}
		for tries := 0; len(ops) > 0; {
			_, err := s.Multi(ctx, ops...)
			var multi *session.MultiError
			if err == nil {
				break
			}
			switch {
			case errors.As(err, &multi) && (errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNotEmpty)):
				ops = slices.Delete(ops, multi.Index, multi.Index+1)
			case errors.Is(err, session.ErrUnknown) && tries < maxTries:
				tries++
			default:
				return err
			}
		}
	}
	return nil
}
