package fleet

import (
	"context"
	"errors"
	"slices"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Bounds on the records of past rollouts.
const (
	// keepRollouts is the number of latest rollouts that are kept for people.
	keepRollouts = 20
	// keepRecords is the largest number of records at which a closed rollout keeps
	// all of them.
	keepRecords = 1000
	// keepAborts is the number of refusals that a larger rollout keeps.
	keepAborts = 100
)

// collect deletes old rollouts, and most records of large closed ones. It keeps the
// rollouts that the open one replaces, because returning hosts read them, and the
// rollout of the version in use. Old records only take space, so a failed deletion
// waits for the end of the next rollout.
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
	ready, _, err := trees.ReadReady(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	open, err := Opened(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	needed := []string{ready.Rollout}
	if open != nil {
		needed = append(append(needed, open.Name), open.Proposal.Replaces...)
	}
	for i, name := range names {
		old := i < len(names)-keepRollouts
		if !old && c.proposal.Hosts <= c.keep {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		if err != nil && !errors.Is(err, ErrNoRollout) {
			return err
		}
		switch {
		case err != nil:
			err = forgetRollout(ctx, c.s, c.root, name)
		case state.Open():
		case old && !slices.Contains(needed, name):
			err = forgetRollout(ctx, c.s, c.root, name)
		case !slices.Contains(needed[1:], name) && state.Proposal.Hosts > c.keep:
			// Also one that was needed at its own end, or whose coordinator was gone.
			err = c.compact(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compact deletes the snapshots and records of a closed rollout. It keeps the
// records of failed hosts, which those hosts read again, and some records that say
// why the version was refused.
func (c *coordinator) compact(ctx context.Context, name string) error {
	state, err := Read(ctx, c.s, c.root, name)
	if err != nil {
		return ignore(err, ErrNoRollout)
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
			stays[Shard(id)] = true
			continue
		}
		paths = append(paths, recordPath(c.root, name, id))
	}
	for _, shard := range shardNames() {
		if !stays[shard] {
			paths = append(paths, snapshotPath(c.root, name, shard))
		}
	}
	return deleteAll(ctx, c.s, nil, paths)
}

// forgetRollout deletes one closed rollout. It deletes the znodes below it first.
// It deletes the gate together with the rollout, because the gate says that the
// rollout is closed.
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
	return deleteAll(ctx, s, nil, paths)
}

// deepest lists the znodes below a path, children before parents.
func deepest(ctx context.Context, s *session.Session, path string) ([]string, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil {
		return nil, ignore(err, session.ErrNoNode)
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
