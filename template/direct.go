package template

import (
	"fmt"
	"slices"
	"strconv"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// A loop over all keys or members is where large files spend their time:
// text/template looks each field up by its name, and prints it by reflection. It
// becomes one call that does the same in another way:
//
//	{{range tree "app"}}{{.Key}}={{.Value}};{{end}}  ->  {{__tree "app" | __each 0}}
//
// A body of texts and plain fields that are printed as they are is printed
// directly. Another body of a loop over keys whose text depends on its key alone
// (pure.go) is a template of its own. What a loop over keys prints is kept for
// each chunk of keys (memo.go), so the next execution does it for those chunks
// only that have changed since.
//
// A loop is taken only where the parse tree leaves no doubt: one call of a
// function whose result is known, and no else. Labels are not among the plain
// fields: they are checked.
const directFunc = "__each"

// keyLoops are the functions that a loop over keys may call, and what stands for
// them: it returns a keyRange instead of a list.
var keyLoops = map[string]string{"tree": "__tree", "ls": "__ls", "safeTree": "__safeTree", "safeLs": "__safeLs"}

// directBody is the body of such a loop: texts and what stands between them, or
// the name of the template that prints a part of the keys.
type directBody struct {
	texts []string // one more than fields
	pairs []pairField
	of    []func(*view.Member) string
	tmpl  string
}

// pairField is a field of a Pair.
type pairField int

const (
	fieldPath pairField = iota
	fieldKey
	fieldValue
)

var pairFields = map[string]pairField{"Path": fieldPath, "Key": fieldKey, "Value": fieldValue}

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

// makeDirect replaces the loops of a list that can be.
func (t *Template) makeDirect(list *parse.ListNode) {
	for i, n := range list.Nodes {
		r, ok := n.(*parse.RangeNode)
		if !ok {
			continue
		}
		body, ok := direct(&r.BranchNode)
		if !ok {
			if body, ok = t.pureBody(r); !ok {
				continue
			}
		}
		t.direct, t.loops = append(t.direct, body), append(t.loops, t.at(n))
		call := snippet(fmt.Sprintf("{{\"\" | %s %d}}", directFunc, len(t.direct)-1))
		if id, ok := r.Pipe.Cmds[0].Args[0].(*parse.IdentifierNode); ok && keyLoops[id.Ident] != "" {
			id.Ident = keyLoops[id.Ident]
		}
		r.Pipe.Cmds, r.Pipe.Decl = append(r.Pipe.Cmds, call.Pipe.Cmds[1]), nil
		call.Pipe, call.Pos, call.Line = r.Pipe, r.Pos, r.Line
		list.Nodes[i] = call
	}
}

// overKeys reports whether a loop is one over keys without doubt.
func overKeys(b *parse.BranchNode) bool {
	if b.ElseList != nil || len(b.Pipe.Cmds) != 1 || len(b.Pipe.Cmds[0].Args) != 2 {
		return false
	}
	id, ok := b.Pipe.Cmds[0].Args[0].(*parse.IdentifierNode)
	return ok && keyLoops[id.Ident] != ""
}

// direct returns the body of a loop that can be printed directly.
func direct(b *parse.BranchNode) (directBody, bool) {
	var d directBody
	if b.ElseList != nil || len(b.Pipe.Decl) > 0 || len(b.Pipe.Cmds) != 1 {
		return d, false
	}
	pairs := overKeys(b)
	if !pairs && !callsFunc(b.Pipe, "members", "service") {
		return d, false
	}
	text := ""
	for _, n := range b.List.Nodes {
		if t, ok := n.(*parse.TextNode); ok {
			text += string(t.Text)
			continue
		}
		name, ok := plainField(n)
		if !ok || !d.add(name, pairs) {
			return d, false
		}
		d.texts, text = append(d.texts, text), ""
	}
	d.texts = append(d.texts, text)
	return d, true
}

// add adds a field; false when there is no such field.
func (d *directBody) add(name string, pairs bool) bool {
	if pairs {
		f, ok := pairFields[name]
		d.pairs = append(d.pairs, f)
		return ok
	}
	f := memberFields[name]
	d.of = append(d.of, f)
	return f != nil
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

// each prints what the loop that it stands for does, straight to the writer: the
// text of a loop over all keys can be nearly all of the file. It returns the empty
// text, and lets the writer say why it has ended too early.
func (st *state) each(body int, list any) (string, error) {
	d := &st.t.direct[body]
	switch list := list.(type) {
	case keyRange:
		return "", st.eachKey(body, d, list)
	case []view.Member:
		st.eachMember(d, list)
		return "", nil
	}
	return "", fmt.Errorf("a list of %T cannot be printed", list)
}

func (st *state) eachMember(d *directBody, list []view.Member) {
	out := st.out.buf
	for i := range list {
		if st.out.ended(0) != nil {
			return
		}
		before := out.Len()
		for j, field := range d.of {
			out.WriteString(d.texts[j])
			out.WriteString(field(&list[i]))
		}
		out.WriteString(d.texts[len(d.of)])
		if i == 0 {
			out.Grow(min((out.Len()-before)*len(list), int(st.out.max)) + 64)
		}
	}
}

// lists returns all lists of nodes in a tree.
func lists(root *parse.ListNode) []*parse.ListNode {
	var all []*parse.ListNode
	inspect(root, func(n parse.Node) {
		if l, ok := n.(*parse.ListNode); ok {
			all = append(all, l)
		}
	})
	return slices.Clip(all)
}
