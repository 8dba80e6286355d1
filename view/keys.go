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
	return at(k.chunks, path)
}

func at(chunks []*chunk, path string) (Key, bool) {
	c, i, ok := find(chunks, path)
	if !ok {
		return Key{}, false
	}
	return chunks[c].entries[i].key, true
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
		for !a.end() && !b.end() && a.chunks[0] == b.chunks[0] && a.i == b.i { // a shared chunk
			a.chunks, a.i = a.chunks[1:], 0
			b.chunks, b.i = b.chunks[1:], 0
		}
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

// below returns the entry, or nil if its path does not have the prefix.
func (c *cursor) below(prefix string) *entry {
	if c.end() || !strings.HasPrefix(c.entry().path, prefix) {
		return nil
	}
	return c.entry()
}

// Chunk is a run of neighbouring keys of a tree. Two equal chunks (==) hold the same keys
// with the same values, also in different trees. So a caller can reuse the results for an
// equal chunk. Unequal chunks may hold the same keys and values too.
type Chunk struct {
	c        *chunk
	from, to int
}

// Keys yields the keys of the chunk, at most 128, in order.
func (c Chunk) Keys() iter.Seq2[string, Key] {
	return func(yield func(string, Key) bool) {
		for _, e := range c.c.entries[c.from:c.to] {
			if !yield(e.path, e.key) {
				return
			}
		}
	}
}

// Chunks yields all keys below a path ("": all) in order. They come in chunks; successive
// trees share the chunks that did not change. Chunks leaves out the key at the path
// itself. It reads the keys of only the first and the last chunk.
func (t *Tree) Chunks(path string) iter.Seq[Chunk] {
	if path != "" {
		path += "/"
	}
	has := func(c *chunk, i int) bool { return strings.HasPrefix(c.entries[i].path, path) }
	return func(yield func(Chunk) bool) {
		first, from, _ := find(t.keys.chunks, path)
		all := t.keys.chunks[first:]
		if len(all) == 0 {
			return
		}
		end := 1 + sort.Search(len(all)-1, func(i int) bool { return !has(all[i+1], 0) })
		for i, c := range all[:end] {
			to := len(c.entries)
			if i == end-1 {
				to = from + sort.Search(to-from, func(i int) bool { return !has(c, from+i) })
			}
			if to > from && !yield(Chunk{c, from, to}) {
				return
			}
			from = 0
		}
	}
}

// KeysEdit makes new Keys from existing ones. It is not safe for concurrent use.
type KeysEdit struct {
	from   *Keys
	chunks []*chunk
	own    []bool // which chunks belong to the edit; nil before the first change
	n      int
}

// Edit begins an edit of a copy.
func (k *Keys) Edit() *KeysEdit {
	if k == nil {
		k = &Keys{}
	}
	return &KeysEdit{from: k, chunks: k.chunks, n: k.n}
}

// Get returns the key at a path, with the changes so far.
func (e *KeysEdit) Get(path string) (Key, bool) { return at(e.chunks, path) }

// Set sets the key at a path. Set many paths in order, so that the chunks are full.
func (e *KeysEdit) Set(path string, key Key) {
	e.begin()
	if len(e.chunks) == 0 {
		e.chunks, e.own, e.n = []*chunk{{[]entry{{path, key}}}}, []bool{true}, 1
		return
	}
	c, i, ok := find(e.chunks, path)
	if ok {
		e.owned(c).entries[i].key = key
		return
	}
	e.n++
	if n := len(e.chunks[c].entries); n >= maxChunk && c == len(e.chunks)-1 && i == n {
		// Keys that are set in order fill the chunks.
		e.chunks, e.own = append(e.chunks, &chunk{[]entry{{path, key}}}), append(e.own, true)
		return
	} else if n >= maxChunk {
		old := e.chunks[c].entries // a full chunk is halved
		half := len(old) / 2
		e.chunks[c], e.own[c] = &chunk{slices.Clone(old[:half])}, true
		e.chunks = slices.Insert(e.chunks, c+1, &chunk{slices.Clone(old[half:])})
		e.own = slices.Insert(e.own, c+1, true)
		if i > half {
			c, i = c+1, i-half
		}
	}
	k := e.owned(c)
	k.entries = slices.Insert(k.entries, i, entry{path, key})
}

// Delete removes the key at a path, if there is one.
func (e *KeysEdit) Delete(path string) {
	c, i, ok := find(e.chunks, path)
	if !ok {
		return
	}
	e.begin()
	e.n--
	if len(e.chunks[c].entries) == 1 {
		e.chunks, e.own = slices.Delete(e.chunks, c, c+1), slices.Delete(e.own, c, c+1)
		return
	}
	k := e.owned(c)
	k.entries = slices.Delete(k.entries, i, i+1)
	if len(e.chunks[c].entries) >= maxChunk/4 {
		return
	}
	// A chunk that has become small is added to its neighbour, if that has room.
	for _, a := range []int{c - 1, c} {
		if a < 0 || a+1 >= len(e.chunks) || len(e.chunks[a].entries)+len(e.chunks[a+1].entries) > maxChunk/2 {
			continue
		}
		k := e.owned(a)
		k.entries = append(k.entries, e.chunks[a+1].entries...)
		e.chunks, e.own = slices.Delete(e.chunks, a+1, a+2), slices.Delete(e.own, a+1, a+2)
		return
	}
}

// Done returns the new Keys, or the previous ones if nothing changed. Do not use the edit
// after it.
func (e *KeysEdit) Done() *Keys {
	if e.own == nil {
		return e.from
	}
	for c, own := range e.own {
		if k := e.chunks[c]; own && cap(k.entries) > len(k.entries)+len(k.entries)/8 {
			k.entries = append(make([]entry, 0, len(k.entries)), k.entries...)
		}
	}
	return &Keys{chunks: e.chunks, n: e.n}
}

func (e *KeysEdit) begin() {
	if e.own == nil {
		e.chunks, e.own = slices.Clone(e.chunks), make([]bool, len(e.chunks))
	}
}

// owned returns a chunk that may be changed.
func (e *KeysEdit) owned(c int) *chunk {
	if !e.own[c] {
		old := e.chunks[c].entries
		e.chunks[c], e.own[c] = &chunk{append(make([]entry, 0, len(old)+1), old...)}, true
	}
	return e.chunks[c]
}
