package view

import (
	"iter"
	"sort"
	"strings"
)

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
// itself.
func (t *Tree) Chunks(path string) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		all := t.keys.chunks
		if path == "" {
			for _, c := range all {
				if !yield(Chunk{c, 0, len(c.entries)}) {
					return
				}
			}
			return
		}
		chunksBelow(all, path+"/", yield)
	}
}

// chunksBelow yields the chunks of the keys with a prefix. It reads the keys of only the
// first and the last chunk.
func chunksBelow(all []*chunk, prefix string, yield func(Chunk) bool) {
	if len(all) == 0 {
		return
	}
	first, from, _ := find(all, prefix)
	all = all[first:]
	has := func(c *chunk, i int) bool { return strings.HasPrefix(c.entries[i].path, prefix) }
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
