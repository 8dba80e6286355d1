package trees

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// maxTries bounds how often a read is repeated because the tree changed during it.
const maxTries = 20

// ReadReady reads the record of a versioned tree's ready and its stat. The version
// in the stat guards a flip. The error matches [ErrNotReady] when there is no
// ready, [ErrNoVersion] when it belongs to a flat tree, [ErrDamaged] when it is damaged.
func ReadReady(ctx context.Context, s *session.Session, root string) (Ready, session.Stat, error) {
	st, err := lookReady(ctx, s, root)
	switch {
	case IsDamage(err):
		return Ready{}, st.Stat, fmt.Errorf("config %s: %w: %w", root, ErrDamaged, err)
	case err != nil:
		return Ready{}, st.Stat, fmt.Errorf("config %s: %w", root, err)
	case !st.Exists:
		return Ready{}, st.Stat, fmt.Errorf("config %s: %w", root, ErrNotReady)
	case st.Layout != LayoutVersioned:
		return Ready{}, st.Stat, NoVersions(root)
	}
	return st.Ready, st.Stat, nil
}

// lookReady returns the state of the tree as far as ready tells.
func lookReady(ctx context.Context, s *session.Session, root string) (*State, error) {
	data, stat, err := s.Get(ctx, ReadyPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return &State{}, nil
	}
	if err != nil {
		return &State{}, fmt.Errorf("read ready: %w", err)
	}
	r, versioned, err := ParseReady(data)
	if !versioned {
		err = CheckFlat(ctx, s, root, stat)
		versioned = err != nil
	}
	st := &State{Exists: true, Layout: LayoutFlat, Ready: r, Stat: stat, last: max(stat.Czxid, stat.Mzxid)}
	if versioned {
		st.Layout = LayoutVersioned
	}
	return st, err
}

// CheckFlat returns an error that matches [ErrReady] when a ready that names no version was
// that of a versioned tree: there are versions, and no keys, or one version followed another.
// The versions of a deleted tree may stay below a flat one. Publishers create the ready of a
// flat tree, and never change its data.
func CheckFlat(ctx context.Context, s *session.Session, root string, ready session.Stat) error {
	names, _, err := s.Children(ctx, root)
	var versions []*Manifest
	there := slices.Contains(names, ElemVersions)
	keys := slices.ContainsFunc(names, func(name string) bool { return !IsReserved(name) })
	if there && keys && ready.Version > 0 { // a conversion keeps them, or has not come to its end
		versions, err = ReadManifests(ctx, s, root)
	}
	switch {
	case errors.Is(err, session.ErrNoAuth) || errors.Is(err, session.ErrNoNode):
		return nil
	case err == nil && there && (!keys || slices.ContainsFunc(versions, func(m *Manifest) bool { return m.Parent != 0 })):
		return fmt.Errorf("%w: it names no version, and there are versions", ErrReady)
	}
	return err
}

// State is the tree below a root at one moment.
type State struct {
	Exists bool   // ready stands
	Layout string // of the tree in use; empty without one
	Ready  Ready  // versioned
	Stat   session.Stat
	last   int64

	Content *Content            // versioned
	Damaged error               // why content cannot be read
	Nodes   map[string]*FlatRow // flat, or the keys of an unfinished publish
}

// FlatRow is one znode of a flat tree.
type FlatRow struct {
	Data []byte
	Stat session.Stat
}

// Generation returns the generation that Check is compared with.
func (st *State) Generation() int64 {
	switch {
	case !st.Exists:
		return 0
	case st.Layout == LayoutVersioned:
		return st.Ready.Version
	}
	return st.Stat.Czxid
}

// Tree returns the state as a tree.
func (st *State) Tree(root string) *view.Tree {
	if st.Layout == LayoutVersioned {
		return st.Content.Tree("", root, st.Ready, st.last)
	}
	return view.NewTree(view.Tree{Path: root, Layout: LayoutFlat, Generation: st.Stat.Czxid, Last: st.last}, KeysOf(st.Nodes))
}

// ChangedRows returns the znodes of a flat tree that differ between two states, in
// themselves and not only in their children; a versioned tree has none. The root is
// no key.
func (st *State) ChangedRows(o *State) []string {
	var rels []string
	for rel, row := range st.Nodes {
		now, ok := o.Nodes[rel]
		if rel != "" && (!ok || now.Stat.Czxid != row.Stat.Czxid || now.Stat.Version != row.Stat.Version) {
			rels = append(rels, rel)
		}
	}
	for rel := range o.Nodes {
		if _, ok := st.Nodes[rel]; rel != "" && !ok {
			rels = append(rels, rel)
		}
	}
	return rels
}

