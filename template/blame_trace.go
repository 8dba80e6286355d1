package template

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

const maxUnmet = 200

// tracer follows one execution of a template: what each pipeline read, where
// each value went, and what was written when.
type tracer struct {
	t       *Template
	o       BlameOptions
	st      *state
	trees   map[string]*parse.Tree
	mutates bool // some template may change a map

	pipes *texttemplate.Template // has a template for each pipeline that was evaluated
	names map[parse.Node]string  // of those templates, by the node of the pipeline
	words map[*parse.PipeNode]*words
	facts map[parse.Node]*facts
	value reflect.Value                   // of the pipeline that was evaluated last
	turn  func(elem []reflect.Value) bool // of the innermost loop; true ends it

	vars  []variable // of the template that is executed, innermost last
	block *block     // the innermost if, with or loop; nil outside of them
	loop  *block     // the innermost loop of the template that is executed
	why   *reasons
	depth int // of templates
	open  []opened

	log      []Value // what was read since the outermost pipeline began
	all      []Value
	seen     map[Value]bool
	heap     []Value           // what went into maps and the scratch
	memberOf map[string]string // group of a member, by znode and czxid

	parts    []Part
	unmet    []Unmet
	literals []int
}

// opened is a pipeline whose evaluation has begun.
type opened struct {
	*words

	dot variable
	log int // length of the log at the beginning
}

// words are what a pipeline mentions.
type words struct {
	vars []string
	dot  bool
	heap bool // it may change a map, or uses the scratch
}

func newTracer(t *Template, o BlameOptions) (*tracer, error) {
	trees, err := parseTrees(t.cfg)
	if err != nil {
		return nil, err
	}
	tr := &tracer{
		t: t, o: o, trees: trees, mutates: slices.ContainsFunc(t.names, mutates), seen: map[Value]bool{}, memberOf: map[string]string{},
		names: map[parse.Node]string{}, words: map[*parse.PipeNode]*words{}, facts: map[parse.Node]*facts{},
	}
	tr.st = &state{t: t, tmpl: tr}
	funcs := tr.st.functions()
	for name, fn := range funcs {
		funcs[name] = tr.listen(name, fn)
	}
	funcs[variableFunc] = func(name string) reflect.Value { return tr.lookup(name).value }
	funcs[valueFunc] = func(v reflect.Value) reflect.Value { tr.value = v; return v }
	funcs[turnFunc] = func(elem ...reflect.Value) bool { return tr.turn(elem) }
	tr.pipes = t.newTemplate(funcs)
	for _, tree := range t.sortedTrees() {
		inspect(trees[tree.Name].Root, func(n parse.Node) {
			if text, ok := n.(*parse.TextNode); ok && tr.missing(string(text.Text)) {
				i := strings.Index(string(text.Text), o.Missing)
				tr.literals = append(tr.literals, placeOf(t.cfg.Source, int(text.Pos)+i).line)
			}
		})
	}
	return tr, nil
}

// missing reports whether one of the texts has the text that is looked for.
func (tr *tracer) missing(texts ...string) bool {
	return tr.o.Missing != "" && slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, tr.o.Missing) })
}

// The functions of the templates that evaluate a pipeline.
const (
	variableFunc = "__variable" // a variable of the template
	valueFunc    = "__value"    // notes the value
	turnFunc     = "__turn"     // walks a turn of a loop
)

// evaluate evaluates the pipeline of a node. An action that declares nothing prints it.
func (tr *tracer) evaluate(n parse.Node, p *parse.PipeNode, dot variable) (variable, error) {
	err := tr.run(n, p, dot)
	return tr.close(tr.value), err
}

// run begins the evaluation of a pipeline, which close ends.
func (tr *tracer) run(n parse.Node, p *parse.PipeNode, dot variable) error {
	tr.value = reflect.Value{}
	if p == nil {
		tr.open = append(tr.open, opened{words: &words{}, log: len(tr.log)})
		return nil
	}
	tr.open = append(tr.open, opened{tr.wordsOf(p), dot, len(tr.log)})
	if tr.names[n] == "" {
		tr.names[n] = fmt.Sprintf("pipeline %d", len(tr.names))
		tree := &parse.Tree{Name: tr.names[n], ParseName: tr.t.cfg.Name, Root: tr.around(n, p)}
		if _, err := tr.pipes.AddParseTree(tree.Name, tree); err != nil {
			return fmt.Errorf("add template %s: %w", tree.Name, err)
		}
	}
	return tr.pipes.ExecuteTemplate(tr.st.out, tr.names[n], dot.value)
}

