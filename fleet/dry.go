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

// A dry run is a rollout that is never opened: every host that is called says what
// the version would change there, and one that refuses it does not end the dry run.
// It is named after its version, whose number no other version gets. So its name
// comes up once, although it is deleted when it is over, and it is not among the
// rollouts that are kept.

const dryPrefix = "dry-"

// dryName is the name of the dry run of a version.
func dryName(version int64) string { return fmt.Sprintf("%s%010d", dryPrefix, version) }

// isName reports whether a znode below rollouts is a rollout or a dry run.
func isName(name string) bool {
	_, ok := rolloutNumber(name)
	return ok || strings.HasPrefix(name, dryPrefix)
}

// dryLinger is how long the coordinator leaves a dry run that is over to those who
// read what came of it.
const dryLinger = 30 * time.Second

// EndDry ends a dry run, if it is open, and deletes it with its version. Whoever
// made it calls this when the answers were read, or are not wanted any more.
func EndDry(ctx context.Context, s *session.Session, root, name, by string) error {
	state, err := Head(ctx, s, root, name)
	if errors.Is(err, ErrNoRollout) {
		return nil // somebody else has deleted it
	}
	if err != nil {
		return err
	}
	if !state.Proposal.Dry {
		return fmt.Errorf("%s is no dry run", name)
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
		return err // without the right to it, the next publisher's garbage collection deletes it
	}
	return forgetRollout(ctx, s, root, name)
}

// deleteVersion deletes a version that is not in use.
func deleteVersion(ctx context.Context, s *session.Session, root string, version int64) error {
	for range maxTries {
		ready, stat, err := config.ReadReady(ctx, s, root)
		if err != nil {
			return err
		}
		if ready.Version == version || ready.Previous == version {
			return nil
		}
		_, err = s.Multi(ctx, session.CheckOp(config.ReadyPath(root), stat.Version), session.DeleteOp(config.VersionPath(root, version), -1))
		var multi *session.MultiError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &multi) && multi.Path != config.ReadyPath(root) && errors.Is(err, session.ErrNoNode):
			return nil
		case !errors.Is(err, session.ErrUnknown) && !errors.Is(err, session.ErrBadVersion):
			return err
		}
	}
	return nil // the garbage collection of the next publish finds it
}

// linger waits until the dry run was deleted, and deletes it when nobody does.
func (c *coordinator) linger(ctx context.Context) error {
	path := rolloutPath(c.root, c.name)
	_, ok, watch, err := c.s.ExistsW(ctx, path)
	if err != nil || !ok {
		watch.Stop()
		return err
	}
	defer watch.Stop()
	timer := time.NewTimer(dryLinger)
	defer timer.Stop()
	select {
	case <-watch.C():
		return nil // by whoever made it
	case <-timer.C:
		return forgetDry(ctx, c.s, c.root, c.name, c.proposal.Version)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.s.Done():
		return context.Cause(c.s.Context())
	}
}

// collectDry deletes the dry runs that are over and that nobody has deleted.
func (c *coordinator) collectDry(ctx context.Context) error {
	names, _, err := c.s.Children(ctx, config.RolloutsPath(c.root))
	if err != nil {
		return ignoreGone(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, dryPrefix) || name == c.name {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		if err == nil && !state.Open() {
			err = forgetDry(ctx, c.s, c.root, name, state.Proposal.Version)
		}
		if err := ignoreNoRollout(err); err != nil {
			return err
		}
	}
	return nil
}
