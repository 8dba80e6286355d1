package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// maxTree bounds how many znodes DeleteTree deletes.
const maxTree = 1_000_000

// DeleteTree deletes a znode with everything below it, the deepest first. It lists the
// subtree and calls check, if not nil, with each path. When check returns an error,
// DeleteTree deletes nothing and returns it. Znodes that are gone count as deleted.
//
// A delete whose outcome is unknown is repeated until ctx or the session ends, or until
// the policy of the context ([WithRetry]) gives up. When another client creates a znode
// below path meanwhile, DeleteTree returns ErrNotEmpty. It returns ErrTooLarge for more
// than a million znodes, and ErrBadPath for the root.
func (s *Session) DeleteTree(ctx context.Context, path string, check func(path string) error) error {
	if path == "/" {
		return &Error{Op: "delete", Path: path, Err: ErrBadPath}
	}
	paths, err := s.subtree(ctx, path)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if check == nil {
			break
		}
		if err := check(p); err != nil {
			return err
		}
	}
	for _, p := range slices.Backward(paths) {
		if err := s.deleteSurely(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// subtree lists a znode and what is below it, each parent before its children.
func (s *Session) subtree(ctx context.Context, path string) ([]string, error) {
	paths := []string{path}
	for i := 0; i < len(paths); i++ {
		names, _, err := s.Children(ctx, paths[i])
		if err != nil && !errors.Is(err, ErrNoNode) {
			return nil, err
		}
		if len(paths)+len(names) > maxTree {
			return nil, fmt.Errorf("more than %d znodes below %s, delete a part of them first: %w", maxTree, path, ErrTooLarge)
		}
		for _, name := range names {
			paths = append(paths, JoinPath(paths[i], name))
		}
	}
	return paths, nil
}

// deleteSurely deletes a znode, again while the outcome is unknown.
func (s *Session) deleteSurely(ctx context.Context, path string) error {
	again := eachTries(ctx)
	for {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, ErrNoNode):
			return nil
		case ActionFor(err) != Retry:
			return err
		}
		pause, over := again.next()
		if over != nil {
			return err
		}
		if s.Sleep(ctx, pause) != nil {
			return err
		}
	}
}