// around is a template that evaluates the pipeline of a node: it declares the variables
// that the pipeline mentions, prints what an action prints, notes the value of others, and
// calls for each turn of a range.
func (tr *tracer) around(n parse.Node, p *parse.PipeNode) *parse.ListNode {
	list := &parse.ListNode{NodeType: parse.NodeList}
	for _, name := range tr.wordsOf(p).vars {
		declare := snippet(fmt.Sprintf("{{$__zkagent := %s %q}}", variableFunc, name))
		declare.Pipe.Decl[0].Ident[0] = name
		list.Nodes = append(list.Nodes, declare)
	}
	pipe := *p
	pipe.Decl = nil
	switch n := n.(type) {
	case *parse.ActionNode:
		if len(p.Decl) == 0 {
			list.Nodes = append(list.Nodes, n)
			return list
		}
	case *parse.RangeNode:
		text := "{{range $v := %s (1)}}{{if %s $v}}{{break}}{{end}}{{end}}"
		if len(p.Decl) == 2 {
			text = "{{range $k, $v := %s (1)}}{{if %s $k $v}}{{break}}{{end}}{{end}}"
		}
		r, loop := parseNode(fmt.Sprintf(text, valueFunc, turnFunc)).(*parse.RangeNode), *n
		r.Pipe.Cmds[0].Args[1] = &pipe
		loop.Pipe, loop.List, loop.ElseList = r.Pipe, r.List, nil
		list.Nodes = append(list.Nodes, &loop)
		return list
	}
	note := snippet(fmt.Sprintf("{{$__zkagent := %s (1)}}", valueFunc))
	note.Pipe.Cmds[0].Args[1] = &pipe
	list.Nodes = append(list.Nodes, note)
	return list
}

// wordsOf reads what a pipeline mentions, once.
func (tr *tracer) wordsOf(p *parse.PipeNode) *words {
	if w := tr.words[p]; w != nil {
		return w
	}
	w := &words{}
	inspect(p, func(n parse.Node) {
		switch n := n.(type) {
		case *parse.DotNode, *parse.FieldNode:
			w.dot = true
		case *parse.VariableNode:
			if !slices.Contains(w.vars, n.Ident[0]) {
				w.vars = append(w.vars, n.Ident[0])
			}
		case *parse.PipeNode:
			w.heap = w.heap || tr.changes(n)
		}
	})
	tr.words[p] = w
	return w
}

// listen wraps a function that reads something, so that the tracer hears of it.
func (tr *tracer) listen(name string, fn any) any {
	a, reads := accesses[name]
	_, outside := outsideFunctions()[name]
	if !reads && !outside && name != "agent" || name == "executeTemplate" { // What that executes reports for itself.
		return fn
	}
	return around(fn, func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value {
		arg := ""
		if len(args) > 0 && args[0].Kind() == reflect.String {
			arg = args[0].String()
		}
		out := fn(args)
		tr.read(name, a, reads, arg, out[0])
		return out
	})
}

// read notes that a function read something.
func (tr *tracer) read(name string, a access, reads bool, arg string, result reflect.Value) {
	switch {
	case name == "agent":
		tr.note(Value{Kind: ValueAgent})
	case name == "scratch", strings.HasPrefix(name, "spew_"): // These read nothing.
	case !reads:
		tr.note(Value{ValueOutside, name, arg})
	case a.version:
		tr.note(Value{Kind: ValueVersion, Name: arg})
	case a.kind == view.KindConfig:
		config, key, _ := strings.Cut(strings.Trim(arg, "/"), "/")
		kind := ValueKey
		if a.prefix {
			kind = ValueKeys
		}
		tr.note(Value{kind, config, key})
	case a.kind == view.KindElection:
		tr.note(Value{Kind: ValueElection, Name: arg})
	default:
		switch list := result.Interface().(type) {
		case []view.Member:
			tr.note(Value{Kind: ValueGroup, Name: arg})
			tr.know(arg, list)
		case []Group:
			tr.note(Value{Kind: ValueGroups, Name: arg})
			for _, g := range list {
				tr.know(arg+"/"+g.Name, g.Members)
			}
		default:
			tr.note(Value{Kind: string(a.kind), Name: arg})
		}
	}
}

