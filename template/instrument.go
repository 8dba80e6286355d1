package template

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template/parse"
)

// text/template cannot be interrupted and does not know where a value came
// from. Both are added to the parse tree before it is executed:
//
//   - every body of a range that does not write at each turn begins with a
//     call of __guard, and every template that may be called is wrapped in
//     __enter and __leave: an execution that has lost its time, or that nests
//     too deeply, ends at the next of them, or when it writes;
//   - a loop that only prints fields of its elements becomes one call, and so does one over keys
//     whose text can be kept from the execution before (loops.go).
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
	text, leaves := slices.ContainsFunc(body.Nodes, func(n parse.Node) bool { return n.Type() == parse.NodeText }), false
	inspect(body, func(n parse.Node) {
		leaves = leaves || n.Type() == parse.NodeBreak || n.Type() == parse.NodeContinue
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
	return parseNode(text).(*parse.ActionNode) //nolint:forcetypeassert // The text is a constant of this package.
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
	return slices.ContainsFunc(p.Cmds, func(c *parse.CommandNode) bool {
		id, ok := c.Args[0].(*parse.IdentifierNode)
		return ok && slices.Contains(names, id.Ident)
	})
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

const coverFunc = "__cover"

// Coverage has the lines and branches of one template that were rendered. Give the
// same value to every Parse of the same text: it adds up. It is safe for
// concurrent use.
type Coverage struct {
	mu     sync.Mutex // guards points
	points map[pointKey]*point
}

// Missed is a line or a branch that was not rendered. A line that was never
// reached stands for the branches on it.
type Missed struct {
	Line   int    `json:"line"`
	Column int    `json:"column,omitempty"` // of a branch
	Branch string `json:"branch,omitempty"` // empty: the whole line
}

// Covered are the results of a Coverage.
type Covered struct {
	Lines         int      `json:"lines"` // that can be rendered
	LinesDone     int      `json:"lines_rendered"`
	Branches      int      `json:"branches"`
	BranchesTaken int      `json:"branches_taken"`
	Missed        []Missed `json:"missed"`
}

type pointKey struct {
	offset int
	branch string
}

type point struct {
	at    place
	lines []int
	done  bool
}

// Covered counts the parts that were rendered so far.
func (c *Coverage) Covered() Covered {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := map[int]bool{}
	for _, p := range c.points {
		for _, l := range p.lines {
			lines[l] = lines[l] || p.done
		}
	}
	r := Covered{Lines: len(lines), Missed: []Missed{}}
	for line, done := range lines {
		if done {
			r.LinesDone++
		} else {
			r.Missed = append(r.Missed, Missed{Line: line})
		}
	}
	for k, p := range c.points {
		if k.branch == "" {
			continue
		}
		r.Branches++
		switch reached, known := lines[p.at.line]; {
		case p.done:
			r.BranchesTaken++
		case reached || !known:
			r.Missed = append(r.Missed, Missed{p.at.line, p.at.column, k.branch})
		}
	}
	slices.SortFunc(r.Missed, func(a, b Missed) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column, strings.Compare(a.Branch, b.Branch))
	})
	return r
}

// add makes a place known, and returns what notes that it was rendered.
func (c *Coverage) add(k pointKey, at place, lines []int) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.points[k]
	if p == nil {
		if c.points == nil {
			c.points = map[pointKey]*point{}
		}
		p = &point{at: at, lines: lines}
		c.points[k] = p
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		p.done = true
	}
}

// cover puts a call of __cover before each node and into each branch. An if or a
// with without an else gets an empty one: it may never be false.
func (t *Template) cover(list *parse.ListNode) {
	var nodes []parse.Node
	for _, n := range list.Nodes {
		if lines := t.linesOf(n); len(lines) > 0 {
			nodes = append(nodes, t.coverAt(n, "", lines))
		}
		nodes = append(nodes, n)
		b, isRange := branchOf(n)
		if b == nil {
			continue
		}
		word, yes, no := "if", "is never true", "is never false"
		if _, isWith := n.(*parse.WithNode); isWith || isRange {
			word, yes, no = "with", "is never set", "is never empty"
		}
		if isRange {
			word, yes = "range", "never has an element"
		}
		t.cover(b.List)
		b.List.Nodes = slices.Insert(b.List.Nodes, 0, t.coverAt(n, word+" "+yes, nil))
		if b.ElseList == nil {
			if isRange {
				continue // A loop does nothing then, or the file stays as it is.
			}
			b.ElseList = &parse.ListNode{NodeType: parse.NodeList, Pos: b.Pos}
		}
		t.cover(b.ElseList)
		b.ElseList.Nodes = slices.Insert(b.ElseList.Nodes, 0, t.coverAt(n, word+" "+no, nil))
	}
	list.Nodes = nodes
}

func (t *Template) coverAt(n parse.Node, branch string, lines []int) parse.Node {
	at := t.at(n)
	if len(lines) > 0 {
		at.line = lines[0]
	}
	t.covered = append(t.covered, t.cfg.Coverage.add(pointKey{int(n.Position()), branch}, at, lines))
	return snippet("{{$__zkagent := " + coverFunc + " " + strconv.Itoa(len(t.covered)-1) + "}}")
}

func (t *Template) linesOf(n parse.Node) []int {
	at := t.at(n)
	text, ok := n.(*parse.TextNode)
	if !ok {
		if n.Type() == parse.NodeComment {
			return nil
		}
		return []int{at.line}
	}
	var lines []int
	for i, line := range strings.Split(string(text.Text), "\n") {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, at.line+i)
		}
	}
	return lines
}

func (st *state) cover(point int) string {
	st.t.covered[point]()
	return ""
}
