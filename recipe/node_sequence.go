package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// NodeSequence describes a node whose name ends with a sequence number of the server.
// The node looks for its znode among those that the session owns. There it also finds
// a znode whose create lost its reply, and the znode of a previous process in the same
// session.
type NodeSequence struct {
	// Known is the previous path of the znode; empty: unknown.
	Known string
	// Mine, if not nil, reports whether a znode of the session, whose name begins
	// like the node's, is the node's.
	Mine func(path string, data []byte) bool
}

// find returns the path of the node's znode among those that the session owns. It is
// empty when the session owns no such znode.
func (q *NodeSequence) find(ctx context.Context, s *session.Session, prefix string) (string, error) {
	dir, _ := session.SplitPath(prefix)
	paths, err := s.Ephemerals(ctx, dir)
	if errors.Is(err, session.ErrUnimplemented) {
		paths, err = listOwned(ctx, s, dir, prefix)
	}
	if err != nil {
		return "", fmt.Errorf("list own znodes: %w", err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool {
		head, _, ok := splitSequence(p)
		return !ok || head != prefix
	})
	if slices.Contains(paths, q.Known) {
		return q.Known, nil
	}
	for _, p := range paths {
		if q.Mine == nil {
			return p, nil
		}
		data, stat, err := s.Get(ctx, p)
		switch {
		case errors.Is(err, session.ErrNoNode):
		case err != nil:
			return "", err
		case stat.EphemeralOwner == s.ID() && q.Mine(p, data):
			return p, nil
		}
	}
	return "", nil
}

// listOwned finds the znodes that this session owns below dir, on servers that cannot
// list them (before 3.6).
func listOwned(ctx context.Context, s *session.Session, dir, prefix string) ([]string, error) {
	names, _, err := s.Children(ctx, dir)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	var own []string
	for _, name := range names {
		p := child(dir, name)
		if !strings.HasPrefix(p, prefix) {
			continue
		}
		stat, ok, existsErr := s.Exists(ctx, p)
		if existsErr != nil {
			return nil, existsErr
		}
		if ok && stat.EphemeralOwner == s.ID() {
			own = append(own, p)
		}
	}
	return own, err
}
