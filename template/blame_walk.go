package template

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// A tracer walks the nodes of a template itself, as text/template does, and leaves only
// the pipelines to text/template. So it knows what each piece of text depends on: the
// conditions around a node are the calls of Go around its walk.

// errBreak and errContinue leave a loop and a turn of it.
var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// variable is a variable of a template, or the dot: its value, and where it came from.
type variable struct {
	name  string
	value reflect.Value
	cell
}

// cell is where a value came from.
type cell struct {
	values []Value
	shared bool // a map or list, which others may change
}

// block is an if, with or loop that is executed.
type block struct {
	values []Value // of the pipeline
	broken *Reason // of a loop: what may have ended it early, for all further turns
	passed []Value // of a loop: what may have ended this turn early
	left   []Value // and all turns
	wanted bool    // its element is the one that is looked for
	inside bool    // that of a loop around it is
	of     []Value // its element
}

// ExecuteTemplate executes a template that a pipeline calls.
func (tr *tracer) ExecuteTemplate(_ io.Writer, name string, data any) error {
	dot := variable{value: reflect.ValueOf(data)}
	if len(tr.open) > 0 {
		dot.values = tr.present()
		return tr.template(name, dot, tr.why)
	}
	if tr.o.Each != nil {
		v := Value{ValueElement, tr.o.ForEach.String(), tr.o.Each.Key}
		tr.note(v)
		dot.values = []Value{v}
		if list, ok := tr.o.Each.Value.([]view.Member); ok {
			tr.know(tr.o.ForEach.Name+"/"+tr.o.Each.Key, list)
		}
	}
	return tr.template(name, dot, nil)
}

func (tr *tracer) template(name string, dot variable, why *reasons) error {
	if tr.depth++; tr.depth > MaxDepth {
		return &valueError{text: fmt.Sprintf("%v: more than %d", ErrDepth, MaxDepth), class: ErrDepth, pos: -1}
	}
	vars, loop, before := tr.vars, tr.loop, tr.why
	defer func() { tr.vars, tr.loop, tr.why, tr.depth = vars, loop, before, tr.depth-1 }()
	dot.name, dot.cell = "$", tr.cellOf(dot.value, dot.values)
	tr.vars, tr.loop, tr.why = []variable{dot}, nil, why
	return tr.list(tr.trees[name].Root, dot)
}

// list walks the nodes of a list; its variables end with it.
func (tr *tracer) list(l *parse.ListNode, dot variable) error {
	if l == nil {
		return nil
	}
	scope := len(tr.vars)
	defer func() { tr.vars = tr.vars[:scope] }()
	for _, n := range l.Nodes {
		if reason := tr.st.stop.Load(); reason != nil {
			return &valueError{text: (*reason).Error(), class: *reason, pos: -1}
		}
		if err := tr.node(n, dot); err != nil {
			return err
		}
	}
	return nil
}

func (tr *tracer) node(n parse.Node, dot variable) error {
	from := tr.st.out.buf.Len()
	switch n := n.(type) {
	case *parse.TextNode:
		_, err := tr.st.out.Write(n.Text)
		tr.add(n, from, true, nil)
		return err
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	case *parse.ActionNode:
		v, err := tr.evaluate(n, n.Pipe, dot)
		tr.add(n, from, false, v.values)
		tr.declare(n.Pipe, v)
		return err
	case *parse.TemplateNode:
		v, err := tr.evaluate(n, n.Pipe, dot)
		if err != nil {
			return err
		}
		r := Reason{Line: tr.t.at(n).line, Text: fmt.Sprintf("template %q", n.Name), Held: true}
		return tr.template(n.Name, v, &reasons{r, tr.why})
	}
	if b, isRange := branchOf(n); b != nil {
		return tr.branch(n, b, isRange, dot)
	}
	return nil
}

// branch walks an if, with or range. What it decides holds for the rest of the turn
// when it holds a break or continue.
func (tr *tracer) branch(n parse.Node, b *parse.BranchNode, isRange bool, dot variable) error {
	scope, why, outer, loop := len(tr.vars), tr.why, tr.block, tr.loop
	c := &block{}
	if outer != nil {
		c.wanted, c.inside, c.of = outer.wanted, outer.wanted, outer.of
	}
	tr.block = c
	var err error
	if isRange {
		err = tr.loopOver(n, b, c, dot)
	} else {
		err = tr.choose(n, b, c, dot)
	}
	tr.vars, tr.block, tr.loop, tr.why = tr.vars[:scope], outer, loop, why
	f := tr.factsOf(n, b)
	tr.decide(f, union(c.values, c.left))
	if loop != nil && (f.breaks || f.continues) { // The rest of the turn is there because nothing left it.
		tr.why = &reasons{Reason{Line: f.place.line, Text: f.text, Values: loop.passed}, why}
	}
	return err
}

func (tr *tracer) choose(n parse.Node, b *parse.BranchNode, c *block, dot variable) error {
	v, err := tr.evaluate(n, b.Pipe, dot)
	if err != nil {
		return err
	}
	tr.declare(b.Pipe, v)
	held, _ := texttemplate.IsTrue(anyOf(v.value))
	tr.enter(tr.factsOf(n, b), c, held, v.values)
	if !held {
		return tr.list(b.ElseList, dot)
	}
	if _, isWith := n.(*parse.WithNode); isWith {
		dot = variable{value: v.value, cell: tr.cellOf(v.value, v.values)}
	}
	return tr.list(b.List, dot)
}

