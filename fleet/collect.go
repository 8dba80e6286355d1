package fleet

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// keepRollouts is how many of the newest rollouts stay for people to look at.
const keepRollouts = 20

// sweep deletes the records of old rollouts. The one that brought the
// version in use stays: hosts that return look for their records in it. One
// that is not closed stays as well.
func (c *coordinator) sweep(ctx context.Context) error {
	names, err := Names(ctx, c.session, c.root)
	if err != nil || len(names) <= keepRollouts {
		return err
	}
	data, _, err := c.session.Get(ctx, readyPath(c.root))
	if err != nil {
		return err
	}
	ready, _, err := config.ParseReady(data)
	if err != nil {
		return err
	}
	for _, name := range names[:len(names)-keepRollouts] {
		_, closed, err := c.session.Exists(ctx, donePath(c.root, name))
		if err != nil {
			return err
		}
		if name == ready.Rollout || !closed {
			continue
		}
		if err := c.forget(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes one closed rollout. That it was closed is deleted last, so
// that a sweep that was interrupted is taken up again.
func (c *coordinator) forget(ctx context.Context, name string) error {
	path := rolloutPath(c.root, name)
	children, _, err := c.session.Children(ctx, path)
	if err != nil {
		return ignoreGone(err)
	}
	for _, child := range children {
		if path+"/"+child == donePath(c.root, name) {
			continue
		}
		if err := deleteTree(ctx, c.session, path+"/"+child); err != nil {
			return err
		}
	}
	_, err = c.session.Multi(ctx, session.DeleteOp(donePath(c.root, name), -1), session.DeleteOp(path, -1))
	if errors.Is(err, session.ErrNotEmpty) {
		return nil // the next sweep takes it
	}
	return ignoreGone(err)
}

// deleteTree deletes a znode and all below it; what others delete meanwhile,
// or create, is no error.
func deleteTree(ctx context.Context, s *session.Session, path string) error {
	children, _, err := s.Children(ctx, path)
	if err != nil {
		return ignoreGone(err)
	}
	for _, child := range children {
		if err := deleteTree(ctx, s, path+"/"+child); err != nil {
			return err
		}
	}
	err = s.Delete(ctx, path, -1)
	if errors.Is(err, session.ErrNotEmpty) {
		return nil // the next sweep takes it
	}
	return ignoreGone(err)
}
