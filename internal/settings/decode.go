package settings

import (
	"fmt"
	"reflect"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// decoder reads one block. Each call names an argument or a kind of block that it takes,
// says what that is, and returns what the settings have. The errors about other names and
// the reference come from the same calls.
//
// gohcl and hcldec need a struct or a specification beside the code that uses the values:
// each argument would stand twice.
type decoder struct {
	s       *Settings
	body    hcl.Body // nil: there is no such block, and its arguments have their defaults
	at      hcl.Range
	label   string
	labelAt hcl.Range
	shape   *shape
	inner   []*decoder         // the blocks in it that were read
	read    map[string]written // the arguments that were read
	common  bool               // the arguments to come are those of every kind of this block
}

// shape is what blocks of a type take.
type shape struct {
	name, label, doc string // label: what labels are called; empty: there are none
	args             []rule
	blocks           []*shape
	kinds            []*shape // what the label picks, if it does
}

// blocks reads the blocks of a type.
func (d *decoder) blocks(name, label, doc string) []*decoder {
	taken := &shape{name: name, label: label, doc: doc}
	d.shape.blocks = append(d.shape.blocks, taken)
	if d.s.describing {
		return []*decoder{{s: d.s, shape: taken}}
	}
	var list []*decoder
	for _, b := range d.find(name, label) {
		next := &decoder{s: d.s, body: b.Body, at: b.DefRange, shape: &shape{}}
		if label != "" {
			next.label, next.labelAt = b.Labels[0], b.LabelRanges[0]
		}
		list = append(list, next)
	}
	d.inner = append(d.inner, list...)
	return list
}

// kinds reads the blocks of a type whose label picks what they take.
func (d *decoder) kinds(name, doc string, kinds []string) []*decoder {
	list := d.blocks(name, "kind", doc)
	if d.s.describing {
		list = nil
		for _, kind := range kinds {
			one := &shape{name: fmt.Sprintf("%s %q", name, kind), doc: fmt.Sprintf("A %s of the kind %s.", name, kind)}
			taken := d.shape.blocks[len(d.shape.blocks)-1]
			taken.kinds = append(taken.kinds, one)
			list = append(list, &decoder{s: d.s, label: kind, shape: one})
		}
	}
	return list
}

// find lists the blocks of a type; end reports the errors in their labels.
func (d *decoder) find(name, label string) hcl.Blocks {
	if d.body == nil {
		return nil
	}
	content, _, _ := d.body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{headerOf(name, label)}})
	return content.Blocks
}

func headerOf(name, label string) hcl.BlockHeaderSchema {
	h := hcl.BlockHeaderSchema{Type: name}
	if label != "" {
		h.LabelNames = []string{label}
	}
	return h
}

// once reads a block that stands at most once. If it stands more often, it returns all of
// them, so that what is wrong within them is reported, too.
func (d *decoder) once(name, doc string) []*decoder {
	list := d.blocks(name, "", doc)
	for i, b := range list {
		if i > 0 {
			d.s.errorAt(b.at, fmt.Sprintf("Duplicate %s block", name), "Only one %s block is allowed. Another was defined at %s.", name, place(list[0].at))
		}
	}
	return list
}

// always is once; without the block its arguments have their defaults.
func (d *decoder) always(name, doc string) []*decoder {
	list := d.once(name, doc)
	if len(list) == 0 {
		return []*decoder{{s: d.s, shape: &shape{}}}
	}
	return list
}

// end reports what the block, and the blocks in it, have and do not take.
func (d *decoder) end() {
	for _, inner := range d.inner {
		inner.end()
	}
	if d.body == nil {
		return
	}
	schema := &hcl.BodySchema{}
	for _, a := range d.shape.args {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: a.name})
	}
	for _, b := range d.shape.blocks {
		schema.Blocks = append(schema.Blocks, headerOf(b.name, b.label))
	}
	_, diags := d.body.Content(schema)
	d.s.add(diags...)
	d.body = nil
}

// has reports whether an argument stands in the block, and is not null.
func (d *decoder) has(name string) bool { return d.attribute(name) != nil }

// set is has for an argument that was read: its value is not null.
func (d *decoder) set(name string) bool { return d.read[name].Set }

// place is where an argument that was read has its value; the block, if it is not set.
func (d *decoder) place(name string) hcl.Range { return d.read[name].At }

func (d *decoder) attribute(name string) hcl.Expression {
	if d.body == nil {
		return nil
	}
	content, _, _ := d.body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: name}}})
	a := content.Attributes[name]
	if a == nil {
		return nil
	}
	if len(a.Expr.Variables()) == 0 {
		if v, diags := a.Expr.Value(nil); !diags.HasErrors() && v.IsNull() {
			return nil
		}
	}
	return a.Expr
}

// expression reads an argument that is evaluated later.
func (d *decoder) expression(name string, tag reflect.StructTag) expression {
	ru := ruleOf(name, tag)
	ru.common = d.common
	d.shape.args = append(d.shape.args, ru)
	e := expression{d.attribute(ru.name), written{At: d.at, Name: ru.name}}
	switch {
	case e.Expression != nil:
		e.Set, e.At = true, e.Range()
	case ru.required && (d.body != nil || d.s.describing):
		d.missing(ru.name)
	}
	d.note(e.written)
	return e
}

func (d *decoder) missing(name string) {
	d.s.errorAt(d.at, "Missing required argument", "The argument %q is required, but no definition was found.", name)
}

func (d *decoder) note(w written) {
	if d.read == nil {
		d.read = map[string]written{}
	}
	d.read[w.Name] = w
}

// reader evaluates an argument.
func (d *decoder) reader(name string, tag reflect.StructTag) *reader {
	e := d.expression(name, tag)
	r := &reader{rule: d.shape.args[len(d.shape.args)-1], written: e.written, s: d.s}
	if e.Expression == nil {
		return r
	}
	v, diags := d.s.evaluate(e, d.s.context(e.At.Filename, nil))
	switch r.Set = diags.HasErrors() || !v.IsNull(); {
	case !r.Set && r.required:
		d.missing(r.name)
	case r.Set && !diags.HasErrors():
		r.v = v
	}
	d.note(r.written)
	return r
}

// The arguments by the type of their values. One that is not set or wrong has its default.

func (d *decoder) number(name string, tag reflect.StructTag) int {
	return limited(d, name, tag, cty.Number, "Invalid number", wholeNumber)
}

func (d *decoder) duration(name string, tag reflect.StructTag) time.Duration {
	return limited(d, name, tag, cty.String, "Invalid duration", parseDuration)
}

func (d *decoder) size(name string, tag reflect.StructTag) int64 {
	return limited(d, name, tag, cty.String, "Invalid size", parseSize)
}
