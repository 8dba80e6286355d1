package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// A loop over all keys or members that prints nothing but text and fields of its
// element is where large files spend their time: text/template looks each field up
// by its name, and prints it by reflection. Such a loop becomes one call that does
// the same directly:
//
//	{{range tree "app"}}{{.Key}}={{.Value}};{{end}}  ->  {{tree "app" | __each 0}}
//
// It is taken only where the parse tree leaves no doubt: one call of a function
// whose result is known, no variables, no else, and a body of texts and plain
// fields that are printed as they are. Labels are not among these: they are checked.
const directFunc = "__each"

// directBody is the body of such a loop: texts and what stands between them.
type directBody struct {
	texts []string // one more than fields
	pairs []func(*Pair) string
	of    []func(*view.Member) string
}

var pairFields = map[string]func(*Pair) string{
	"Path":  func(p *Pair) string { return p.Path },
	"Key":   func(p *Pair) string { return p.Key },
	"Value": func(p *Pair) string { return p.Value },
}

var memberFields = map[string]func(*view.Member) string{
	"ID":      func(m *view.Member) string { return m.ID },
	"Node":    func(m *view.Member) string { return m.Node },
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
			continue
		}
		t.direct, t.loops = append(t.direct, body), append(t.loops, t.at(n))
		call := snippet(fmt.Sprintf("{{\"\" | %s %d}}", directFunc, len(t.direct)-1))
		r.Pipe.Cmds = append(r.Pipe.Cmds, call.Pipe.Cmds[1])
		call.Pipe, call.Pos, call.Line = r.Pipe, r.Pos, r.Line
		list.Nodes[i] = call
	}
}

// direct returns the body of a loop that can be made direct.
func direct(b *parse.BranchNode) (directBody, bool) {
	var d directBody
	if b.ElseList != nil || len(b.Pipe.Decl) > 0 || len(b.Pipe.Cmds) != 1 {
		return d, false
	}
	pairs := callsFunc(b.Pipe, "tree", "ls", "safeTree", "safeLs")
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
		if !ok {
			return d, false
		}
		if pairs {
			d.pairs = append(d.pairs, pairFields[name])
			ok = pairFields[name] != nil
		} else {
			d.of = append(d.of, memberFields[name])
			ok = memberFields[name] != nil
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

// each prints a list as the loop that it stands for does.
func (st *state) each(body int, list any) (string, error) {
	d := st.t.direct[body]
	switch list := list.(type) {
	case []Pair:
		return printEach(st, list, d.texts, d.pairs)
	case []view.Member:
		return printEach(st, list, d.texts, d.of)
	}
	return "", fmt.Errorf("a list of %T cannot be printed", list)
}

func printEach[T any](st *state, list []T, texts []string, fields []func(*T) string) (string, error) {
	var b strings.Builder
	for i := range list {
		if b.Len() > int(st.t.cfg.MaxOutput) || st.stop.Load() != nil {
			break // The writer says why.
		}
		for j, field := range fields {
			b.WriteString(texts[j])
			b.WriteString(field(&list[i]))
		}
		b.WriteString(texts[len(fields)])
		if i == 0 {
			b.Grow(min(b.Len()*len(list), int(st.t.cfg.MaxOutput)) + 64)
		}
	}
	return b.String(), nil
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
