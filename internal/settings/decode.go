package settings

import (
	"fmt"
	"iter"
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// decode decodes the body of the block at a place into a raw struct: it evaluates
// the arguments, and appends the blocks to those that the
// struct has, so that several files fill one struct.
//
// gohcl does the same, but does not follow embedded structs: every block would
// repeat the arguments that it shares with others. Its way around, a "remain" field,
// loses the suggestions for misspelled names.
func (s *Settings) decode(body hcl.Body, at hcl.Range, raw reflect.Value) {
	schema := &hcl.BodySchema{}
	for f, kind := range tagged(raw.Type()) {
		switch name := tagName(f); kind {
		case "", "optional":
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
		case "block":
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name, LabelNames: labels(blockType(f.Type))})
		case "remain": // decoded later
			raw.FieldByIndex(f.Index).Set(reflect.ValueOf(body))
			return
		}
	}
	content, diags := body.Content(schema)
	s.add(diags...)
	blocks := content.Blocks.ByType()
	for f, kind := range tagged(raw.Type()) {
		field := raw.FieldByIndex(f.Index)
		switch name := tagName(f); kind {
		case "", "optional":
			var expr hcl.Expression
			if a := content.Attributes[name]; a != nil {
				expr = a.Expr
			}
			s.readField(field, ruleOf(f), expr, at)
		case "block":
			s.decodeBlocks(blocks[name], field)
		}
	}
}

// decodeBlocks decodes the blocks of one type into a field: a slice of pointers, or
// a pointer for a block that stands once.
func (s *Settings) decodeBlocks(blocks hcl.Blocks, field reflect.Value) {
	for _, block := range blocks {
		raw, errs := reflect.New(blockType(field.Type())), len(s.Diagnostics.Errs())
		s.decode(block.Body, block.DefRange, raw.Elem())
		label := 0
		for f, kind := range tagged(raw.Elem().Type()) {
			set := func(v any) { raw.Elem().FieldByIndex(f.Index).Set(reflect.ValueOf(v)) }
			switch kind {
			case "def_range":
				set(block.DefRange)
			case "invalid":
				set(len(s.Diagnostics.Errs()) > errs)
			case "label":
				set(block.Labels[label])
				label++
			case "label_range":
				set(block.LabelRanges[0])
			}
		}
		switch {
		case field.Kind() == reflect.Slice:
			field.Set(reflect.Append(field, raw))
		case field.IsNil():
			field.Set(raw)
		default:
			first, _ := reflect.TypeAssert[hcl.Range](field.Elem().FieldByName("At"))
			s.errorAt(block.DefRange, fmt.Sprintf("Duplicate %s block", block.Type), "Only one %s block is allowed. Another was defined at %s.", block.Type, place(first))
		}
	}
}

// orAbsent is a block, or one whose arguments have their defaults when it does not stand
// in the settings.
func orAbsent[T any](s *Settings, b *T) *T {
	if b != nil {
		return b
	}
	b = new(T)
	raw := reflect.ValueOf(b).Elem()
	for f := range tagged(raw.Type()) {
		ru := ruleOf(f)
		ru.required = false
		s.readField(raw.FieldByIndex(f.Index), ru, nil, hcl.Range{})
	}
	return b
}

// tagged yields the fields with an hcl tag, those of embedded structs too, and what
// kind each is: "" and "optional" are attributes.
func tagged(t reflect.Type) iter.Seq2[reflect.StructField, string] {
	return func(yield func(reflect.StructField, string) bool) {
		for _, f := range reflect.VisibleFields(t) {
			tag, ok := f.Tag.Lookup("hcl")
			if _, kind, _ := strings.Cut(tag, ","); ok && !yield(f, kind) {
				return
			}
		}
	}
}

func tagName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("hcl"), ",")
	return name
}

func labels(t reflect.Type) []string {
	var names []string
	for f, kind := range tagged(t) {
		if kind == "label" {
			names = append(names, tagName(f))
		}
	}
	return names
}
