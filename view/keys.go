package view

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
)

// Key is one key of a config tree.
type Key struct {
	// Value is the data of the key. It must not be changed.
	Value []byte
	// Mzxid is the zxid of the last change of the key's znode; 0 in a
	// versioned tree, whose keys are immutable.
	Mzxid int64
	// Mtime is the time of that change by the server's clock, in milliseconds; 0 in
	// a versioned tree.
	Mtime int64
}

func (k Key) same(o Key) bool { return bytes.Equal(k.Value, o.Value) }

// Keys are the keys of a tree in bytewise order of their paths. They are immutable. They
// are stored in chunks. An edit copies only the chunks that it changes, and the new Keys
// share the others. So the cost of an edit, and of a comparison with the previous Keys,
// depends on the size of the change. A key costs its path, its value and 48 bytes.
//
// The zero value and nil have no keys.
type Keys struct {
	chunks []*chunk // each with at least one entry
	n      int
}

// maxChunk bounds the entries of a chunk. An edit of one key copies one chunk.
const maxChunk = 128

type chunk struct{ entries []entry }

type entry struct {
	path string
	key  Key
}

// KeysOf returns the keys of a map.
func KeysOf(keys map[string][]byte) *Keys {
	e := (*Keys)(nil).Edit()
	for _, path := range slices.Sorted(maps.Keys(keys)) {
		e.Set(path, Key{Value: keys[path]})
	}
	return e.Done()
}

// Len returns the number of keys.
func (k *Keys) Len() int {
	if k == nil {
		return 0
	}
	return k.n
}

// Get returns the key at a path.
func (k *Keys) Get(path string) (Key, bool) {
	if k == nil {
		return Key{}, false
	}
	if c, i, ok := find(k.chunks, path); ok {
		return k.chunks[c].entries[i].key, true
	}
	return Key{}, false
}

// All yields the keys in order.
func (k *Keys) All() iter.Seq2[string, Key] {
	return func(yield func(string, Key) bool) { k.walk("", yield) }
}

// walk calls fn for each key from a path on, until fn returns false.
func (k *Keys) walk(from string, fn func(string, Key) bool) {
	for c := k.seek(from); !c.end(); c.next() {
		if e := c.entry(); !fn(e.path, e.key) {
			return
		}
	}
}

// find returns the place of a path, or the place where to insert it: the chunk, and the
// index in the chunk. Without chunks both are 0.
func find(chunks []*chunk, path string) (int, int, bool) {
	c := sort.Search(len(chunks), func(i int) bool { return chunks[i].entries[0].path > path }) - 1
	if c < 0 {
		return 0, 0, false
	}
	i, ok := slices.BinarySearchFunc(chunks[c].entries, path, func(e entry, p string) int { return strings.Compare(e.path, p) })
	return c, i, ok
}

type cursor struct {
	chunks []*chunk
	i      int // in the first of chunks
}

func (k *Keys) seek(path string) cursor {
	if k == nil || len(k.chunks) == 0 {
		return cursor{}
	}
	n, i, _ := find(k.chunks, path)
	c := cursor{k.chunks[n:], i}
	c.settle()
	return c
}

func (c *cursor) end() bool     { return len(c.chunks) == 0 }
func (c *cursor) entry() *entry { return &c.chunks[0].entries[c.i] }

func (c *cursor) next() {
	c.i++
	c.settle()
}

// settle moves on to the next chunk at the end of one.
func (c *cursor) settle() {
	if c.i == len(c.chunks[0].entries) {
		c.chunks, c.i = c.chunks[1:], 0
	}
}

// Diff calls fn, in order, for each key whose value differs in o, and for each key that
// only one of the two has; the other value is then nil. It skips shared chunks.
func (k *Keys) Diff(o *Keys, fn func(path string, old, now *Key)) {
	diff(k.seek(""), o.seek(""), "", func(a, b *entry) bool {
		switch {
		case a == nil:
			fn(b.path, nil, &b.key)
		case b == nil:
			fn(a.path, &a.key, nil)
		default:
			fn(a.path, &a.key, &b.key)
		}
		return true
	})
}

// sameRange reports whether both hold the same keys with the prefix.
func (k *Keys) sameRange(o *Keys, prefix string) bool {
	same := true
	diff(k.seek(prefix), o.seek(prefix), prefix, func(_, _ *entry) bool {
		same = false
		return false
	})
	return same
}

// diff walks a and b side by side while their paths have the prefix. It calls fn for each
// difference, until fn returns false.
func diff(a, b cursor, prefix string, fn func(a, b *entry) bool) {
	for {
		a.skip(&b)
		x, y := a.below(prefix), b.below(prefix)
		if x == nil && y == nil {
			return
		}
		order := 0
		switch {
		case y == nil:
			order = -1
		case x == nil:
			order = 1
		default:
			order = strings.Compare(x.path, y.path)
		}
		if order <= 0 {
			a.next()
		} else {
			x = nil
		}
		if order >= 0 {
			b.next()
		} else {
			y = nil
		}
		if (x == nil || y == nil || !x.key.same(y.key)) && !fn(x, y) {
			return
		}
	}
}

func (c *cursor) skip(o *cursor) {
	for !c.end() && !o.end() && c.chunks[0] == o.chunks[0] && c.i == o.i {
		c.chunks, c.i = c.chunks[1:], 0
		o.chunks, o.i = o.chunks[1:], 0
	}
}

// below returns the entry, or nil if its path does not have the prefix.
func (c *cursor) below(prefix string) *entry {
	if c.end() || !strings.HasPrefix(c.entry().path, prefix) {
		return nil
	}
	return c.entry()
}
