package template

import (
	"bytes"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// memo is what the last execution of a template printed, and which parts of it
// are the text of which chunks of keys. The next execution copies the text of the
// chunks that both trees share and prints the others.
//
// It costs 40 bytes for each chunk (up to 128 keys), holds the chunks, and holds
// the output, which the keeper of the file holds as well. There is one
// memo per template, of at most maxMemoLoops loops. It is immutable.
type memo struct {
	data  []byte
	loops map[loopID][]piece
}

// maxMemoLoops bounds the loops of one execution of which pieces are kept.
const maxMemoLoops = 64

// loopID names what a loop prints: its body, and which keys. Two loops with the
// same id print the same text for the same chunk.
type loopID struct {
	body         int
	name, prefix string
}

// piece is the text of one chunk: a part of the output.
type piece struct {
	chunk    view.Chunk
	from, to int
}

// keyRange are the keys of a tree below a prefix, all or the direct ones: what a
// direct loop goes over.
type keyRange struct {
	tree         *view.Tree
	name, prefix string
	deep         bool
}

// below returns the path of a key below the prefix; false if it is not one of the
// range.
func (r *keyRange) below(path string) (string, bool) {
	rest := strings.TrimPrefix(strings.TrimPrefix(path, r.prefix), "/")
	return rest, rest != "" && (r.deep || strings.IndexByte(rest, '/') < 0)
}

// pairs returns the keys of one chunk as the loop sees them, with their texts in
// one piece of memory.
func (r *keyRange) pairs(c view.Chunk) []Pair {
	list, size := make([]Pair, 0, c.Len()), 0
	for i := range c.Len() {
		path, k := c.At(i)
		size += len(r.name) + 1 + len(path) + len(k.Value)
	}
	var text strings.Builder
	text.Grow(size)
	for i := range c.Len() {
		path, k := c.At(i)
		rest, ok := r.below(path)
		if !ok {
			continue
		}
		from := text.Len()
		text.WriteString(r.name)
		text.WriteByte('/')
		text.WriteString(path)
		value := text.Len()
		text.Write(k.Value)
		all := text.String()
		list = append(list, Pair{Path: all[from:value], Key: rest, Value: all[value:]})
	}
	return list
}

// keysOf returns the function of a direct loop over keys.
func keysOf(deep, notEmpty bool) func(st *state) any {
	return func(st *state) any {
		return func(path string) (keyRange, error) {
			t, prefix, err := st.config(path)
			if err != nil {
				return keyRange{}, err
			}
			r := keyRange{tree: t, prefix: prefix, deep: deep}
			r.name, _, _ = strings.Cut(strings.Trim(path, "/"), "/")
			if notEmpty && r.empty() {
				return r, noKeyBelow(path)
			}
			return r, nil
		}
	}
}

func (r *keyRange) empty() bool {
	for c := range r.tree.Chunks(r.prefix) {
		for i := range c.Len() {
			path, _ := c.At(i)
			if _, ok := r.below(path); ok {
				return false
			}
		}
	}
	return true
}

// eachKey prints a loop over keys.
func (st *state) eachKey(body int, d *directBody, r keyRange) error {
	id, out := loopID{body, r.name, r.prefix}, st.out
	former := pieces{st.memo, nil}
	if st.memo != nil {
		former.left = st.memo.loops[id]
	}
	now := make([]piece, 0, len(former.left)+1)
	for c := range r.tree.Chunks(r.prefix) {
		if out.ended(0) != nil {
			return nil // The writer says why.
		}
		from := out.buf.Len()
		if text, ok := former.take(c); ok {
			out.buf.Write(text)
		} else if err := st.eachOf(d, &r, c); err != nil {
			return err
		}
		now = append(now, piece{c, from, out.buf.Len()})
	}
	if out.root && len(st.printed) < maxMemoLoops {
		if st.printed == nil {
			st.printed = map[loopID][]piece{}
		}
		st.printed[id] = now
	}
	return nil
}

// eachOf prints the keys of one chunk.
func (st *state) eachOf(d *directBody, r *keyRange, c view.Chunk) error {
	if d.tmpl != "" {
		return st.tmpl.ExecuteTemplate(st.out, d.tmpl, r.pairs(c))
	}
	buf := st.out.buf
	for i := range c.Len() {
		path, k := c.At(i)
		rest, ok := r.below(path)
		if !ok {
			continue
		}
		if int64(buf.Len()) > st.out.max {
			return nil // The writer says so.
		}
		for j, field := range d.pairs {
			buf.WriteString(d.texts[j])
			r.print(buf, field, path, rest, k.Value)
		}
		buf.WriteString(d.texts[len(d.pairs)])
	}
	return nil
}

func (r *keyRange) print(buf *bytes.Buffer, field pairField, path, rest string, value []byte) {
	switch field {
	case fieldPath:
		buf.WriteString(r.name)
		buf.WriteByte('/')
		buf.WriteString(path)
	case fieldKey:
		buf.WriteString(rest)
	case fieldValue:
		buf.Write(value)
	}
}

// pieces are the pieces of a former output, in order of their keys.
type pieces struct {
	of   *memo
	left []piece
}

// take returns what was printed for a chunk. It is called for chunks in order of
// their keys.
func (p *pieces) take(c view.Chunk) ([]byte, bool) {
	for len(p.left) > 0 && p.left[0].chunk != c && p.left[0].chunk.Before(c) {
		p.left = p.left[1:]
	}
	if len(p.left) == 0 || p.left[0].chunk != c {
		return nil, false
	}
	text := p.of.data[p.left[0].from:p.left[0].to]
	p.left = p.left[1:]
	return text, true
}

// keep makes the memo of an execution that has succeeded.
func (st *state) keep(data []byte) {
	if st.printed == nil {
		if st.t.memo.Load() != nil {
			st.t.memo.Store(nil)
		}
		return
	}
	st.t.memo.Store(&memo{data, st.printed})
}