// Keys returns the keys in use; empty when there are none.
func (st *State) Keys() *view.Keys {
	if st.Content != nil {
		return st.Content.Keys
	}
	return KeysOf(st.Nodes)
}

// ReadState reads the tree as of one moment.
func ReadState(ctx context.Context, s *session.Session, root string) (*State, error) {
	st, err := LookState(ctx, s, root)
	if err == nil && st.Damaged != nil {
		return nil, fmt.Errorf("config %s: %w", root, st.Damaged)
	}
	return st, err
}

// LookState is ReadState for callers that replace the tree. A damaged tree is no
// error and counts as empty.
func LookState(ctx context.Context, s *session.Session, root string) (*State, error) {
	s = session.Usable(s, root)
	if err := s.Sync(ctx, root); err != nil {
		return nil, fmt.Errorf("config %s: sync: %w", root, err)
	}
	st, err := Steady(ctx, s, root, func(st *State) error {
		if st.Layout == LayoutVersioned {
			var err error
			st.Content, err = Load(ctx, s, root, st.Ready.Version, nil, 0)
			if err == nil && st.Content.Sum.String() != st.Ready.Digest {
				err = fmt.Errorf("version %d is %s, ready says %s: %w", st.Ready.Version, st.Content.Sum, st.Ready.Digest, ErrDigest)
			}
			return err
		}
		nodes, last, err := Walk(ctx, s, root)
		st.Nodes, st.last = nodes, max(st.last, last)
		return err
	})
	if IsDamage(err) {
		st.Content, st.Damaged, err = nil, fmt.Errorf("%w: %w", ErrDamaged, err), nil
	}
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", root, err)
	}
	return st, nil
}

// Steady reads ready and calls read with it. It does both again when ready has changed
// before read returned, so what read finds is from one moment. It returns the state
// that ready describes also with the error of read.
func Steady(ctx context.Context, s *session.Session, root string, read func(*State) error) (*State, error) {
	for range maxTries {
		st, err := lookReady(ctx, s, root)
		if err == nil {
			err = read(st)
		}
		if !st.Exists || err != nil && !errors.Is(err, ErrGone) || err == nil && st.Layout == LayoutVersioned {
			return st, err // nobody changes a version
		}
		now, ok, existsErr := s.Exists(ctx, ReadyPath(root))
		if existsErr != nil {
			return st, existsErr
		}
		if ok && now.Czxid == st.Stat.Czxid && now.Mzxid == st.Stat.Mzxid {
			return st, err
		}
	}
	return &State{}, fmt.Errorf("%w: it changed during each of %d readings", ErrNotReady, maxTries)
}

// IsDamage reports whether err says that what is stored lacks parts or does not
// match its digests.
func IsDamage(err error) bool {
	return errors.Is(err, ErrDigest) || errors.Is(err, ErrReady) || errors.Is(err, ErrManifest) || errors.Is(err, ErrBucket) || errors.Is(err, ErrGone)
}

// Unusable reports whether err says that a version cannot be used here: it is gone
// or damaged, has a format that this program does not know, exceeds a bound, or this
// identity may not read it. Another read finds the same. Other errors are those of a
// request.
func Unusable(err error) bool {
	return IsDamage(err) || errors.Is(err, ErrNoVersion) || errors.Is(err, ErrFormat) || errors.Is(err, ErrBounds) || session.ActionFor(err) == session.GiveUp
}

// Walk reads all znodes below the root, level by level, without watches. It returns
// them by relative path (nil when the root does not exist) and the largest zxid.
func Walk(ctx context.Context, s *session.Session, root string) (map[string]*FlatRow, int64, error) {
	nodes, last := map[string]*FlatRow{}, int64(0)
	level := []string{""}
	for len(level) > 0 {
		paths := lists.Map(level, func(rel string) string { return session.JoinPath(root, rel) })
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
			nodes[rel] = &FlatRow{Data: r.Data, Stat: r.Stat}
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
					next = append(next, child)
				}
			}
		}
		level = next
	}
	return nodes, last, nil
}

// KeysOf returns the keys of the znodes of a flat tree. One without data that has children
// is only their parent.
func KeysOf(nodes map[string]*FlatRow) *view.Keys {
	edit := (*view.Keys)(nil).Edit()
	for _, rel := range slices.Sorted(maps.Keys(nodes)) {
		if row := nodes[rel]; rel != "" && (len(row.Data) > 0 || row.Stat.NumChildren == 0) {
			edit.Set(rel, view.Key{Value: row.Data, Mzxid: row.Stat.Mzxid, Mtime: row.Stat.Mtime})
		}
	}
	return edit.Done()
}

// NoVersions returns the error of an operation that needs a versioned tree.
func NoVersions(root string) error {
	return fmt.Errorf("config %s: a flat tree has no versions: %w", root, ErrNoVersion)
}
