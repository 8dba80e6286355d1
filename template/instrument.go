package template

import (
	"fmt"
	"reflect"
	"slices"
	"text/template/parse"
)

// text/template cannot be interrupted and does not know where a value came
// from. Both are added to the parse tree before it is executed:
//
//   - every body of a range that does not write at each turn begins with a
//     call of __guard, and every template that may be called is wrapped in
//     __enter and __leave: an execution that has lost its time, or that nests
//     too deeply, ends at the next of them, or when it writes;
//   - a loop that only prints fields of its elements becomes one call (direct.go), and so does
//     one over keys whose text can be kept from the execution before (memo.go).
const (
	guardFunc = "__guard"
	enterFunc = "__enter"
	leaveFunc = "__leave"
)

func (t *Template) instrument() {
	if t.cfg.Coverage != nil {
		for _, tree := range t.sortedTrees() {
			t.cover(tree.Root)
		}
	}
	calls := slices.Contains(t.names, "executeTemplate")
	for _, tree := range t.trees {
		inspect(tree.Root, func(n parse.Node) {
			if _, ok := n.(*parse.TemplateNode); ok {
				calls = true
			}
			if name := labelName(n); name != "" && !slices.Contains(t.labels, name) {
				t.labels = append(t.labels, name)
			}
		})
	}
	for _, tree := range t.sortedTrees() {
		inspect(tree.Root, func(n parse.Node) {
			if list, ok := n.(*parse.ListNode); ok {
				t.replaceLoops(tree, list)
			}
		})
		t.guardLoops(tree)
		if calls {
			root := tree.Root
			enter := t.call(enterFunc, root)
			root.Nodes = append(append([]parse.Node{enter}, root.Nodes...), t.call(leaveFunc, root))
		}
	}
	for _, tree := range t.bodies {
		t.guardLoops(tree)
	}
}

// labelName returns the label that a node names: zone of .Labels.zone.
func labelName(n parse.Node) string {
	var ident []string
	switch n := n.(type) {
	case *parse.FieldNode:
		ident = n.Ident
	case *parse.ChainNode:
		ident = n.Field
	case *parse.VariableNode:
		ident = n.Ident
	}
	for i := range len(ident) - 1 {
		if ident[i] == "Labels" {
			return ident[i+1]
		}
	}
	return ""
}

// guardLoops lets each turn of a loop notice that the execution was asked to end.
func (t *Template) guardLoops(tree *parse.Tree) {
	inspect(tree.Root, func(n parse.Node) {
		b, isRange := branchOf(n)
		if isRange {
			t.loops = append(t.loops, t.at(n))
		}
		if isRange && !writesAlways(b.List) {
			b.List.Nodes = slices.Insert(b.List.Nodes, 0, t.call(guardFunc, n))
		}
	})
}

// writesAlways reports whether each turn of a loop writes some text: then the
// writer notices that the execution was asked to end, and no guard is needed.
func writesAlways(body *parse.ListNode) bool {
	text, leaves := false, false
	for _, n := range body.Nodes {
		if _, ok := n.(*parse.TextNode); ok {
			text = true
		}
	}
	inspect(body, func(n parse.Node) {
		switch n.(type) {
		case *parse.BreakNode, *parse.ContinueNode:
			leaves = true
		}
	})
	return text && !leaves
}

// call makes an action that calls a function of ours with the index of the place of a
// node. It declares a variable, so it prints nothing.
func (t *Template) call(name string, n parse.Node) parse.Node {
	t.places = append(t.places, t.at(n))
	return snippet(fmt.Sprintf("{{$__zkagent := %s %d}}", name, len(t.places)-1))
}

func snippet(text string) *parse.ActionNode {
	action, ok := parseNode(text).(*parse.ActionNode)
	if !ok {
		panic("template: snippet is not an action")
	}
	return action
}

func parseNode(text string) parse.Node {
	tree := parse.New("zkagent")
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, "", "", map[string]*parse.Tree{}); err != nil {
		panic(err) // The text is a constant of this package.
	}
	return tree.Root.Nodes[0]
}

func single(p *parse.PipeNode) (parse.Node, []parse.Node) {
	if p == nil || len(p.Cmds) != 1 || len(p.Cmds[0].Args) == 0 {
		return nil, nil
	}
	return p.Cmds[0].Args[0], p.Cmds[0].Args
}

func callsFunc(p *parse.PipeNode, names ...string) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Cmds {
		if len(c.Args) > 0 {
			if id, ok := c.Args[0].(*parse.IdentifierNode); ok && slices.Contains(names, id.Ident) {
				return true
			}
		}
	}
	return false
}

func inspect(n parse.Node, fn func(parse.Node)) {
	if n == nil || reflect.ValueOf(n).IsNil() {
		return
	}
	fn(n)
	switch n := n.(type) {
	case *parse.ListNode:
		for _, c := range n.Nodes {
			inspect(c, fn)
		}
	case *parse.ActionNode:
		inspect(n.Pipe, fn)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			inspect(c, fn)
		}
	case *parse.CommandNode:
		for _, a := range n.Args {
			inspect(a, fn)
		}
	case *parse.ChainNode:
		inspect(n.Node, fn)
	case *parse.TemplateNode:
		inspect(n.Pipe, fn)
	default:
		if b, _ := branchOf(n); b != nil {
			inspect(b.Pipe, fn)
			inspect(b.List, fn)
			inspect(b.ElseList, fn)
		}
	}
}

// branchOf returns what if, with and range have in common, and whether it is
// a range.
func branchOf(n parse.Node) (*parse.BranchNode, bool) {
	switch n := n.(type) {
	case *parse.IfNode:
		return &n.BranchNode, false
	case *parse.WithNode:
		return &n.BranchNode, false
	case *parse.RangeNode:
		return &n.BranchNode, true
	}
	return nil, false
}
