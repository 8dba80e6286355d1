package template

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/template/parse"
)

// The text of a body of a loop is kept from one execution to the next only if it
// depends on the key alone: it names no variable of the outside, calls no
// template, leaves no loop, and all its functions give the same for the same
// arguments and do nothing else.

// impure are functions, of the groups that are pure otherwise, whose result is
// not a matter of their arguments: of the time, and of places in memory.
var impure = []string{"timestamp", "ago", "spew_sdump", "spew_sprintf", "unixEpoch", "toDate", "mustToDate", "uuidv4", "getHostByName"}

// pureFunctions are the functions that a body may call.
var pureFunctions = sync.OnceValue(func() map[string]bool {
	pure := map[string]bool{}
	for name := range builtins {
		pure[name] = name != "call"
	}
	for name := range sprigFunctions() {
		pure["sprig_"+name] = true
		pure[name] = true
	}
	for _, group := range []map[string]any{
		textFunctions(), parseFunctions(), encodeFunctions(), mathFunctions(), mapFunctions(), listFunctions(), quoteFunctions(),
	} {
		for name := range group {
			pure[name] = true
		}
	}
	for _, name := range impure {
		delete(pure, name)
		delete(pure, "sprig_"+name)
	}
	return pure
})

// pureBody makes a template of the body of a loop over keys, if it is pure.
func (t *Template) pureBody(r *parse.RangeNode) (directBody, bool) {
	if !overKeys(&r.BranchNode) || len(r.Pipe.Decl) > 1 || r.Pipe.IsAssign {
		return directBody{}, false
	}
	var s pureScope
	if len(r.Pipe.Decl) == 1 {
		s = append(s, r.Pipe.Decl[0].Ident[0])
	}
	if !s.list(r.List) {
		return directBody{}, false
	}
	loop, pipe := *r, *r.Pipe
	pipe.Cmds = snippet("{{.}}").Pipe.Cmds
	loop.Pipe = &pipe
	name := fmt.Sprintf("loop %d of %s", len(t.bodies), t.cfg.Name)
	root := &parse.ListNode{NodeType: parse.NodeList, Pos: r.Pos, Nodes: []parse.Node{&loop}}
	t.bodies = append(t.bodies, &parse.Tree{Name: name, ParseName: t.cfg.Name, Root: root})
	return directBody{tmpl: name}, true
}

// pureScope are the variables that were declared within the body so far.
type pureScope []string

// list reports whether nodes are pure. Their variables end with them.
func (s pureScope) list(l *parse.ListNode) bool {
	if l == nil {
		return true
	}
	s = slices.Clip(s)
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.TextNode, *parse.CommentNode:
		case *parse.ActionNode:
			if !s.pipe(n.Pipe) {
				return false
			}
		default:
			b, _ := branchOf(n)
			if b == nil || !s.branch(b) {
				return false
			}
		}
	}
	return true
}

func (s pureScope) branch(b *parse.BranchNode) bool {
	s = slices.Clip(s)
	return s.pipe(b.Pipe) && s.list(b.List) && s.list(b.ElseList)
}

// pipe reports whether a pipeline is pure, and adds what it declares.
func (s *pureScope) pipe(p *parse.PipeNode) bool {
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			if !s.word(arg) {
				return false
			}
		}
	}
	for _, d := range p.Decl {
		switch {
		case !p.IsAssign:
			*s = append(*s, d.Ident[0])
		case !slices.Contains(*s, d.Ident[0]):
			return false
		}
	}
	return true
}

// word reports whether one word of a pipeline is pure.
func (s *pureScope) word(n parse.Node) bool {
	switch n := n.(type) {
	case *parse.DotNode, *parse.NilNode, *parse.BoolNode, *parse.NumberNode, *parse.StringNode, *parse.FieldNode:
		return true
	case *parse.IdentifierNode:
		return pureFunctions()[n.Ident] && !strings.HasPrefix(n.Ident, "__")
	case *parse.VariableNode:
		return slices.Contains(*s, n.Ident[0])
	case *parse.ChainNode:
		return s.word(n.Node)
	case *parse.PipeNode:
		return s.pipe(n)
	}
	return false
}
