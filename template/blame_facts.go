package template

import (
	"slices"
	"strings"
	"text/template/parse"
)

// facts are what the text says of a branch: it holds whichever list is executed.
type facts struct {
	place             place
	text              string // as the template spells it
	isRange, hasElse  bool
	assigned          []string // variables that its lists set
	touches           bool     // its lists may change a map
	breaks, continues bool     // its lists hold a break or continue of the loop around it
	lacks             [2]bool  // the list and the else hold the literal text that is looked for
}

// mutators change the map that they get.
var mutators = []string{"set", "unset", "merge", "mergeOverwrite", "mustMerge", "mustMergeOverwrite", "scratch"}

func mutates(name string) bool { return slices.Contains(mutators, strings.TrimPrefix(name, "sprig_")) }

// factsOf reads the facts of a branch, once.
func (tr *tracer) factsOf(n parse.Node, b *parse.BranchNode) *facts {
	if f := tr.facts[n]; f != nil {
		return f
	}
	text := map[parse.NodeType]string{parse.NodeIf: "if ", parse.NodeWith: "with ", parse.NodeRange: "range "}[n.Type()] + b.Pipe.String()
	const most = 100
	if len(text) > most {
		text = text[:most] + "..."
	}
	f := &facts{
		place: tr.place(n), text: text, isRange: n.Type() == parse.NodeRange, hasElse: b.ElseList != nil,
		assigned: append(assigned(b.List), assigned(b.ElseList)...), lacks: [2]bool{tr.holds(b.List), tr.holds(b.ElseList)},
	}
	for _, list := range []*parse.ListNode{b.List, b.ElseList} {
		inspect(list, func(n parse.Node) {
			switch n := n.(type) {
			case *parse.PipeNode:
				f.touches = f.touches || tr.changes(n)
			case *parse.TemplateNode:
				f.touches = f.touches || tr.mutates
			}
		})
	}
	if !f.isRange {
		f.breaks, f.continues = leaves(b)
	}
	tr.facts[n] = f
	return f
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
				if inner, isRange := branchOf(n); inner != nil && !isRange {
					b, c := leaves(inner)
					breaks, continues = breaks || b, continues || c
				}
			}
		}
	}
	return breaks, continues
}

// holds reports whether literal text of a list has what is looked for.
func (tr *tracer) holds(list *parse.ListNode) bool {
	found := false
	inspect(list, func(n parse.Node) {
		if t, ok := n.(*parse.TextNode); ok && tr.o.Missing != "" && strings.Contains(string(t.Text), tr.o.Missing) {
			found = true
		}
	})
	return found
}

// changes reports whether a pipeline may change a map, or uses the scratch. A method with
// an argument may be one of the scratch, which a variable or the dot can hold.
func (tr *tracer) changes(p *parse.PipeNode) bool {
	found := false
	for i, c := range p.Cmds {
		method := false
		switch n := c.Args[0].(type) {
		case *parse.FieldNode, *parse.ChainNode:
			method = true
		case *parse.VariableNode:
			method = len(n.Ident) > 1
		}
		found = found || tr.mutates && method && (i > 0 || len(c.Args) > 1)
		for _, arg := range c.Args {
			if id, ok := arg.(*parse.IdentifierNode); ok {
				found = found || mutates(id.Ident) || id.Ident == "executeTemplate" && tr.mutates
			}
		}
	}
	return found
}
