package template

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// Kinds of a [Value].
const (
	ValueKey      = "key"      // one key of a config
	ValueKeys     = "keys"     // all keys at and below a prefix of a config
	ValueVersion  = "version"  // the generation of a config
	ValueMember   = "member"   // one member of a group
	ValueGroup    = "group"    // a group: which members it has, and their order
	ValueGroups   = "groups"   // a set of groups: which groups it has
	ValueElection = "election" // who leads
	ValueElement  = "element"  // the element of for_each
	ValueAgent    = "agent"    // the agent's own id and host
	ValueOutside  = "outside"  // the environment, a file, a credential, the clock
)

// Value names something that an execution read. It is comparable: equal values
// are one source.
type Value struct {
	Kind string `json:"kind"`
	// Name is the config, group ("SET/GROUP" in a set), set or election; the
	// function for ValueOutside.
	Name string `json:"name,omitempty"`
	// Path is the key or prefix, the znode of a member, the key of an element, or
	// the argument of the function.
	Path string `json:"path,omitempty"`
}

// String returns the value as the settings would refer to it.
func (v Value) String() string {
	switch v.Kind {
	case ValueKey:
		return "config." + v.Name + "/" + v.Path
	case ValueKeys:
		return "config." + v.Name + "/" + path.Join(v.Path, "*")
	case ValueVersion:
		return "config." + v.Name + " (version)"
	case ValueMember:
		return "group." + v.Name + " member " + v.Path
	case ValueElement:
		return v.Name + " element " + v.Path
	case ValueAgent:
		return ValueAgent
	case ValueOutside:
		return strings.TrimSpace(v.Name + " " + v.Path)
	}
	return v.Kind + "." + v.Name
}

// Covers reports whether a change of o is a change of v: a prefix covers its
// keys, and a group its members.
func (v Value) Covers(o Value) bool {
	switch {
	case v == o:
		return true
	case v.Kind == ValueKeys:
		return o.Name == v.Name && (o.Kind == ValueKey || o.Kind == ValueKeys) &&
			(v.Path == "" || o.Path == v.Path || strings.HasPrefix(o.Path, v.Path+"/"))
	case v.Kind == ValueGroup:
		return o.Kind == ValueMember && o.Name == v.Name
	case v.Kind == ValueGroups:
		return (o.Kind == ValueGroup || o.Kind == ValueMember) && strings.HasPrefix(o.Name, v.Name+"/")
	}
	return false
}

// Reason is a condition, a loop or a call that decided that text is in the
// output.
type Reason struct {
	Line int    // in the template
	Text string // "if eq .Status \"up\"", as the template spells it
	// Held is false for an else: the condition did not hold, or the loop had no
	// element.
	Held   bool
	Values []Value // that the condition looked at, or the loop went through
}

// Part is a piece of the output that one place of the template made.
type Part struct {
	From, To     int // bytes of the output
	Line, Column int // in the template
	Literal      bool
	Values       []Value // whose text stands here; none for literal text

	why *reasons
}

// reasons is a chain of reasons, innermost first. Parts share it.
type reasons struct {
	Reason

	outer *reasons
}

// Why returns the reasons why the part is in the output, outermost first.
func (p *Part) Why() []Reason {
	var list []Reason
	for r := p.why; r != nil; r = r.outer {
		list = append(list, r.Reason)
	}
	slices.Reverse(list)
	return list
}

// Unmet is a condition that left text out: text that was looked for, or text of
// an element that was looked for.
type Unmet struct {
	Reason

	// Of is the element that the loops around it stood at; empty outside of loops.
	Of []Value
}

// Blame is an output and where each byte of it came from.
type Blame struct {
	Data  []byte
	Parts []Part  // in order, without gaps: together they are Data
	Read  []Value // everything that was read, also what left no text
	Unmet []Unmet // with BlameOptions.Missing
	// Literals are the lines of the template whose literal text has
	// BlameOptions.Missing in it.
	Literals []int
}

