package fleet

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
)

// Watch calls see with the state of a rollout now and after each change that
// it notices, until see returns false, ctx or the session ends. Changes that
// follow each other closely are seen as one.
func Watch(ctx context.Context, s *session.Session, root, name string, see func(*State) bool) error {
	for ctx.Err() == nil {
		watches, err := watchRollout(ctx, s, root, name)
		if err != nil {
			return err
		}
		// Read after arming: what changes from here on fires a watch.
		state, err := Read(ctx, s, root, name)
		if err != nil || !see(state) {
			stopAll(watches)
			return err
		}
		err = waitAny(ctx, s, watches)
		stopAll(watches)
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// watchRollout arms a watch on everything that moves in a rollout.
func watchRollout(ctx context.Context, s *session.Session, root, name string) ([]*session.Watch, error) {
	var watches []*session.Watch
	for _, path := range []string{
		decisionPath(root, name), controlPath(root, name), hostsPath(root, name), haltPath(root, name), donePath(root, name),
	} {
		_, _, w, err := s.ExistsW(ctx, path)
		if err != nil {
			stopAll(watches)
			return nil, err
		}
		watches = append(watches, w)
	}
	_, _, w, err := s.ChildrenW(ctx, votesPath(root, name))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		stopAll(watches)
		return nil, err
	}
	if w != nil {
		watches = append(watches, w)
	}
	return watches, nil
}

// waitAny waits until one of the watches of watchRollout fires.
func waitAny(ctx context.Context, s *session.Session, watches []*session.Watch) error {
	fired := func(i int) <-chan struct{} {
		if i < len(watches) {
			return watches[i].C()
		}
		return nil // never
	}
	select {
	case <-fired(0):
	case <-fired(1):
	case <-fired(2):
	case <-fired(3):
	case <-fired(4):
	case <-fired(5):
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
	return nil
}
