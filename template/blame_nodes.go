package template

import (
	"fmt"
	"slices"
	"strings"
	"text/template/parse"
)

// The marks that blame adds to a parse tree of its own. Each declares a
// variable, so it prints nothing; its first argument is the index of a site.
const (
	markText  = "__text"  // literal text begins
	markBegin = "__begin" // a pipeline is evaluated next
	markEnd   = "__end"   // it was printed, or put into a variable
	markThen  = "__then"  // the body of an if or with
	markTurn  = "__turn"  // one turn of a loop
	markElse  = "__else"
	markDone  = "__done"  // after an if, with or range
	markEnter = "__into"  // the start of a template
	markLeave = "__outof" // its end
)

// site is one place of the template that does something.
type site struct {
	place place
	text  string // of the construct, as the template spells it
	node  parse.Node

	vars              []int // variables that the pipeline mentions
	dot               bool  // it mentions the dot
	dollar            bool  // it mentions $
	heap              bool  // it may change a map, or uses the scratch
	declares          []int // variables that it declares or sets
	sets              bool  // with = instead of :=
	changes           []int // variables that its bodies set: they are of an outer scope
	breaks, continues bool  // its bodies hold a break or continue of the loop around it
	hasElse           bool
	touches           bool // its bodies may change a map
	loop              bool
	lacks             [2]bool // the body and the else hold the literal text that is looked for
}

// mutators change the map that they get.
var mutators = []string{"set", "unset", "merge", "mergeOverwrite", "mustMerge", "mustMergeOverwrite", "scratch"}

func mutates(name string) bool { return slices.Contains(mutators, strings.TrimPrefix(name, "sprig_")) }

// mapper adds the marks to parse trees, and resolves variables: they are
// lexical.
type mapper struct {
	source  string
	missing string
	sites   []site
	scope   []variable
	count   int  // of variables
	mutates bool // some template may change a map
}

type variable struct {
	name string
	id   int
}

// template marks one whole template.
func (m *mapper) template(tree *parse.Tree) {
	m.scope = nil
	n := m.site(tree.Root, "")
	m.list(tree.Root)
	tree.Root.Nodes = append([]parse.Node{markDot(markEnter, n)}, append(tree.Root.Nodes, mark(markLeave, n))...)
}

func mark(name string, site int) *parse.ActionNode {
	return snippet(fmt.Sprintf("{{$__zkagent := %s %d}}", name, site))
}

// markDot is a mark that sees the dot.
func markDot(name string, site int) *parse.ActionNode {
	return snippet(fmt.Sprintf("{{$__zkagent := %s %d .}}", name, site))
}

func (m *mapper) site(n parse.Node, text string) int {
	const most = 100
	if len(text) > most {
		text = text[:most] + "..."
	}
	m.sites = append(m.sites, site{place: placeOf(m.source, int(n.Position())), text: text, node: n})
	return len(m.sites) - 1
}

// list marks the nodes of a list; the variables of the list end with it.
func (m *mapper) list(l *parse.ListNode) {
	if l == nil {
		return
	}
	scope := len(m.scope)
	var nodes []parse.Node
	for _, n := range l.Nodes {
		nodes = append(nodes, m.node(n)...)
	}
	l.Nodes, m.scope = nodes, m.scope[:scope]
}

// node returns a node with its marks.
func (m *mapper) node(n parse.Node) []parse.Node {
	switch n := n.(type) {
	case *parse.TextNode:
		return []parse.Node{mark(markText, m.site(n, "")), n}
	case *parse.ActionNode:
		at := m.site(n, "")
		m.pipe(at, n.Pipe)
		end := mark(markEnd, at)
		if len(n.Pipe.Decl) > 0 { // The mark sees the variable.
			call := end.Pipe.Cmds[0]
			call.Args = append(call.Args, n.Pipe.Decl[0])
		}
		return []parse.Node{mark(markBegin, at), n, end}
	case *parse.TemplateNode:
		at := m.site(n, fmt.Sprintf("template %q", n.Name))
		m.pipe(at, n.Pipe)
		m.sites[at].heap = m.mutates
		return []parse.Node{mark(markBegin, at), n, mark(markEnd, at)}
	}
	b, loop := branchOf(n)
	if b == nil {
		return []parse.Node{n}
	}
	return m.branch(n, b, loop)
}

