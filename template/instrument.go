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

	"github.com/zkagent/zkagent/view"
)

// text/template cannot be interrupted and does not know where a value came
// from. Both are added to the parse tree before it is executed:
//
//   - every body of a range that does not write at each turn begins with a
//     call of __guard, and every template that may be called is wrapped in
//     __enter and __leave: an execution that has lost its time, or that nests
//     too deeply, ends at the next of them, or when it writes;
//   - a loop that only prints fields of its elements becomes one call, and so does one over keys
//     whose text can be kept from the execution before.
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

// Missed is a line or a branch that no test rendered. For a line that no test reached,
// it does not list the branches separately.
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

// A loop over all keys or members is where large files spend their time:
// text/template looks each field up by its name, and prints it by reflection. A loop
// whose body has only texts and plain fields becomes one call that prints the same:
//
//	{{range tree "app"}}{{.Key}}={{.Value}};{{end}}  ->  {{tree "app" | __fields 0}}
//
// At 10,000 keys or members it takes a twentieth of the time. Labels are not among the
// plain fields: they are checked.
const directFunc = "__fields"

type directBody struct {
	texts   []string // one more than fields
	pairs   []func(*Pair) string
	members []func(*view.Member) string
}

var pairFields = map[string]func(*Pair) string{
	"Path":  func(p *Pair) string { return p.Path },
	"Key":   func(p *Pair) string { return p.Key },
	"Value": func(p *Pair) string { return p.Value },
}

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

// replaceLoops replaces the loops of a list that can be printed directly, or chunk by
// chunk. The parse tree must leave no doubt: one call of a function whose
// result is known, and no else.
func (t *Template) replaceLoops(tree *parse.Tree, list *parse.ListNode) {
	for i, n := range list.Nodes {
		r, ok := n.(*parse.RangeNode)
		if !ok || r.ElseList != nil || len(r.Pipe.Cmds) != 1 {
			continue
		}
		if body, ok := direct(r); ok {
			t.direct = append(t.direct, body)
			call := snippet(fmt.Sprintf("{{\"\" | %s %d}}", directFunc, len(t.direct)-1))
			r.Pipe.Cmds = append(r.Pipe.Cmds, call.Pipe.Cmds[1])
		} else if !t.byChunks(tree, r) {
			continue
		}
		r.Pipe.Decl = nil
		t.loops = append(t.loops, t.at(n))
		list.Nodes[i] = &parse.ActionNode{NodeType: parse.NodeAction, Pos: r.Pos, Line: r.Line, Pipe: r.Pipe}
	}
}

