package template

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template/parse"
)

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
