package view

import "slices"

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
func (e *KeysEdit) Get(path string) (Key, bool) {
	if c, i, ok := find(e.chunks, path); ok {
		return e.chunks[c].entries[i].key, true
	}
	return Key{}, false
}

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
		c, i = e.split(c, i)
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
	e.join(c)
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

// split halves a full chunk and returns the new place of index i.
func (e *KeysEdit) split(c, i int) (int, int) {
	old := e.chunks[c].entries
	half := len(old) / 2
	e.chunks[c], e.own[c] = &chunk{slices.Clone(old[:half])}, true
	e.chunks = slices.Insert(e.chunks, c+1, &chunk{slices.Clone(old[half:])})
	e.own = slices.Insert(e.own, c+1, true)
	if i > half {
		return c + 1, i - half
	}
	return c, i
}

// join adds a chunk that has become small to its neighbour, if that has room.
func (e *KeysEdit) join(c int) {
	if len(e.chunks[c].entries) >= maxChunk/4 {
		return
	}
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
