package template

import (
	"reflect"
	"text/template/parse"
)

// inspect calls fn for each node below n, in the order of the text.
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
