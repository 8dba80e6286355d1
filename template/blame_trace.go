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

// step is the beginning of each mark: the execution may have been asked to end.
func (tr *tracer) step() error {
	if reason := tr.st.stop.Load(); reason != nil {
		return &valueError{text: (*reason).Error(), class: *reason, pos: -1}
	}
	tr.closeText()
	return nil
}

func (tr *tracer) onText(n int) (string, error) {
	err := tr.step()
	if tr.st.out.root {
		tr.text = n
	}
	return "", err
}

func (tr *tracer) onBegin(n int) (string, error) {
	err := tr.step()
	tr.open = append(tr.open, opened{n, len(tr.log), tr.st.out.buf.Len()})
	return "", err
}

// onEnd ends an action, or the call of a template.
func (tr *tracer) onEnd(n int, declared ...any) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	s := &tr.m.sites[n]
	at := tr.open[len(tr.open)-1].at
	values := tr.close()
	if _, isCall := s.node.(*parse.TemplateNode); !isCall && tr.st.out.root {
		tr.add(s, at, tr.st.out.buf.Len(), false, values)
	}
	for _, id := range s.declares {
		tr.frame().vars[id] = cell{values, len(declared) > 0 && shared(declared[0])}
	}
	return "", nil
}

// onThen enters the body of an if or with.
func (tr *tracer) onThen(n int, dot any) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	s := &tr.m.sites[n]
	values := tr.enter(n, true)
	if _, isWith := s.node.(*parse.WithNode); isWith {
		c := cell{values, shared(dot)}
		if own := tr.identify(dot); own != nil {
			c.values = own
		}
		tr.frame().dot = c
	}
	return "", nil
}

// enter begins a branch, and notes what it leaves out.
func (tr *tracer) enter(n int, held bool) []Value {
	values := tr.close()
	s, f := &tr.m.sites[n], tr.frame()
	c := block{site: n, values: values, dot: f.dot, why: f.why}
	if len(tr.ctl) > 0 {
		top := tr.ctl[len(tr.ctl)-1]
		c.wanted, c.inside, c.of = top.wanted, top.wanted, top.of
	}
	tr.ctl = append(tr.ctl, c)
	r := Reason{Line: s.place.line, Text: s.text, Held: held, Values: values}
	lacks, other := s.lacks[1], s.hasElse
	if !held {
		lacks, other = s.lacks[0], true
	}
	if (lacks || c.wanted && !s.loop && other) && len(tr.unmet) < maxUnmet {
		tr.unmet = append(tr.unmet, Unmet{r, c.of})
	}
	f.why = &reasons{r, f.why}
	if loop := tr.loop(); loop != nil && (s.breaks || s.continues) {
		loop.passed = union(loop.passed, values)
		loop.left = condense(union(loop.left, values), loop.values)
		if s.breaks {
			if loop.broken == nil {
				loop.broken = &Reason{Line: r.Line, Text: r.Text}
			}
			loop.broken.Values = condense(union(loop.broken.Values, values), loop.values)
		}
	}
	return values
}

// loop is the innermost loop around the newest block; nil without one.
func (tr *tracer) loop() *block {
	for i := len(tr.ctl) - 2; i >= tr.frame().ctl; i-- {
		if c := &tr.ctl[i]; tr.m.sites[c.site].loop {
			return c
		}
	}
	return nil
}

// onTurn begins one turn of a loop.
func (tr *tracer) onTurn(n int, dot any) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	s, f := &tr.m.sites[n], tr.frame()
	if k := len(tr.open); k > 0 && tr.open[k-1].site == n {
		tr.enter(n, true)
	}
	tr.unwind(n)
	c := &tr.ctl[len(tr.ctl)-1]
	tr.decide(s, c.left) // By what the turn before may have passed over.
	f.why = &reasons{Reason{Line: s.place.line, Text: s.text, Held: true, Values: c.values}, c.why}
	if c.broken != nil {
		f.why = &reasons{*c.broken, f.why}
	}
	f.dot = cell{c.values, shared(dot)}
	c.of, c.passed, c.wanted = nil, nil, c.inside || tr.wanted(dot)
	if own := tr.identify(dot); own != nil {
		f.dot.values, c.of = own, own
	}
	for i, id := range s.declares {
		v := f.dot
		if i == 0 && len(s.declares) == 2 { // The index or key.
			v = cell{values: c.values}
		}
		f.vars[id] = v
	}
	return "", nil
}

