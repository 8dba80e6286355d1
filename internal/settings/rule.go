package settings

import (
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// rule is what the tags of an attribute say:
//
//	hcl:"name,optional"  its name; without ",optional" it is required
//	is:"duration"        what it is (see the reader's methods)
//	default:"10s"        what it is when it is absent
//	min:"1s" max:"1h"    its limits, in its own notation
//	enum:"a|b"           its allowed values
//	doc:"..."            what it means, for the reference
type rule struct {
	name     string
	required bool
	is       string
	def      string
	min, max string
	enum     []string
	doc      string
}

// ruleOf reads the rule of one field of a raw struct.
func ruleOf(f reflect.StructField) rule {
	name, option, _ := strings.Cut(f.Tag.Get("hcl"), ",")
	r := rule{
		name: name, required: option == "", is: f.Tag.Get("is"), def: f.Tag.Get("default"),
		min: f.Tag.Get("min"), max: f.Tag.Get("max"), doc: f.Tag.Get("doc"),
	}
	if e := f.Tag.Get("enum"); e != "" {
		r.enum = strings.Split(e, "|")
	}
	return r
}

// reader reads the attributes of one raw struct under the rules of its tags,
// and reports what is wrong with them.
type reader struct {
	s   *Settings
	raw reflect.Value // the struct
	at  hcl.Range     // the block, for what is missing
	ctx *hcl.EvalContext
}

// read returns a reader for the raw struct that raw points to, whose block
// stands at the given place.
func (s *Settings) read(raw any, at hcl.Range) *reader {
	return &reader{s: s, raw: reflect.ValueOf(raw).Elem(), at: at, ctx: s.context(at.Filename, nil)}
}

// rule finds the rule of the attribute that p points to, a field of the raw
// struct. It panics when p points elsewhere.
func (r *reader) rule(p *hcl.Expression) rule {
	for f := range tagged(r.raw.Type()) {
		if at, ok := reflect.TypeAssert[*hcl.Expression](r.raw.FieldByIndex(f.Index).Addr()); ok && at == p {
			return ruleOf(f)
		}
	}
	panic("settings: attribute of another block")
}
