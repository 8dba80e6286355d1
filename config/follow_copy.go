package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// treeCopy is a live copy of a flat or plain tree in one session.
type treeCopy struct {
	w *Watcher
	s *session.Session
	m *mirror.Mirror

	keys    *view.Keys
	touched map[string]struct{} // read, but not yet passed on
}

func (w *Watcher) newCopy(s *session.Session) *treeCopy {
	return &treeCopy{w: w, s: s, touched: map[string]struct{}{}, m: mirror.New(s, w.cfg.Path, mirror.Options{
		Skip: trees.IsReserved, Concurrency: w.cfg.Concurrency, MaxBytes: w.cfg.maxBytes(), MaxZnodes: 2 * MaxKeys, Logger: w.log,
		// Many hosts write below the other reserved znodes.
		Quiet: func(key string) bool { return key == trees.ElemReady || key == trees.ElemFreeze },
	})}
}

func (c *treeCopy) refresh(ctx context.Context) (*mirror.Snapshot, error) {
	snap, changed, err := c.m.Refresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", c.w.cfg.Path, err)
	}
	for _, rel := range changed {
		c.touched[rel] = struct{}{}
	}
	return snap, nil
}

// pass passes on a copy as a tree, unless a part of it cannot be read.
func (c *treeCopy) pass(snap *mirror.Snapshot, t view.Tree) {
	if snap.TooLarge {
		c.w.setErr(trees.TooLarge(snap.Bytes, snap.Len(), "znodes", c.w.cfg.maxBytes()))
		c.w.wait("for a smaller tree")
		return
	}
	if errs := snap.Errors(); len(errs) > 0 {
		rels := slices.Sorted(maps.Keys(errs))
		more := ""
		if len(rels) > 1 {
			more = fmt.Sprintf(" and %d more", len(rels)-1)
		}
		c.w.setErr(fmt.Errorf("read key %q%s: %w", rels[0], more, errs[rels[0]]))
		c.w.wait("for every key to be readable")
		return
	}
	c.update(snap)
	t.Name, t.Path = c.w.cfg.Name, c.w.cfg.Path
	c.w.pass(view.NewTree(t, c.keys))
}

// update updates the keys from the touched znodes of the snapshot.
//
// The root is not a key. A znode with children and without data is not a key
// either: it only holds its children.
func (c *treeCopy) update(snap *mirror.Snapshot) {
	edit := c.keys.Edit()
	for _, rel := range slices.Sorted(maps.Keys(c.touched)) {
		n, ok := snap.Get(rel)
		switch {
		case rel == "":
			continue
		case !ok || len(n.Children) > 0 && (len(n.Data) == 0 || c.w.cfg.Layout == LayoutLeaves):
			edit.Delete(rel)
			continue
		}
		old, had := edit.Get(rel)
		if !had || old.Mzxid != n.Stat.Mzxid {
			edit.Set(rel, view.Key{Value: n.Data, Mzxid: n.Stat.Mzxid, Mtime: n.Stat.Mtime})
		}
	}
	c.keys, c.touched = edit.Done(), map[string]struct{}{} // Release it: it held every path of the first read.
}

// followPlain follows a tree without a ready rule. It passes on each change as it
// reads it. A change that a writer makes in several steps may be seen half done.
func (w *Watcher) followPlain(ctx context.Context, s *session.Session) error {
	c := w.newCopy(s)
	defer c.m.Close()
	for {
		snap, err := c.refresh(ctx)
		if err != nil {
			return err
		}
		if snap.Exists() || snap.TooLarge || len(snap.Errors()) > 0 {
			c.pass(snap, view.Tree{Layout: LayoutPlain, Last: snap.Last})
		} else {
			// The last tree stays: a missing root is not an empty tree.
			if w.had() {
				w.setErr(fmt.Errorf("%s does not exist any more: %w; the last tree stays in use", w.cfg.Path, ErrGone))
			}
			w.wait("for " + w.cfg.Path + ", which does not exist")
		}
		select {
		case <-c.m.Dirty():
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}

// within calls follow again and again while the tree has too many znodes to be copied.
// The last good tree stays in use. follow holds no copy meanwhile.
func (w *Watcher) within(ctx context.Context, s *session.Session, follow func(context.Context, *session.Session) error) error {
	for {
		err := follow(ctx, s)
		if !errors.Is(err, mirror.ErrTooMany) {
			return err
		}
		w.setErr(fmt.Errorf("%w: %w; the last good tree stays in use", err, ErrBounds))
		w.wait("for a smaller tree")
		if err := s.Sleep(ctx, session.RecheckAfter()); err != nil {
			return err
		}
	}
}
