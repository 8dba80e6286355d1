package template

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// A loop over keys whose text depends on its key alone is executed for the chunks of keys
// that changed. What it printed for the others is copied from the output before. At one
// changed key of 10,000 it takes a thirtieth of the time.
//
//	{{range tree "app"}}{{.Key | toUpper}}{{end}}  ->  {{__chunks 0 "app"}}
//
// The body is a template of its own. It names no variable of the outside, calls no
// template, leaves no loop, and all its functions give the same for the same arguments
// and do nothing else.
const chunksFunc = "__chunks"

type chunkLoop struct {
	name     string // of the template that prints the keys of one chunk
	deep     bool   // tree, not ls
	notEmpty bool   // safeTree and safeLs
}

// memo is what the last execution of a template printed. It holds the output, which the
// keeper of the file holds as well, and the chunks. It is immutable.
type memo struct {
	data   []byte
	pieces map[pieceID]piece
}

// maxPieces bounds the chunks, of up to 128 keys, whose text is kept.
const maxPieces = 1 << 14

// pieceID names what a loop prints for a chunk. Equal ids have the same text.
type pieceID struct {
	loop           int
	config, prefix string
	chunk          view.Chunk
}

type piece struct {
	from, to int
	keys     int
}

// byChunks makes a loop one that is executed by chunks, if its body is pure.
func (t *Template) byChunks(tree *parse.Tree, r *parse.RangeNode) bool {
	call := r.Pipe.Cmds[0]
	id, ok := call.Args[0].(*parse.IdentifierNode)
	if !ok || len(call.Args) != 2 || !callsFunc(r.Pipe, "tree", "ls", "safeTree", "safeLs") ||
		len(r.Pipe.Decl) > 1 || r.Pipe.IsAssign || !pure(r, tree) {
		return false
	}
	loop, pipe := *r, *r.Pipe
	pipe.Cmds = snippet("{{.}}").Pipe.Cmds
	loop.Pipe = &pipe
	name := fmt.Sprintf("loop %d of %s", len(t.bodies), t.cfg.Name)
	root := &parse.ListNode{NodeType: parse.NodeList, Pos: r.Pos, Nodes: []parse.Node{&loop}}
	t.bodies = append(t.bodies, &parse.Tree{Name: name, ParseName: t.cfg.Name, Root: root})
	t.chunks = append(t.chunks, chunkLoop{name, strings.HasSuffix(strings.ToLower(id.Ident), "tree"), strings.HasPrefix(id.Ident, "safe")})
	number := snippet(fmt.Sprintf("{{%d}}", len(t.chunks)-1)).Pipe.Cmds[0].Args[0]
	id.Ident, call.Args = chunksFunc, slices.Insert(call.Args, 1, number)
	return true
}

// pure reports whether the text of a loop's body depends on its key alone. Its variables
// are those whose name nothing outside of the loop declares.
func pure(r *parse.RangeNode, tree *parse.Tree) bool {
	inside, all, table := declarations(r), declarations(tree.Root), functionTable()
	own := func(name string) bool { return inside[name] > 0 && inside[name] == all[name] }
	ok := true
	inspect(r.List, func(n parse.Node) {
		switch n := n.(type) {
		case *parse.TemplateNode, *parse.BreakNode, *parse.ContinueNode:
			ok = false
		case *parse.IdentifierNode:
			f, known := table[n.Ident]
			ok = ok && (f.pure || !known && builtins[n.Ident] != "" && n.Ident != "call")
		case *parse.VariableNode:
			ok = ok && own(n.Ident[0])
		case *parse.PipeNode:
			for _, d := range n.Decl {
				ok = ok && own(d.Ident[0])
			}
		}
	})
	return ok
}

func declarations(n parse.Node) map[string]int {
	count := map[string]int{}
	inspect(n, func(n parse.Node) {
		if p, ok := n.(*parse.PipeNode); ok && !p.IsAssign {
			for _, d := range p.Decl {
				count[d.Ident[0]]++
			}
		}
	})
	return count
}

// keep keeps the text of an execution that has succeeded, and makes its memo.
func (st *state) keep(data []byte) []byte {
	if cap(data) > len(data)+len(data)/8+512 {
		data = bytes.Clone(data) // It may be kept for long.
	}
	st.t.size.Store(int64(len(data)))
	var m *memo
	if len(st.printed) > 0 {
		m = &memo{data, st.printed}
	}
	st.t.memo.Store(m)
	return data
}

func (st *state) printChunks(n int, path string) (string, error) {
	loop, out := &st.t.chunks[n], st.out
	tree, prefix, err := st.config(path)
	if err != nil {
		return "", err
	}
	keys := 0
	for c := range tree.Chunks(prefix) {
		if out.ended(0) != nil {
			return "", nil // The writer says why.
		}
		id := pieceID{n, tree.Name, prefix, c}
		now, known := st.memo.pieces[id]
		from := out.buf.Len()
		if known {
			out.buf.Write(st.memo.data[now.from:now.to])
		} else {
			list := pairsOf(tree.Name, prefix, loop.deep, c.Keys())
			now.keys = len(list)
			if err := st.tmpl.ExecuteTemplate(out, loop.name, list); err != nil {
				return "", err
			}
		}
		keys += now.keys
		if out.root && len(st.printed) < maxPieces {
			st.printed[id] = piece{from, out.buf.Len(), now.keys}
		}
	}
	if keys == 0 && loop.notEmpty {
		return "", noKeyBelow(path)
	}
	return "", nil
}
