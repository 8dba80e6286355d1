package template

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// maxUnmet bounds the conditions that one execution reports.
const maxUnmet = 200

// tracer follows one execution of a template: what each pipeline read, where
// each value went, and what was written when.
type tracer struct {
	t    *Template
	o    BlameOptions
	m    mapper
	st   *state
	open []opened // pipelines that are being evaluated, outermost first
	ctl  []block  // ifs, withs and loops around the present place
	call []frame  // templates that are being executed

	log      []Value // what was read since the outermost pipeline began
	all      []Value
	seen     map[Value]bool
	heap     []Value           // what went into maps and the scratch
	memberOf map[string]string // group of a member, by znode and czxid

	parts    []Part
	text     int // site of the literal text being written; -1: none
	unmet    []Unmet
	literals []int
}

// opened is a pipeline whose evaluation has begun.
type opened struct {
	site int
	log  int // length of the log at the beginning
	at   int // of the output
}

// block is an if, with or loop that was entered.
type block struct {
	site   int
	values []Value // of the pipeline
	dot    cell    // around it
	why    *reasons
	broken *Reason // of a loop: what may have ended it early, for all further turns
	passed []Value // of a loop: what may have ended this turn early
	left   []Value // and all turns
	wanted bool    // its element is the one that is looked for
	inside bool    // that of a loop around it is
	of     []Value // its element
}

// frame is one execution of a template.
type frame struct {
	vars   map[int]cell
	dot    cell
	dollar cell
	ctl    int // controls of the caller
	why    *reasons
}

// cell is where a value came from.
type cell struct {
	values []Value
	shared bool // a map or list, which others may change
}

func newTracer(t *Template, o BlameOptions) *tracer {
	return &tracer{
		t: t, o: o, m: mapper{source: t.cfg.Source, missing: o.Missing, mutates: slices.ContainsFunc(t.names, mutates)}, text: -1,
		seen: map[Value]bool{}, memberOf: map[string]string{},
	}
}

// executor makes an executor with a marked parse tree of its own.
func (tr *tracer) executor() (*executor, error) {
	trees, err := parseTrees(tr.t.cfg)
	if err != nil {
		return nil, err
	}
	st := &state{t: tr.t}
	table := functionTable()
	funcs := texttemplate.FuncMap{
		markText: tr.onText, markBegin: tr.onBegin, markEnd: tr.onEnd, markThen: tr.onThen, markTurn: tr.onTurn,
		markElse: tr.onElse, markDone: tr.onDone, markEnter: tr.onEnter, markLeave: tr.onLeave,
	}
	maps.Copy(funcs, st.printers())
	for _, name := range tr.t.names {
		if f, ok := table[name]; ok {
			funcs[name] = tr.listen(name, f.bind(st))
		}
	}
	missing := "missingkey=zero"
	if !tr.t.cfg.MissingKeyOK {
		missing = "missingkey=error"
	}
	root := texttemplate.New(tr.t.cfg.Name).Funcs(funcs).Option(missing)
	for _, name := range slices.Sorted(maps.Keys(trees)) {
		tree := trees[name]
		if tree.Root == nil {
			continue
		}
		tr.findLiterals(tree)
		tr.m.template(tree)
		if _, err := root.AddParseTree(tree.Name, tree); err != nil {
			return nil, fmt.Errorf("add template %s: %w", tree.Name, err)
		}
	}
	st.tmpl = root
	return &executor{root, st}, nil
}

// findLiterals finds the lines with the text that is looked for.
func (tr *tracer) findLiterals(tree *parse.Tree) {
	if tr.o.Missing == "" {
		return
	}
	inspect(tree.Root, func(n parse.Node) {
		if t, ok := n.(*parse.TextNode); ok {
			if i := strings.Index(string(t.Text), tr.o.Missing); i >= 0 {
				tr.literals = append(tr.literals, placeOf(tr.t.cfg.Source, int(t.Pos)+i).line)
			}
		}
	})
}

// listen wraps a function that reads something, so that the tracer hears of it.
func (tr *tracer) listen(name string, fn any) any {
	a, reads := accesses[name]
	_, outside := outsideFunctions()[name]
	if !reads && !outside && name != "agent" {
		return fn
	}
	v := reflect.ValueOf(fn)
	t := v.Type()
	return reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
		call := v.Call
		if t.IsVariadic() {
			call = v.CallSlice
		}
		if name == "executeTemplate" { // What it executes reports for itself.
			return call(args)
		}
		arg := ""
		if len(args) > 0 && args[0].Kind() == reflect.String {
			arg = args[0].String()
		}
		out := call(args)
		tr.read(name, a, reads, arg, out[0])
		return out
	}).Interface()
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
		tr.readGroup(arg, a.kind, result.Interface())
	}
}

