package view

import (
	"bytes"
	"strconv"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Key is one key of a config tree.
type Key struct {
	// Value is the data of the key. It must not be changed.
	Value []byte
	// Mzxid is the zxid of the last change of the key's znode; 0 in a
	// versioned tree, whose keys are immutable.
	Mzxid int64
}

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
	// Previous is the version before this one in a versioned tree, and Rollout
	// the name of the rollout that brings this version; empty without one.
	Previous int64
	Rollout  string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64

	keys *iradix.Tree[Key]
}

// NewTree returns a tree with the given keys. The radix tree is shared, not
// copied: callers build the next one by a transaction on it.
func NewTree(t Tree, keys *iradix.Tree[Key]) *Tree {
	if keys == nil {
		keys = iradix.New[Key]()
	}
	t.keys = keys
	return &t
}

// TreeOf returns a tree made of a map, for tests and fixtures.
func TreeOf(name, path string, keys map[string]string) *Tree {
	txn := iradix.New[Key]().Txn()
	for k, v := range keys {
		txn.Insert([]byte(k), Key{Value: []byte(v)})
	}
	return NewTree(Tree{Name: name, Path: path, Layout: "flat", Generation: 1, Last: 1}, txn.Commit())
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
	if t.keys == o.keys || t.keys.Root() == o.keys.Root() {
		return true
	}
	if t.keys.Len() != o.keys.Len() {
		return false
	}
	a, b := t.keys.Root().Iterator(), o.keys.Root().Iterator()
	for {
		ka, va, oka := a.Next()
		kb, vb, okb := b.Next()
		if !oka || !okb {
			return oka == okb
		}
		if !bytes.Equal(ka, kb) || !bytes.Equal(va.Value, vb.Value) {
			return false
		}
	}
}

// Version is the generation as templates show it.
func (t *Tree) Version() string { return strconv.FormatInt(t.Generation, 10) }

// Len is the number of keys.
func (t *Tree) Len() int { return t.keys.Len() }

// Keys is the shared radix tree itself, for producers and comparisons.
func (t *Tree) Keys() *iradix.Tree[Key] { return t.keys }

// Get returns the key at the path.
func (t *Tree) Get(path string) (Key, bool) { return t.keys.Get([]byte(path)) }

// Walk calls fn for each key below prefix (a path; empty = all) in bytewise
// order of the paths until fn returns false. A prefix "a/b" covers "a/b" and
// "a/b/c", not "a/bc".
func (t *Tree) Walk(prefix string, fn func(path string, k Key) bool) {
	if prefix != "" {
		if k, ok := t.keys.Get([]byte(prefix)); ok && !fn(prefix, k) {
			return
		}
		prefix += "/"
	}
	t.keys.Root().WalkPrefix([]byte(prefix), func(p []byte, k Key) bool { return !fn(string(p), k) })
}

// SharesBelow reports whether both trees hold the same thing below prefix
// without comparing values one by one where they share structure.
func (t *Tree) SharesBelow(o *Tree, prefix string) bool {
	if t == o || t.keys.Root() == o.keys.Root() {
		return true
	}
	ka, oka := t.Get(prefix)
	kb, okb := o.Get(prefix)
	if oka != okb || !bytes.Equal(ka.Value, kb.Value) {
		return false
	}
	p := []byte(prefix)
	if prefix != "" {
		p = append(p, '/')
	}
	a, b := t.keys.Root().Iterator(), o.keys.Root().Iterator()
	a.SeekPrefix(p)
	b.SeekPrefix(p)
	for {
		pa, va, oka := a.Next()
		pb, vb, okb := b.Next()
		if !oka || !okb {
			return oka == okb
		}
		if !bytes.Equal(pa, pb) || !bytes.Equal(va.Value, vb.Value) {
			return false
		}
	}
}
