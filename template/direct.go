package template

import (
	"fmt"
	"strconv"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// A loop over all keys or members is where large files spend their time:
// text/template looks each field up by its name, and prints it by reflection. A loop
// whose body has only texts and plain fields becomes one call that prints the same:
//
//	{{range tree "app"}}{{.Key}}={{.Value}};{{end}}  ->  {{tree "app" | __fields 0}}
//
// At 10,000 keys or members it takes a twentieth of the time. Labels are not among the
// plain fields: they are checked.
const directFunc = "__fields"

// directBody is the body of such a loop: texts, and the fields between them.
type directBody struct {
	texts   []string // one more than fields
	pairs   []func(*Pair) string
	members []func(*view.Member) string
}

var pairFields = map[string]func(*Pair) string{
	"Path":  func(p *Pair) string { return p.Path },
	"Key":   func(p *Pair) string { return p.Key },
	"Value": func(p *Pair) string { return p.Value },
}

var memberFields = map[string]func(*view.Member) string{
	"ID":      func(m *view.Member) string { return m.ID },
	"Node":    func(m *view.Member) string { return m.Node },
	"Znode":   func(m *view.Member) string { return m.Znode },
	"Name":    func(m *view.Member) string { return m.Name },
	"Host":    func(m *view.Member) string { return m.Host },
	"Status":  func(m *view.Member) string { return m.Status },
	"Address": func(m *view.Member) string { return m.Address() },
	"Port":    func(m *view.Member) string { return strconv.Itoa(m.Port) },
	"Weight":  func(m *view.Member) string { return strconv.Itoa(m.Weight) },
}

// replaceLoops replaces the loops of a list that can be printed directly, or chunk by
// chunk (memo.go). The parse tree must leave no doubt: one call of a function whose
// result is known, and no else.
func (t *Template) replaceLoops(tree *parse.Tree, list *parse.ListNode) {
	for i, n := range list.Nodes {
		r, ok := n.(*parse.RangeNode)
		if !ok || r.ElseList != nil || len(r.Pipe.Cmds) != 1 {
			continue
		}
		if body, ok := direct(r); ok {
			t.direct = append(t.direct, body)
			call := snippet(fmt.Sprintf("{{\"\" | %s %d}}", directFunc, len(t.direct)-1))
			r.Pipe.Cmds = append(r.Pipe.Cmds, call.Pipe.Cmds[1])
		} else if !t.byChunks(tree, r) {
			continue
		}
		r.Pipe.Decl = nil
		t.loops = append(t.loops, t.at(n))
		list.Nodes[i] = &parse.ActionNode{NodeType: parse.NodeAction, Pos: r.Pos, Line: r.Line, Pipe: r.Pipe}
	}
}

func direct(r *parse.RangeNode) (directBody, bool) {
	var d directBody
	overKeys := callsFunc(r.Pipe, "tree", "ls", "safeTree", "safeLs")
	if len(r.Pipe.Decl) > 0 || !overKeys && !callsFunc(r.Pipe, "members", "service") {
		return d, false
	}
	text := ""
	for _, n := range r.List.Nodes {
		if t, ok := n.(*parse.TextNode); ok {
			text += string(t.Text)
			continue
		}
		name, ok := plainField(n)
		if overKeys {
			d.pairs = append(d.pairs, pairFields[name])
			ok = ok && pairFields[name] != nil
		} else {
			d.members = append(d.members, memberFields[name])
			ok = ok && memberFields[name] != nil
		}
		if !ok {
			return d, false
		}
		d.texts, text = append(d.texts, text), ""
	}
	d.texts = append(d.texts, text)
	return d, true
}

// plainField returns the name of the field that an action prints, if it is
// {{.Field}} and nothing else.
func plainField(n parse.Node) (string, bool) {
	a, ok := n.(*parse.ActionNode)
	if !ok || len(a.Pipe.Decl) > 0 {
		return "", false
	}
	arg, args := single(a.Pipe)
	f, ok := arg.(*parse.FieldNode)
	if !ok || len(args) != 1 || len(f.Ident) != 1 {
		return "", false
	}
	return f.Ident[0], true
}

// printFields prints what the loop that it stands for does, straight to the writer: the
// text of a loop over all keys can be nearly all of the file. It returns the empty
// text, and lets the writer say why it has ended too early.
func (st *state) printFields(body int, list any) (string, error) {
	d := &st.t.direct[body]
	switch list := list.(type) {
	case []Pair:
		printEach(st.out, d.texts, d.pairs, list)
	case []view.Member:
		printEach(st.out, d.texts, d.members, list)
	default:
		return "", fmt.Errorf("a list of %T cannot be printed", list)
	}
	return "", nil
}

func printEach[T any](w *limited, texts []string, fields []func(*T) string, list []T) {
	out := w.buf
	for i := range list {
		if w.ended(0) != nil {
			return
		}
		before := out.Len()
		for j, field := range fields {
			out.WriteString(texts[j])
			out.WriteString(field(&list[i]))
		}
		out.WriteString(texts[len(fields)])
		if i == 0 {
			out.Grow(min((out.Len()-before)*len(list), int(w.max)) + 64)
		}
	}
}
