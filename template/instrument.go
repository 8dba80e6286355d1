package template

import (
	"fmt"
	"slices"
	"strings"
	"text/template/parse"
)

// text/template cannot be interrupted and does not know where a value came
// from. Both are added to the parse tree before it is executed:
//
//   - every body of a range that does not write at each turn begins with a
//     call of __guard, and every template that may be called is wrapped in
//     __enter and __leave: an execution that has lost its time, or that nests
//     too deeply, ends at the next of them, or when it writes;
//   - a loop that only prints fields of its elements becomes one call (direct.go);
//   - an action that prints a label of a member bare ends in __label, which
//     refuses what is no plain token: labels are written by whoever can write
//     to the group, and "x; } server {" must not reach a configuration file.
const (
	guardFunc = "__guard"
	enterFunc = "__enter"
	leaveFunc = "__leave"
	labelFunc = "__label"
)

func (t *Template) instrument() {
	calls := slices.Contains(t.names, "executeTemplate")
	for _, tree := range t.trees {
		inspect(tree.Root, func(n parse.Node) {
			if _, ok := n.(*parse.TemplateNode); ok {
				calls = true
			}
		})
	}
	for _, tree := range t.sortedTrees() {
		t.markLabels(tree.Root, scope{})
		for _, list := range lists(tree.Root) {
			t.makeDirect(list)
		}
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

// mark remembers the place of a node and returns its index.
func (t *Template) mark(n parse.Node) int {
	t.places = append(t.places, t.at(n))
	return len(t.places) - 1
}

// call makes an action that calls a function of ours with the index of a
// place. It declares a variable, so it prints nothing.
func (t *Template) call(name string, n parse.Node) parse.Node {
	return snippet(fmt.Sprintf("{{$__zkagent := %s %d}}", name, t.mark(n)))
}

func snippet(text string) *parse.ActionNode {
	tree := parse.New("zkagent")
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, "", "", map[string]*parse.Tree{}); err != nil {
		panic(err) // The text is a constant of this file.
	}
	action, ok := tree.Root.Nodes[0].(*parse.ActionNode)
	if !ok {
		panic("template: snippet is no action")
	}
	return action
}

// scope is what is known to hold a label at one place: the dot and variables.
type scope struct {
	dot  bool
	vars []string
}

func (s scope) with(dot bool, vars ...string) scope {
	return scope{dot, append(slices.Clip(s.vars), vars...)}
}

// markLabels appends the label check to every action that prints one bare.
func (t *Template) markLabels(list *parse.ListNode, s scope) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		if a, ok := n.(*parse.ActionNode); ok {
			switch {
			case !s.isLabel(a.Pipe):
			case len(a.Pipe.Decl) > 0:
				s.vars = append(slices.Clip(s.vars), a.Pipe.Decl[0].Ident[0])
			default:
				t.checkLabel(a)
			}
			continue
		}
		if b, isRange := branchOf(n); b != nil {
			t.markLabels(b.List, s.inside(n, b, isRange))
			t.markLabels(b.ElseList, s)
		}
	}
}

func (t *Template) checkLabel(a *parse.ActionNode) {
	p := t.at(a.Pipe)
	t.warnings = append(t.warnings, Warning{
		Template: t.cfg.Name, Line: p.line, Column: p.column,
		Text: "a label is printed without a quoting helper: a value that is not a plain token is an error when it is rendered; " +
			"use nginxString, haproxyToken, shellQuote or toJSON",
	})
	check := snippet(fmt.Sprintf("{{\"\" | %s %d}}", labelFunc, t.mark(a.Pipe)))
	a.Pipe.Cmds = append(a.Pipe.Cmds, check.Pipe.Cmds[1])
}

// inside is the scope within the body of a branch.
func (s scope) inside(n parse.Node, b *parse.BranchNode, isRange bool) scope {
	var vars []string
	for _, d := range b.Pipe.Decl {
		vars = append(vars, d.Ident[0])
	}
	switch {
	case isRange && s.isLabels(b.Pipe): // Keys and values of all labels.
		return s.with(true, vars...)
	case isRange && callsFunc(b.Pipe, "byLabel", "byMeta", "byTag"): // The map's keys are labels.
		if len(vars) == 2 {
			return s.with(false, vars[0])
		}
		return s.with(false)
	case isRange:
		return s.with(false)
	}
	label := s.isLabel(b.Pipe)
	if !label {
		vars = nil
	}
	if _, isWith := n.(*parse.WithNode); isWith {
		return s.with(label, vars...)
	}
	return s.with(s.dot, vars...)
}

// isLabel reports whether a pipeline is the bare value of a label.
func (s scope) isLabel(p *parse.PipeNode) bool {
	arg, args := single(p)
	switch n := arg.(type) {
	case *parse.DotNode:
		return s.dot
	case *parse.FieldNode:
		return labelChain(n.Ident)
	case *parse.ChainNode:
		return labelChain(n.Field)
	case *parse.VariableNode:
		return labelChain(n.Ident[1:]) || len(n.Ident) == 1 && slices.Contains(s.vars, n.Ident[0])
	case *parse.PipeNode:
		return s.isLabel(n)
	case *parse.IdentifierNode:
		return n.Ident == "index" && len(args) == 3 && strings.HasSuffix(args[1].String(), ".Labels")
	}
	return false
}

// isLabels reports whether a pipeline is the whole map of labels.
func (s scope) isLabels(p *parse.PipeNode) bool {
	arg, args := single(p)
	return arg != nil && len(args) == 1 && strings.HasSuffix(arg.String(), ".Labels")
}

// labelChain reports whether fields end in one label: .Labels.zone.
func labelChain(ident []string) bool { return len(ident) > 1 && ident[len(ident)-2] == "Labels" }

// single returns the first word of a pipeline of one command.
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
