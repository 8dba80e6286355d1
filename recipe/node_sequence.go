package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// NodeSequence describes a node whose name ends with a sequence number of the
// server. Only the znodes that the session owns can be the node's: a create whose
// reply was lost is found among them, and so is the znode of a former process in
// the same session.
type NodeSequence struct {
	// Known is the path that the znode had before; empty: not known.
	Known string
	// Mine, if not nil, tells the node's znode from others of the session whose
	// names begin alike.
	Mine func(path string, data []byte) bool
}

// find returns the path of the node's znode among what the session owns; empty
// when there is none.
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

// listOwned finds what this session owns below dir on servers that cannot tell
// (before 3.6).
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
