package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// maxTries bounds how often a read is repeated because the tree changed during it.
const maxTries = 20

// Read reads the tree in use, once, in the layout that its ready announces. If
// there is no tree, the error matches [ErrNotReady].
func Read(ctx context.Context, s *session.Session, root string) (*view.Tree, error) {
	st, err := readState(ctx, s, root)
	if err != nil {
		return nil, err
	}
	if !st.exists {
		return nil, fmt.Errorf("config %s: %w", root, ErrNotReady)
	}
	return st.tree(root), nil
}

// ReadPlain reads a tree without a ready rule.
func ReadPlain(ctx context.Context, s *session.Session, root string) (*view.Tree, error) {
	nodes, last, err := walk(ctx, s, root)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		return nil, fmt.Errorf("config %s: %w: the root does not exist", root, ErrNotReady)
	}
	return view.NewTree(view.Tree{Path: root, Layout: LayoutPlain, Last: last}, keysOf(nodes)), nil
}

// ReadVersion reads one version of a versioned tree.
func ReadVersion(ctx context.Context, s *session.Session, root string, n int64) (*view.Tree, error) {
	c, err := load(ctx, s, root, n, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", root, err)
	}
	return c.tree("", root, Ready{Previous: c.Parent}, 0), nil
}

// ReadReady reads the record of a versioned tree's ready and its stat. The version
// in the stat guards a flip. The error matches [ErrNotReady] when there is no
// ready, [ErrNoVersion] when it belongs to a flat tree.
func ReadReady(ctx context.Context, s *session.Session, root string) (Ready, session.Stat, error) {
	data, st, err := s.Get(ctx, readyPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return Ready{}, st, fmt.Errorf("config %s: %w", root, ErrNotReady)
	}
	if err != nil {
		return Ready{}, st, fmt.Errorf("config %s: read ready: %w", root, err)
	}
	r, versioned, err := ParseReady(data)
	if err != nil {
		return Ready{}, st, fmt.Errorf("config %s: %w", root, err)
	}
	if !versioned {
		return Ready{}, st, noVersions(root)
	}
	return r, st, nil
}

// state is the tree below a root at one moment.
type state struct {
	exists bool   // ready stands
	layout string // of the tree in use; empty without one
	ready  Ready  // versioned
	stat   session.Stat
	last   int64

	content *content            // versioned
	damaged error               // why content cannot be read
	nodes   map[string]*flatRow // flat, or the keys of an unfinished publish
}

// flatRow is one znode of a flat tree.
type flatRow struct {
	data     []byte
	stat     session.Stat
	children []string
}

// isKey reports whether the znode is a key and not only the parent of keys.
func (r *flatRow) isKey() bool { return len(r.data) > 0 || len(r.children) == 0 }

// generation returns the generation that Check is compared with.
func (st *state) generation() int64 {
	switch {
	case !st.exists:
		return 0
	case st.layout == LayoutVersioned:
		return st.ready.Version
	}
	return st.stat.Czxid
}

// tree returns the state as a tree.
func (st *state) tree(root string) *view.Tree {
	if st.layout == LayoutVersioned {
		return st.content.tree("", root, st.ready, st.last)
	}
	return view.NewTree(view.Tree{Path: root, Layout: LayoutFlat, Generation: st.stat.Czxid, Last: st.last}, keysOf(st.nodes))
}

// changedRows returns the znodes of a flat tree that differ between two states, in
// themselves and not only in their children; a versioned tree has none. The root is
// no key.
func (st *state) changedRows(o *state) []string {
	var rels []string
	for rel, row := range st.nodes {
		now, ok := o.nodes[rel]
		if rel != "" && (!ok || now.stat.Czxid != row.stat.Czxid || now.stat.Version != row.stat.Version) {
			rels = append(rels, rel)
		}
	}
	for rel := range o.nodes {
		if _, ok := st.nodes[rel]; rel != "" && !ok {
			rels = append(rels, rel)
		}
	}
	return rels
}

// keys returns the keys in use; empty when there are none.
func (st *state) keys() *view.Keys {
	if st.content != nil {
		return st.content.keys
	}
	return keysOf(st.nodes)
}

// readState reads the tree as of one moment.
func readState(ctx context.Context, s *session.Session, root string) (*state, error) {
	st, err := lookState(ctx, s, root)
	if err == nil && st.damaged != nil {
		return nil, fmt.Errorf("config %s: %w", root, st.damaged)
	}
	return st, err
}

// lookState is readState for callers that replace the tree. A damaged tree is no
// error and counts as empty.
func lookState(ctx context.Context, s *session.Session, root string) (*state, error) {
	if err := session.ValidatePath(root); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := s.Sync(ctx, root); err != nil {
		return nil, fmt.Errorf("config %s: sync: %w", root, err)
	}
	for range maxTries {
		st, again, err := tryState(ctx, s, root)
		if err != nil {
			return nil, fmt.Errorf("config %s: %w", root, err)
		}
		if !again {
			return st, nil
		}
	}
	return nil, fmt.Errorf("config %s: %w: it changed during each of %d readings", root, ErrNotReady, maxTries)
}

