package template

import (
	"fmt"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

// How a tracer follows the flow of a template: the rewritten template calls one of these
// functions before each text, around each pipeline, at each turn of a loop, and at both
// ends of an if, a with, a range and a template.

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
