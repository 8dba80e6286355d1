package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// A dry run is a rollout that never opens. Every called host reports what the
// version would change there. A host that refuses the version does not end the dry
// run. The dry run is named after its version, so the name is unique even after the
// dry run is deleted. Dry runs are not among the rollouts that are kept.

const dryPrefix = "dry-"

func dryName(version int64) string { return fmt.Sprintf("%s%010d", dryPrefix, version) }

// dryLinger is how long the coordinator leaves a finished dry run for its readers.
const dryLinger = 30 * time.Second

// EndDry ends a dry run, if it is open, and deletes it with its version. The
// proposer calls it after it has read the answers, or when it gives up.
func EndDry(ctx context.Context, s *session.Session, root, name, by string) error {
	state, err := Head(ctx, s, root, name)
	if errors.Is(err, ErrNoRollout) {
		return nil // deleted already
	}
	if err != nil {
		return err
	}
	if !state.Proposal.Dry {
		return fmt.Errorf("%s is not a dry run", name)
	}
	if state.Open() {
		if err := Abort(ctx, s, root, name, Order{By: by}); err != nil && !errors.Is(err, ErrNoRollout) {
			return err
		}
	}
	return forgetDry(ctx, s, root, name, state.Proposal.Version)
}

// forgetDry deletes a dry run that is closed, and its version.
func forgetDry(ctx context.Context, s *session.Session, root, name string, version int64) error {
	if err := deleteVersion(ctx, s, root, version); err != nil && !errors.Is(err, session.ErrNoAuth) {
		return err // no right to delete: the next garbage collection does it
	}
	for range maxTries {
		if err := forgetRollout(ctx, s, root, name); err != nil {
			return err
		}
		// A candidate may have come meanwhile. It leaves a closed dry run at once.
		if _, ok, err := s.Exists(ctx, rolloutPath(root, name)); err != nil || !ok {
			return err
		}
	}
	return nil // the next coordinator deletes it
}

// deleteVersion deletes a version that is not in use.
func deleteVersion(ctx context.Context, s *session.Session, root string, version int64) error {
	return transact(ctx, s, trees.ReadyPath(root), func(bool) ([]session.Op, error) {
		ready, stat, err := trees.ReadReady(ctx, s, root)
		if err != nil || ready.Version == version || ready.Previous == version {
			return nil, err
		}
		path := trees.VersionPath(root, version)
		if _, ok, err := s.Exists(ctx, path); err != nil || !ok {
			return nil, err
		}
		return []session.Op{session.CheckOp(trees.ReadyPath(root), stat.Version), session.DeleteOp(path, -1)}, nil
	})
}

// linger deletes the dry run, unless the proposer does within dryLinger.
func (c *coordinator) linger(ctx context.Context) error {
	path := rolloutPath(c.root, c.name)
	_, ok, watch, err := c.s.ExistsW(ctx, path)
	if err != nil || !ok {
		watch.Stop()
		return err
	}
	defer watch.Stop()
	if deleted, err := watch.WaitFor(ctx, dryLinger); err != nil || deleted {
		return err
	}
	return forgetDry(ctx, c.s, c.root, c.name, c.proposal.Version)
}

// collectDry deletes finished dry runs that their proposers left behind.
func (c *coordinator) collectDry(ctx context.Context) error {
	names, _, err := c.s.Children(ctx, trees.RolloutsPath(c.root))
	if err != nil {
		return ignore(err, session.ErrNoNode)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, dryPrefix) || name == c.name {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		switch {
		case errors.Is(err, ErrNoRollout):
			err = forgetRollout(ctx, c.s, c.root, name)
		case err == nil && !state.Open():
			err = forgetDry(ctx, c.s, c.root, name, state.Proposal.Version)
		}
		if err := ignore(err, ErrNoRollout); err != nil {
			return err
		}
	}
	return nil
}