// readGroup notes a group or a set, and whose members they are.
func (tr *tracer) readGroup(name string, kind view.Kind, result any) {
	switch list := result.(type) {
	case []view.Member:
		tr.note(Value{Kind: ValueGroup, Name: name})
		tr.know(name, list)
	case []Group:
		tr.note(Value{Kind: ValueGroups, Name: name})
		for _, g := range list {
			tr.know(name+"/"+g.Name, g.Members)
		}
	default:
		tr.note(Value{Kind: string(kind), Name: name})
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
func (tr *tracer) identify(v any) []Value {
	switch v := v.(type) {
	case Pair:
		config, key, _ := strings.Cut(v.Path, "/")
		return []Value{{ValueKey, config, key}}
	case view.Member:
		if group, ok := tr.memberOf[memberID(&v)]; ok {
			return []Value{{ValueMember, group, v.Znode}}
		}
	case *view.Member:
		return tr.identify(*v)
	case Group:
		for _, m := range v.Members {
			if group, ok := tr.memberOf[memberID(&m)]; ok {
				return []Value{{Kind: ValueGroup, Name: group}}
			}
		}
	}
	return nil
}

// wanted reports whether an element is the one that is looked for.
func (tr *tracer) wanted(v any) bool {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, tr.o.Missing) })
	}
	if tr.o.Missing == "" {
		return false
	}
	switch v := v.(type) {
	case Pair:
		return has(v.Path, v.Value)
	case view.Member:
		return has(v.ID, v.Node, v.Name, v.Znode, v.Host, v.Address())
	case Group:
		return has(v.Name)
	case string:
		return has(v)
	}
	return false
}

func shared(v any) bool {
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Slice, reflect.Pointer:
		return true
	default:
		return false
	}
}

func (tr *tracer) frame() *frame { return &tr.call[len(tr.call)-1] }

// mentions are the values that a pipeline takes from variables and the dot.
func (tr *tracer) mentions(s *site) []Value {
	var list []Value
	heap := false
	take := func(c cell) {
		list = union(list, c.values)
		heap = heap || c.shared
	}
	f := tr.frame()
	for _, id := range s.vars {
		take(f.vars[id])
	}
	if s.dot {
		take(f.dot)
	}
	if s.dollar {
		take(f.dollar)
	}
	if heap || s.heap {
		list = union(list, tr.heap)
	}
	return list
}

// close ends the evaluation of the newest pipeline and returns its values.
func (tr *tracer) close() []Value {
	o := tr.open[len(tr.open)-1]
	tr.open = tr.open[:len(tr.open)-1]
	s := &tr.m.sites[o.site]
	values := union(union(nil, tr.log[o.log:]), tr.mentions(s))
	tr.log = tr.log[:o.log]
	if len(tr.open) > 0 { // A template inside of a pipeline, or called by one.
		tr.log = append(tr.log, values...)
		tr.fold()
	}
	if s.heap {
		tr.heap = union(union(tr.heap, values), tr.reasonValues())
	}
	return values
}

// fold keeps the log of a long execution short.
func (tr *tracer) fold() {
	from := tr.open[len(tr.open)-1].log
	if len(tr.log)-from > 1<<10 {
		tr.log = append(tr.log[:from], union(nil, tr.log[from:])...)
	}
}

// reasonValues are the values of all conditions around the present place.
func (tr *tracer) reasonValues() []Value {
	var list []Value
	for r := tr.why(); r != nil; r = r.outer {
		list = union(list, r.Values)
	}
	return list
}

func (tr *tracer) why() *reasons {
	if len(tr.call) == 0 {
		return nil
	}
	return tr.frame().why
}

// add adds a part of the output.
func (tr *tracer) add(s *site, from, to int, literal bool, values []Value) {
	if from == to {
		return
	}
	tr.parts = append(tr.parts, Part{
		From: from, To: to, Line: s.place.line, Column: s.place.column, Literal: literal, Values: values, why: tr.why(),
	})
}

// closeText ends the literal text that was being written.
func (tr *tracer) closeText() {
	if tr.text < 0 || !tr.st.out.root {
		return
	}
	from := 0
	if n := len(tr.parts); n > 0 {
		from = tr.parts[n-1].To
	}
	s := &tr.m.sites[tr.text]
	tr.text = -1
	tr.add(s, from, tr.st.out.buf.Len(), true, nil)
}