// onElse enters an else.
func (tr *tracer) onElse(n int) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	values := tr.enter(n, false)
	for _, id := range tr.m.sites[n].declares {
		tr.frame().vars[id] = cell{values: values}
	}
	return "", nil
}

// onDone leaves an if, with or loop.
func (tr *tracer) onDone(n int) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	if k := len(tr.open); k > 0 && tr.open[k-1].site == n {
		tr.enter(n, true) // A loop over nothing, without an else.
	}
	tr.unwind(n)
	s, f := &tr.m.sites[n], tr.frame()
	c := tr.ctl[len(tr.ctl)-1]
	loop := tr.loop()
	tr.ctl = tr.ctl[:len(tr.ctl)-1]
	tr.decide(s, union(c.values, c.left))
	f.dot, f.why = c.dot, c.why
	if loop != nil && (s.breaks || s.continues) { // The rest of the turn is there because nothing left it.
		f.why = &reasons{Reason{Line: s.place.line, Text: s.text, Values: loop.passed}, c.why}
	}
	return "", nil
}

// unwind leaves what a break or continue has left.
func (tr *tracer) unwind(n int) {
	for len(tr.ctl) > tr.frame().ctl+1 && tr.ctl[len(tr.ctl)-1].site != n {
		c := tr.ctl[len(tr.ctl)-1]
		tr.ctl = tr.ctl[:len(tr.ctl)-1]
		tr.decide(&tr.m.sites[c.site], c.values)
		f := tr.frame()
		f.dot, f.why = c.dot, c.why
	}
}

// decide notes that values decided whether the bodies of a site set variables
// and changed maps.
func (tr *tracer) decide(s *site, by []Value) {
	f := tr.frame()
	for _, id := range s.changes {
		v := f.vars[id]
		f.vars[id] = cell{union(v.values, by), v.shared}
	}
	if s.touches {
		tr.heap = union(tr.heap, by)
	}
}

// onEnter begins a template.
func (tr *tracer) onEnter(_ int, dot any) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	if len(tr.call) >= MaxDepth {
		return "", &valueError{text: fmt.Sprintf("%v: more than %d", ErrDepth, MaxDepth), class: ErrDepth, pos: -1}
	}
	f := frame{vars: map[int]cell{}, ctl: len(tr.ctl)}
	switch k := len(tr.open); {
	case k > 0:
		o := tr.open[k-1]
		s := &tr.m.sites[o.site]
		values := union(union(nil, tr.log[o.log:]), tr.mentions(s))
		f.dot = cell{values, shared(dot)}
		f.why = tr.frame().why
		if s.text != "" {
			f.why = &reasons{Reason{Line: s.place.line, Text: s.text, Held: true}, f.why}
		}
	case tr.o.Each != nil:
		v := Value{ValueElement, tr.o.ForEach.String(), tr.o.Each.Key}
		tr.note(v)
		f.dot = cell{[]Value{v}, true}
		if list, ok := tr.o.Each.Value.([]view.Member); ok {
			tr.know(tr.o.ForEach.Name+"/"+tr.o.Each.Key, list)
		}
	}
	if own := tr.identify(dot); own != nil {
		f.dot.values = own
	}
	f.dollar = f.dot
	tr.call = append(tr.call, f)
	return "", nil
}

// onLeave ends a template.
func (tr *tracer) onLeave(int) (string, error) {
	if err := tr.step(); err != nil {
		return "", err
	}
	if len(tr.call) > 1 {
		tr.ctl = tr.ctl[:tr.frame().ctl]
		tr.call = tr.call[:len(tr.call)-1]
	}
	return "", nil
}