// branch marks an if, with or range.
func (m *mapper) branch(n parse.Node, b *parse.BranchNode, loop bool) []parse.Node {
	scope := len(m.scope)
	word := "if "
	if _, ok := n.(*parse.WithNode); ok {
		word = "with "
	} else if loop {
		word = "range "
	}
	at := m.site(n, word+b.Pipe.String())
	m.pipe(at, b.Pipe)
	outer := m.count
	m.sites[at].loop, m.sites[at].hasElse = loop, b.ElseList != nil
	m.sites[at].lacks = [2]bool{m.holds(b.List), m.holds(b.ElseList)}
	first := len(m.sites)
	m.list(b.List)
	if b.ElseList == nil {
		b.ElseList = &parse.ListNode{NodeType: parse.NodeList, Pos: b.Pos}
	}
	m.list(b.ElseList)
	m.scope = m.scope[:scope]
	s := &m.sites[at]
	for i := range m.sites[first:] {
		inner := &m.sites[first+i]
		s.touches = s.touches || inner.heap
		if !inner.sets {
			continue
		}
		for _, v := range inner.declares {
			if v < outer && !slices.Contains(s.changes, v) {
				s.changes = append(s.changes, v)
			}
		}
	}
	if !loop {
		s.breaks, s.continues = leaves(b)
	}
	then := markDot(markThen, at)
	if loop {
		then = markDot(markTurn, at)
	}
	b.List.Nodes = append([]parse.Node{then}, b.List.Nodes...)
	b.ElseList.Nodes = append([]parse.Node{mark(markElse, at)}, b.ElseList.Nodes...)
	return []parse.Node{mark(markBegin, at), n, mark(markDone, at)}
}

// leaves reports whether a branch holds a break, and a continue, of the loop
// around it.
func leaves(b *parse.BranchNode) (breaks, continues bool) { //nolint:nonamedreturns // two answers need names
	for _, list := range []*parse.ListNode{b.List, b.ElseList} {
		if list == nil {
			continue
		}
		for _, n := range list.Nodes {
			switch n := n.(type) {
			case *parse.BreakNode:
				breaks = true
			case *parse.ContinueNode:
				continues = true
			default:
				if inner, loop := branchOf(n); inner != nil && !loop {
					b, c := leaves(inner)
					breaks, continues = breaks || b, continues || c
				}
			}
		}
	}
	return breaks, continues
}

// holds reports whether literal text of a list has what is looked for.
func (m *mapper) holds(list *parse.ListNode) bool {
	found := false
	if m.missing != "" && list != nil {
		inspect(list, func(n parse.Node) {
			if t, ok := n.(*parse.TextNode); ok && strings.Contains(string(t.Text), m.missing) {
				found = true
			}
		})
	}
	return found
}

// pipe notes what a pipeline mentions, and what it declares.
func (m *mapper) pipe(at int, p *parse.PipeNode) {
	if p == nil {
		return
	}
	s := &m.sites[at]
	m.commands(s, p.Cmds)
	for _, d := range p.Decl {
		name := d.Ident[0]
		if p.IsAssign {
			s.sets = true
			if id, ok := m.lookup(name); ok {
				s.declares = append(s.declares, id)
			}
			continue
		}
		m.scope = append(m.scope, variable{name, m.count})
		s.declares = append(s.declares, m.count)
		m.count++
	}
}

func (m *mapper) lookup(name string) (int, bool) {
	for _, v := range slices.Backward(m.scope) {
		if v.name == name {
			return v.id, true
		}
	}
	return 0, false
}

// word notes what one word of a pipeline mentions.
func (m *mapper) word(s *site, n parse.Node) {
	switch n := n.(type) {
	case *parse.DotNode, *parse.FieldNode:
		s.dot = true
	case *parse.VariableNode:
		if n.Ident[0] == "$" {
			s.dollar = true
		} else if id, ok := m.lookup(n.Ident[0]); ok {
			s.vars = append(s.vars, id)
		}
	case *parse.IdentifierNode:
		s.heap = s.heap || mutates(n.Ident) || n.Ident == "executeTemplate" && m.mutates
	case *parse.ChainNode:
		m.word(s, n.Node)
	case *parse.PipeNode:
		m.commands(s, n.Cmds)
	}
}

// commands notes what the commands of a pipeline mention. A method with an argument may
// be one of the scratch, which a variable or the dot can hold.
func (m *mapper) commands(s *site, list []*parse.CommandNode) {
	for i, c := range list {
		for _, arg := range c.Args {
			m.word(s, arg)
		}
		method := false
		switch n := c.Args[0].(type) {
		case *parse.FieldNode, *parse.ChainNode:
			method = true
		case *parse.VariableNode:
			method = len(n.Ident) > 1
		}
		s.heap = s.heap || m.mutates && method && (i > 0 || len(c.Args) > 1)
	}
}