// BlameOptions are the other inputs of [Template.Blame], next to the view.
type BlameOptions struct {
	Each    *Each       // the element of for_each
	ForEach view.Source // what Each is an element of
	Missing string      // text whose absence Unmet explains; empty: none
}

// Blame executes the template once more, and notes for every byte which place of
// the template wrote it and which values decided it. The bytes are those of
// [Template.Render]. Blame works on a separate parse tree, so Render does not pay
// for it. Render's errors and limits hold.
//
// A value counts for a byte if the template prints it there, or passes it through
// functions. A value that a condition or loop looks at is a reason for the bytes and
// variables inside, and for those that a break or continue leaves out. A loop over
// members or keys names its element. A text from several values names them all.
func (t *Template) Blame(ctx context.Context, v *view.View, o BlameOptions) (*Blame, error) {
	if err := o.Each.empty(t.elses.each); err != nil {
		return nil, &Error{Template: t.cfg.Name, Err: err}
	}
	tr, err := newTracer(t, o)
	if err != nil {
		return nil, err
	}
	tr.st.begin(v)
	done := make(chan result, 1) // Buffered: an abandoned execution still ends.
	go func() { done <- tr.st.run(o.Each) }()
	data, err := t.wait(ctx, tr.st, done)
	if err != nil {
		return nil, err
	}
	return &Blame{Data: data, Parts: tr.parts, Read: tr.all, Unmet: tr.unmet, Literals: tr.literals}, nil
}

// Line is one line of an output with the parts that reach into it.
type Line struct {
	Number   int // from 1
	From, To int // bytes of the output, with the line break
	Parts    []*Part
}

// Lines returns the lines of the output from first to last, both from 1; last 0
// is the end.
func (b *Blame) Lines(first, last int) []Line {
	var list []Line
	from, part := 0, 0
	for n := 1; from < len(b.Data) && (last == 0 || n <= last); n++ {
		to := len(b.Data)
		if i := bytes.IndexByte(b.Data[from:], '\n'); i >= 0 {
			to = from + i + 1
		}
		for part < len(b.Parts) && b.Parts[part].To <= from {
			part++
		}
		if n >= first {
			l := Line{Number: n, From: from, To: to}
			for i := part; i < len(b.Parts) && b.Parts[i].From < to; i++ {
				l.Parts = append(l.Parts, &b.Parts[i])
			}
			list = append(list, l)
		}
		from = to
	}
	return list
}

// TemplateLine is the line of the template that made the first byte of the part
// at or after an offset of the output: literal text goes over several lines.
func (b *Blame) TemplateLine(p *Part, at int) int {
	if !p.Literal || at <= p.From {
		return p.Line
	}
	return p.Line + bytes.Count(b.Data[p.From:min(at, p.To)], []byte("\n"))
}

// Values returns the values that a line names: those printed in it, in order.
func (l *Line) Values() []Value {
	var list []Value
	for _, p := range l.Parts {
		list = union(list, p.Values)
	}
	return list
}

// Why returns the reasons of a line, outermost first, each once. It leaves out reasons
// that apply only to the line break, which often belongs to a loop that begins there.
func (l *Line) Why() []Reason {
	var list []Reason
	seen := map[string]bool{}
	for i, p := range l.Parts {
		if i > 0 && max(p.From, l.From) == l.To-1 {
			continue
		}
		for _, r := range p.Why() {
			if id := fmt.Sprint(r); !seen[id] {
				seen[id] = true
				list = append(list, r)
			}
		}
	}
	return list
}

func union(list, more []Value) []Value {
	for _, v := range more {
		if !slices.Contains(list, v) {
			list = append(slices.Clip(list), v)
		}
	}
	return list
}

// maxValues is how many values stand by themselves where a loop adds one with
// each turn.
const maxValues = 256

// condense leaves out of a long list what the others cover.
func condense(list, by []Value) []Value {
	if len(list) <= maxValues {
		return list
	}
	return union(by, slices.DeleteFunc(slices.Clone(list), func(v Value) bool {
		return slices.ContainsFunc(by, func(b Value) bool { return b.Covers(v) })
	}))
}