// loopOver walks the list of a range at each of its turns, which text/template makes.
func (tr *tracer) loopOver(n parse.Node, b *parse.BranchNode, c *block, dot variable) error {
	f, outer := tr.factsOf(n, b), tr.turn
	whole, began := variable{}, false
	var failed error
	tr.turn = func(elem []reflect.Value) bool {
		if !began {
			began, whole = true, tr.close(tr.value)
			tr.declare(b.Pipe, whole)
			tr.enter(f, c, true, whole.values)
			tr.loop = c
		}
		if failed = tr.walkTurn(f, b, c, elem); errors.Is(failed, errContinue) {
			failed = nil
		}
		return failed != nil
	}
	err := tr.run(n, b.Pipe, dot)
	tr.turn = outer
	switch {
	case began && errors.Is(failed, errBreak):
		return nil
	case began:
		return cmp.Or(failed, err)
	}
	whole = tr.close(tr.value)
	if err != nil {
		return err
	}
	tr.declare(b.Pipe, whole)
	tr.enter(f, c, false, whole.values)
	return tr.list(b.ElseList, dot)
}

func (tr *tracer) walkTurn(f *facts, b *parse.BranchNode, c *block, elem []reflect.Value) error {
	tr.decide(f, c.left) // By what the turn before may have passed over.
	why := tr.why
	defer func() { tr.why = why }()
	if c.broken != nil {
		tr.why = &reasons{*c.broken, why}
	}
	v := elem[len(elem)-1]
	dot := variable{value: v, cell: tr.cellOf(v, c.values)}
	c.passed, c.wanted, c.of = nil, c.inside || tr.wanted(v), tr.identify(v)
	for i, d := range b.Pipe.Decl {
		to := tr.lookup(d.Ident[0])
		to.value, to.cell = v, dot.cell
		if i == 0 && len(b.Pipe.Decl) == 2 { // The index or key.
			to.value, to.cell = elem[0], cell{values: c.values}
		}
	}
	return tr.list(b.List, dot)
}

// enter begins a branch, and notes what it leaves out.
func (tr *tracer) enter(f *facts, c *block, held bool, values []Value) {
	c.values = values
	r := Reason{Line: f.place.line, Text: f.text, Held: held, Values: values}
	lacks, other := f.lacks[1], f.hasElse
	if !held {
		lacks, other = f.lacks[0], true
	}
	if (lacks || c.wanted && !f.isRange && other) && len(tr.unmet) < maxUnmet {
		tr.unmet = append(tr.unmet, Unmet{r, c.of})
	}
	tr.why = &reasons{r, tr.why}
	loop := tr.loop
	if loop == nil || !f.breaks && !f.continues {
		return
	}
	loop.passed = union(loop.passed, values)
	loop.left = condense(union(loop.left, values), loop.values)
	if f.breaks {
		if loop.broken == nil {
			loop.broken = &Reason{Line: r.Line, Text: r.Text}
		}
		loop.broken.Values = condense(union(loop.broken.Values, values), loop.values)
	}
}

// decide notes that values decided whether the lists of a branch set variables and
// changed maps.
func (tr *tracer) decide(f *facts, by []Value) {
	for _, name := range f.assigned {
		if v := tr.lookup(name); v != nil {
			v.values = union(v.values, by)
		}
	}
	if f.touches {
		tr.heap = union(tr.heap, by)
	}
}

func (tr *tracer) declare(p *parse.PipeNode, v variable) {
	for _, d := range p.Decl {
		v.name = d.Ident[0]
		if to := tr.lookup(v.name); to != nil && p.IsAssign {
			*to = v
		} else {
			tr.vars = append(tr.vars, v)
		}
	}
}

func (tr *tracer) lookup(name string) *variable {
	for i := range slices.Backward(tr.vars) {
		if tr.vars[i].name == name {
			return &tr.vars[i]
		}
	}
	return nil
}

// cellOf is where an element or argument came from, which may be a source itself.
func (tr *tracer) cellOf(v reflect.Value, values []Value) cell {
	if own := tr.identify(v); own != nil {
		values = own
	}
	return cell{values, shared(v)}
}

// facts are what the text says of a branch: it holds whichever list is executed.
type facts struct {
	place             place
	text              string // as the template spells it
	isRange, hasElse  bool
	assigned          []string // variables that it sets
	touches           bool     // its lists may change a map
	breaks, continues bool     // its lists hold a break or continue of the loop around it
	lacks             [2]bool  // the list and the else hold the literal text that is looked for
}

// mutators change the map that they get.
var mutators = []string{"set", "unset", "merge", "mergeOverwrite", "mustMerge", "mustMergeOverwrite", "scratch"}

func mutates(name string) bool { return slices.Contains(mutators, strings.TrimPrefix(name, "sprig_")) }

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
		place: tr.t.at(n), text: text, isRange: n.Type() == parse.NodeRange, hasElse: b.ElseList != nil,
		assigned: assigned(n), lacks: [2]bool{tr.holds(b.List), tr.holds(b.ElseList)},
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

func (tr *tracer) holds(list *parse.ListNode) bool {
	found := false
	inspect(list, func(n parse.Node) {
		t, ok := n.(*parse.TextNode)
		found = found || ok && tr.missing(string(t.Text))
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
