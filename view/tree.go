package view

import (
	"strconv"
	"strings"
)

// Tree is one config tree at one moment: all of its keys as of one
// generation. Keys are paths relative to the root, without a leading slash.
type Tree struct {
	Name string // label of the config block
	Path string // root znode
	// Generation is the czxid of the ready znode in a flat tree, the version
	// number in a versioned one, and 0 in a plain one.
	Generation int64
	// Layout is flat, versioned or plain.
	Layout string
	// Digest is the digest of a versioned tree ("sha256:..."), else empty.
	Digest string
	// Previous is the version before this one in a versioned tree. Rollout is the name
	// of the rollout of this version; empty without a rollout.
	Previous int64
	Rollout  string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64

	keys *Keys
}

// NewTree returns a tree with the given keys, which are shared, not copied.
func NewTree(t Tree, keys *Keys) *Tree {
	if keys == nil {
		keys = &Keys{}
	}
	t.keys = keys
	return &t
}

// TreeOf returns a tree made of a map, for tests and fixtures.
func TreeOf(name, path string, keys map[string]string) *Tree {
	values := make(map[string][]byte, len(keys))
	for k, v := range keys {
		values[k] = []byte(v)
	}
	return NewTree(Tree{Name: name, Path: path, Layout: "flat", Generation: 1, Last: 1}, KeysOf(values))
}

// Source implements [Update].
func (t *Tree) Source() Source { return Source{KindConfig, t.Name} }

// Zxid implements [Update].
func (t *Tree) Zxid() int64 { return t.Last }

// Equal implements [Update]: the same generation of the same content.
func (t *Tree) Equal(other Update) bool {
	o, ok := other.(*Tree)
	if !ok || o == nil || t.Name != o.Name || t.Path != o.Path || t.Generation != o.Generation || t.Layout != o.Layout || t.Digest != o.Digest {
		return false
	}
	return t.SameKeys(o)
}

// SameKeys reports whether both trees hold the same keys and values.
func (t *Tree) SameKeys(o *Tree) bool {
	return t.keys == o.keys || t.keys.Len() == o.keys.Len() && t.keys.sameRange(o.keys, "")
}

// Version returns the generation in the form that templates show.
func (t *Tree) Version() string { return strconv.FormatInt(t.Generation, 10) }

// Len returns the number of keys.
func (t *Tree) Len() int { return t.keys.Len() }

// Keys returns the keys themselves, for producers and comparisons.
func (t *Tree) Keys() *Keys { return t.keys }

// Get returns the key at the path.
func (t *Tree) Get(path string) (Key, bool) { return t.keys.Get(path) }

// Walk calls fn for each key below prefix (a path; empty = all) in bytewise
// order of the paths until fn returns false. A prefix "a/b" covers "a/b" and
// "a/b/c", not "a/bc".
func (t *Tree) Walk(prefix string, fn func(path string, k Key) bool) {
	if prefix != "" {
		if k, ok := t.keys.Get(prefix); ok && !fn(prefix, k) {
			return
		}
		prefix += "/"
	}
	t.keys.walk(prefix, func(p string, k Key) bool { return strings.HasPrefix(p, prefix) && fn(p, k) })
}

// SharesBelow reports whether both trees hold the same keys and values at and below
// prefix. It does not compare shared chunks.
func (t *Tree) SharesBelow(o *Tree, prefix string) bool {
	if t == o || t.keys == o.keys {
		return true
	}
	if prefix == "" {
		return t.keys.sameRange(o.keys, "")
	}
	a, oka := t.Get(prefix)
	b, okb := o.Get(prefix)
	return oka == okb && a.same(b) && t.keys.sameRange(o.keys, prefix+"/")
}