// tryState reads once, and reports whether the tree changed meanwhile.
func tryState(ctx context.Context, s *session.Session, root string) (*state, bool, error) {
	data, stat, err := s.Get(ctx, readyPath(root))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, false, fmt.Errorf("read ready: %w", err)
	}
	if err != nil {
		nodes, last, walkErr := walk(ctx, s, root)
		return &state{nodes: nodes, last: last}, false, walkErr
	}
	r, versioned, err := ParseReady(data)
	if err != nil {
		return nil, false, err
	}
	st := &state{exists: true, layout: LayoutFlat, ready: r, stat: stat, last: max(stat.Czxid, stat.Mzxid)}
	if versioned {
		st.layout = LayoutVersioned
		st.content, err = load(ctx, s, root, r.Version, nil, 0)
		if errors.Is(err, errGone) {
			if now, _, readErr := ReadReady(ctx, s, root); readErr == nil && (now.Version != r.Version || now.Digest != r.Digest) {
				return st, true, nil
			}
			return st.orDamaged(err)
		}
		if err == nil && st.content.sum.String() != r.Digest {
			err = fmt.Errorf("version %d is %s, ready says %s: %w", r.Version, st.content.sum, r.Digest, ErrDigest)
		}
		return st.orDamaged(err)
	}
	nodes, last, err := walk(ctx, s, root)
	if err != nil {
		return nil, false, err
	}
	st.nodes, st.last = nodes, max(st.last, last)
	after, ok, err := s.Exists(ctx, readyPath(root))
	return st, !ok || after.Czxid != stat.Czxid || after.Mzxid != stat.Mzxid, err
}

// orDamaged ends a read with an error. It distinguishes a damaged tree from a
// failed request.
func (st *state) orDamaged(err error) (*state, bool, error) {
	if isDamage(err) {
		st.content, st.damaged = nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		return st, false, nil
	}
	return st, false, err
}

// isDamage reports whether err says that what is stored lacks parts or does not
// match its digests.
func isDamage(err error) bool {
	return errors.Is(err, ErrDigest) || errors.Is(err, errManifest) || errors.Is(err, errBucket) || errors.Is(err, errGone)
}

// Unusable reports whether err says that a version cannot be used here: it is gone
// or damaged, has a format that this program does not know, exceeds a bound, or this
// identity may not read it. Another read finds the same. Other errors are those of a
// request.
func Unusable(err error) bool {
	return isDamage(err) || errors.Is(err, ErrNoVersion) || errors.Is(err, ErrFormat) || errors.Is(err, ErrBounds) || session.IsPermanent(err)
}

// walk reads all znodes below the root, level by level, without watches. It returns
// them by relative path (nil when the root does not exist) and the largest zxid.
func walk(ctx context.Context, s *session.Session, root string) (map[string]*flatRow, int64, error) {
	nodes, last := map[string]*flatRow{}, int64(0)
	level := []string{""}
	for len(level) > 0 {
		paths := make([]string, len(level))
		for i, rel := range level {
			paths[i] = session.JoinPath(root, rel)
		}
		results, err := s.GetMany(ctx, paths)
		if err != nil {
			return nil, 0, fmt.Errorf("read tree: %w", err)
		}
		var next []string
		for i, rel := range level {
			r := results[i]
			if errors.Is(r.Err, session.ErrNoNode) {
				if rel == "" {
					return nil, 0, nil
				}
				continue
			}
			if r.Err != nil {
				return nil, 0, fmt.Errorf("read key %q: %w", rel, r.Err)
			}
			row := &flatRow{data: r.Data, stat: r.Stat}
			nodes[rel] = row
			last = max(last, r.Stat.Czxid, r.Stat.Mzxid, r.Stat.Pzxid)
			if r.Stat.NumChildren == 0 {
				continue
			}
			names, _, err := s.Children(ctx, paths[i])
			if err != nil && !errors.Is(err, session.ErrNoNode) {
				return nil, 0, fmt.Errorf("list %q: %w", rel, err)
			}
			for _, name := range slices.Sorted(slices.Values(names)) {
				child := name
				if rel != "" {
					child = rel + "/" + name
				}
				if !IsReserved(child) {
					row.children = append(row.children, name)
					next = append(next, child)
				}
			}
		}
		level = next
	}
	return nodes, last, nil
}

// keysOf returns the keys of the znodes of a flat tree.
func keysOf(nodes map[string]*flatRow) *view.Keys {
	edit := (*view.Keys)(nil).Edit()
	for _, rel := range slices.Sorted(maps.Keys(nodes)) {
		if row := nodes[rel]; rel != "" && row.isKey() {
			edit.Set(rel, view.Key{Value: row.data, Mzxid: row.stat.Mzxid, Mtime: row.stat.Mtime})
		}
	}
	return edit.Done()
}
