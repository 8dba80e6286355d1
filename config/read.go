package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

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
	nodes, last, err := trees.Walk(ctx, session.Usable(s, root), root)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		return nil, fmt.Errorf("config %s: %w: there is no znode %[1]s", root, ErrNotReady)
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

// Lookup reads one key of the tree in use, and the generation of that tree. It costs a
// few requests for a tree of any size, so it can serve as a name service. A missing key
// is an error that matches [ErrNoKey], a missing tree one that matches [ErrNotReady],
// and damaged data one that matches [ErrDamaged].
func Lookup(ctx context.Context, s *session.Session, root, key string) ([]byte, int64, error) {
	if err := ValidateKey(key); err != nil {
		return nil, 0, fmt.Errorf("look up: %w", err)
	}
	s = session.Usable(s, root)
	var value []byte
	found := false
	st, err := trees.Steady(ctx, s, root, func(st *trees.State) error {
		var err error
		switch {
		case !st.Exists:
			return ErrNotReady
		case st.Layout == LayoutVersioned:
			value, found, err = lookupVersion(ctx, s, root, st.Ready.Version, key)
			return err
		}
		var stat session.Stat
		value, stat, err = s.Get(ctx, root+"/"+key)
		found = err == nil && (len(value) > 0 || stat.NumChildren == 0)
		if errors.Is(err, session.ErrNoNode) {
			return nil
		}
		return err
	})
	switch {
	case err == nil && !found:
		err = ErrNoKey
	case trees.IsDamage(err):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, st.Generation(), fmt.Errorf("look up %s in config %s: %w", key, root, err)
	}
	return value, st.Generation(), nil
}

// lookupVersion reads one key of a version: the version, one bucket, the value.
func lookupVersion(ctx context.Context, s *session.Session, root string, n int64, key string) ([]byte, bool, error) {
	m, err := trees.LoadManifest(ctx, s, root, n)
	if err != nil {
		return nil, false, err
	}
	lists, err := trees.ReadBuckets(ctx, s, root, []trees.Bucket{m.BucketOf(key)})
	if err != nil {
		return nil, false, err
	}
	i, ok := trees.FindEntry(lists[0], key)
	if !ok {
		return nil, false, nil
	}
	values := map[trees.Digest][]byte{}
	err = trees.ReadValues(ctx, s, root, lists[0][i:i+1], values)
	return values[lists[0][i].Sum], true, err
}

// Kinds of changes.
const (
	Added   = "added"
	Changed = "changed"
	Removed = "removed"
)

// Change is the difference of one key between two trees.
type Change struct {
	Key  string `json:"key"`
	Kind string `json:"kind"` // added, changed or removed
	// Old and New are the values. Old is nil for a new key, New for a deleted one.
	Old []byte `json:"-"`
	New []byte `json:"-"`
}

// Diff returns the differences between two trees, sorted by key. A nil tree has
// no keys.
func Diff(from, to *view.Tree) []Change {
	list := []Change{}
	keysIn(from).Diff(keysIn(to), func(path string, old, now *view.Key) {
		switch {
		case old == nil:
			list = append(list, Change{Key: path, Kind: Added, New: now.Value})
		case now == nil:
			list = append(list, Change{Key: path, Kind: Removed, Old: old.Value})
		default:
			list = append(list, Change{Key: path, Kind: Changed, Old: old.Value, New: now.Value})
		}
	})
	return list
}

func keysIn(t *view.Tree) *view.Keys {
	if t == nil {
		return nil
	}
	return t.Keys()
}

// Unified returns the change as a unified diff whose sides are named
// "<from>/<key>" and "<to>/<key>".
func (c Change) Unified(from, to string) string {
	oldName, newName := from+"/"+c.Key, to+"/"+c.Key
	switch c.Kind {
	case Added:
		oldName = "/dev/null"
	case Removed:
		newName = "/dev/null"
	}
	if !isText(c.Old) || !isText(c.New) {
		return fmt.Sprintf("Binary values %s (%d bytes) and %s (%d bytes) differ\n", oldName, len(c.Old), newName, len(c.New))
	}
	// The first line of the library's output names the command.
	_, text, _ := bytes.Cut(diff.Diff(oldName, lines(c.Old), newName, lines(c.New)), []byte{'\n'})
	if len(text) == 0 { // An empty value came or went, or a line break at the end.
		text = fmt.Appendf(nil, "--- %s\n+++ %s\n", oldName, newName)
	}
	if len(c.Old) == 0 || len(c.New) == 0 || ended(c.Old) == ended(c.New) {
		return string(text) // Most values have no final line break: no note.
	}
	without := oldName
	if ended(c.Old) {
		without = newName
	}
	return string(text) + "\\ No newline at the end of " + without + "\n"
}

func ended(data []byte) bool { return data[len(data)-1] == '\n' }

func lines(data []byte) []byte {
	if len(data) == 0 || ended(data) {
		return data
	}
	return append(slices.Clone(data), '\n')
}

// Unified returns the changes as one unified diff.
func Unified(list []Change, from, to string) string {
	var b strings.Builder
	for _, c := range list {
		b.WriteString(c.Unified(from, to))
	}
	return b.String()
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }
