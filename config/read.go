package config

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Read reads the tree in use, once, in the layout that its ready announces. If
// there is no tree, the error matches [ErrNotReady].
func Read(ctx context.Context, s *session.Session, root string) (*view.Tree, error) {
	st, err := trees.ReadState(ctx, s, root)
	if err != nil {
		return nil, err
	}
	if !st.Exists {
		return nil, fmt.Errorf("config %s: %w", root, ErrNotReady)
	}
	return st.Tree(root), nil
}

// ReadPlain reads a tree without a ready rule.
func ReadPlain(ctx context.Context, s *session.Session, root string) (*view.Tree, error) {
	nodes, last, err := trees.Walk(ctx, s, root)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		return nil, fmt.Errorf("config %s: %w: the root does not exist", root, ErrNotReady)
	}
	return view.NewTree(view.Tree{Path: root, Layout: LayoutPlain, Last: last}, trees.KeysOf(nodes)), nil
}

// ReadVersion reads one version of a versioned tree.
func ReadVersion(ctx context.Context, s *session.Session, root string, n int64) (*view.Tree, error) {
	c, err := trees.Load(ctx, s, root, n, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", root, err)
	}
	return c.Tree("", root, trees.Ready{Previous: c.Parent}, 0), nil
}