func direct(r *parse.RangeNode) (directBody, bool) {
	var d directBody
	overKeys := callsFunc(r.Pipe, "tree", "ls", "safeTree", "safeLs")
	if len(r.Pipe.Decl) > 0 || !overKeys && !callsFunc(r.Pipe, "members", "service") {
		return d, false
	}
	text := ""
	for _, n := range r.List.Nodes {
		if t, ok := n.(*parse.TextNode); ok {
			text += string(t.Text)
			continue
		}
		name, ok := plainField(n)
		if overKeys {
			d.pairs = append(d.pairs, pairFields[name])
			ok = ok && pairFields[name] != nil
		} else {
			d.members = append(d.members, memberFields[name])
			ok = ok && memberFields[name] != nil
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

// printFields prints what the loop that it stands for does, straight to the writer: the
// text of a loop over all keys can be nearly all of the file. It returns the empty
// text, and lets the writer say why it has ended too early.
func (st *state) printFields(body int, list any) (string, error) {
	d := &st.t.direct[body]
	switch list := list.(type) {
	case []Pair:
		printEach(st.out, d.texts, d.pairs, list)
	case []view.Member:
		printEach(st.out, d.texts, d.members, list)
	default:
		return "", fmt.Errorf("a list of %T cannot be printed", list)
	}
	return "", nil
}

func printEach[T any](w *limited, texts []string, fields []func(*T) string, list []T) {
	out := w.buf
	for i := range list {
		if w.ended(0) != nil {
			return
		}
		before := out.Len()
		for j, field := range fields {
			out.WriteString(texts[j])
			out.WriteString(field(&list[i]))
		}
		out.WriteString(texts[len(fields)])
		if i == 0 {
			out.Grow(min((out.Len()-before)*len(list), int(w.max)) + 64)
		}
	}
}

// A loop over keys whose text depends on its key alone is executed for the chunks of keys
// that changed. What it printed for the others is copied from the output before. At one
// changed key of 10,000 it takes a thirtieth of the time.
//
//	{{range tree "app"}}{{.Key | toUpper}}{{end}}  ->  {{__chunks 0 "app"}}
//
// The body is a template of its own. It names no variable of the outside, calls no
// template, leaves no loop, and all its functions give the same for the same arguments
// and do nothing else.
const chunksFunc = "__chunks"

type chunkLoop struct {
	name     string // of the template that prints the keys of one chunk
	deep     bool   // tree, not ls
	notEmpty bool   // safeTree and safeLs
}

// memo is what the last execution of a template printed. It holds the output, which the
// keeper of the file holds as well, and the chunks. It is immutable.
type memo struct {
	data   []byte
	pieces map[pieceID]piece
}

// maxPieces bounds the chunks, of up to 128 keys, whose text is kept.
const maxPieces = 1 << 14

// pieceID names what a loop prints for a chunk. Equal ids have the same text.
type pieceID struct {
	loop           int
	config, prefix string
	chunk          view.Chunk
}

type piece struct {
	from, to int
	keys     int
}

// byChunks makes a loop one that is executed by chunks, if its body is pure.
func (t *Template) byChunks(tree *parse.Tree, r *parse.RangeNode) bool {
	call := r.Pipe.Cmds[0]
	id, ok := call.Args[0].(*parse.IdentifierNode)
	if !ok || len(call.Args) != 2 || !callsFunc(r.Pipe, "tree", "ls", "safeTree", "safeLs") ||
		len(r.Pipe.Decl) > 1 || r.Pipe.IsAssign || !pure(r, tree) {
		return false
	}
	loop, pipe := *r, *r.Pipe
	pipe.Cmds = snippet("{{.}}").Pipe.Cmds
	loop.Pipe = &pipe
	name := fmt.Sprintf("loop %d of %s", len(t.bodies), t.cfg.Name)
	root := &parse.ListNode{NodeType: parse.NodeList, Pos: r.Pos, Nodes: []parse.Node{&loop}}
	t.bodies = append(t.bodies, &parse.Tree{Name: name, ParseName: t.cfg.Name, Root: root})
	t.chunks = append(t.chunks, chunkLoop{name, strings.HasSuffix(strings.ToLower(id.Ident), "tree"), strings.HasPrefix(id.Ident, "safe")})
	number := snippet(fmt.Sprintf("{{%d}}", len(t.chunks)-1)).Pipe.Cmds[0].Args[0]
	id.Ident, call.Args = chunksFunc, slices.Insert(call.Args, 1, number)
	return true
}

// pure reports whether the text of a loop's body depends on its key alone. Its variables
// are those whose name nothing outside of the loop declares.
func pure(r *parse.RangeNode, tree *parse.Tree) bool {
	inside, all, table := declarations(r), declarations(tree.Root), functionTable()
	own := func(name string) bool { return inside[name] > 0 && inside[name] == all[name] }
	ok := true
	inspect(r.List, func(n parse.Node) {
		switch n := n.(type) {
		case *parse.TemplateNode, *parse.BreakNode, *parse.ContinueNode:
			ok = false
		case *parse.IdentifierNode:
			f, known := table[n.Ident]
			ok = ok && (f.pure || !known && builtins[n.Ident] != "" && n.Ident != "call")
		case *parse.VariableNode:
			ok = ok && own(n.Ident[0])
		case *parse.PipeNode:
			for _, d := range n.Decl {
				ok = ok && own(d.Ident[0])
			}
		}
	})
	return ok
}

func declarations(n parse.Node) map[string]int {
	count := map[string]int{}
	inspect(n, func(n parse.Node) {
		if p, ok := n.(*parse.PipeNode); ok && !p.IsAssign {
			for _, d := range p.Decl {
				count[d.Ident[0]]++
			}
		}
	})
	return count
}

func (st *state) printChunks(n int, path string) (string, error) {
	loop, out := &st.t.chunks[n], st.out
	tree, prefix, err := st.config(path)
	if err != nil {
		return "", err
	}
	keys := 0
	for c := range tree.Chunks(prefix) {
		if out.ended(0) != nil {
			return "", nil // The writer says why.
		}
		id := pieceID{n, tree.Name, prefix, c}
		now, known := st.memo.pieces[id]
		from := out.buf.Len()
		if known {
			out.buf.Write(st.memo.data[now.from:now.to])
		} else {
			list := pairsOf(tree.Name, prefix, loop.deep, c.Keys())
			now.keys = len(list)
			if err := st.tmpl.ExecuteTemplate(out, loop.name, list); err != nil {
				return "", err
			}
		}
		keys += now.keys
		if out.root && len(st.printed) < maxPieces {
			st.printed[id] = piece{from, out.buf.Len(), now.keys}
		}
	}
	if keys == 0 && loop.notEmpty {
		return "", noKeyBelow(path)
	}
	return "", nil
}