func (tr *tracer) know(group string, list []view.Member) {
	for i := range list {
		tr.memberOf[memberID(&list[i])] = group
	}
}

func memberID(m *view.Member) string { return m.Znode + "@" + strconv.FormatInt(m.Czxid, 10) }

func (tr *tracer) note(v Value) {
	tr.log = append(tr.log, v)
	if !tr.seen[v] {
		tr.seen[v] = true
		tr.all = append(tr.all, v)
	}
}

// identify returns the source that a value of a loop is itself; nil when it is
// a part of something larger.
func (tr *tracer) identify(v reflect.Value) []Value {
	switch v := anyOf(v).(type) {
	case Pair:
		config, key, _ := strings.Cut(v.Path, "/")
		return []Value{{ValueKey, config, key}}
	case view.Member:
		if group, ok := tr.memberOf[memberID(&v)]; ok {
			return []Value{{ValueMember, group, v.Znode}}
		}
	case *view.Member:
		return tr.identify(reflect.ValueOf(*v))
	case Group:
		for _, m := range v.Members {
			if group, ok := tr.memberOf[memberID(&m)]; ok {
				return []Value{{Kind: ValueGroup, Name: group}}
			}
		}
	}
	return nil
}

func (tr *tracer) wanted(v reflect.Value) bool {
	switch v := anyOf(v).(type) {
	case Pair:
		return tr.missing(v.Path, v.Value)
	case view.Member:
		return tr.missing(v.ID, v.Node, v.Name, v.Znode, v.Host, v.Address())
	case Group:
		return tr.missing(v.Name)
	case string:
		return tr.missing(v)
	}
	return false
}

func shared(v reflect.Value) bool {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v.Kind() == reflect.Map || v.Kind() == reflect.Slice || v.Kind() == reflect.Pointer
}

func anyOf(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	return v.Interface()
}

// present are the values of the latest pipeline: what was read, and what came from
// variables and the dot.
func (tr *tracer) present() []Value {
	o := tr.open[len(tr.open)-1]
	list, heap := union(nil, tr.log[o.log:]), o.heap
	take := func(c cell) {
		list = union(list, c.values)
		heap = heap || c.shared
	}
	for _, name := range o.vars {
		if v := tr.lookup(name); v != nil {
			take(v.cell)
		}
	}
	if o.words.dot {
		take(o.dot.cell)
	}
	if heap {
		list = union(list, tr.heap)
	}
	return list
}

func (tr *tracer) close(value reflect.Value) variable {
	o, values := tr.open[len(tr.open)-1], tr.present()
	tr.open = tr.open[:len(tr.open)-1]
	tr.log = tr.log[:o.log]
	if len(tr.open) > 0 { // A template inside of a pipeline.
		tr.log = append(tr.log, values...)
		if from := tr.open[len(tr.open)-1].log; len(tr.log)-from > 1<<10 { // The log of a long execution.
			tr.log = append(tr.log[:from], union(nil, tr.log[from:])...)
		}
	}
	if o.heap {
		tr.heap = union(tr.heap, values)
		for r := tr.why; r != nil; r = r.outer {
			tr.heap = union(tr.heap, r.Values)
		}
	}
	return variable{value: value, cell: cell{values, shared(value)}}
}

func (tr *tracer) add(n parse.Node, from int, literal bool, values []Value) {
	to := tr.st.out.buf.Len()
	if from == to || !tr.st.out.root {
		return
	}
	p := tr.t.at(n)
	tr.parts = append(tr.parts, Part{From: from, To: to, Line: p.line, Column: p.column, Literal: literal, Values: values, why: tr.why})
}
