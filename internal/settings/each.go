package settings

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// eachValue is the variable "each" of one element: each.key, and each.value
// as strings, numbers and lists of objects.
func eachValue(e *template.Each) cty.Value {
	return cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(e.Key), "value": elementValue(e.Value)})
}

// elementValue converts an element of a for_each.
func elementValue(v any) cty.Value {
	switch v := v.(type) {
	case string:
		return cty.StringVal(v)
	case view.Member:
		return memberValue(v)
	case []view.Member:
		values := make([]cty.Value, len(v))
		for i, m := range v {
			values[i] = memberValue(m)
		}
		return cty.TupleVal(values)
	}
	return cty.NullVal(cty.DynamicPseudoType)
}

func memberValue(m view.Member) cty.Value {
	labels := cty.MapValEmpty(cty.String)
	if len(m.Labels) > 0 {
		values := map[string]cty.Value{}
		for k, v := range m.Labels {
			values[k] = cty.StringVal(v)
		}
		labels = cty.MapVal(values)
	}
	return cty.ObjectVal(map[string]cty.Value{
		"id": cty.StringVal(m.ID), "name": cty.StringVal(m.Name), "node": cty.StringVal(m.Node), "znode": cty.StringVal(m.Znode),
		"host": cty.StringVal(m.Host), "port": cty.NumberIntVal(int64(m.Port)), "address": cty.StringVal(m.Address()),
		"weight": cty.NumberIntVal(int64(m.Weight)), "status": cty.StringVal(m.Status), "labels": labels,
	})
}

// destination is the path of a rendered file: fixed, or one for each element.
type destination struct {
	text  string // as the settings spell it
	fixed string // the path, when it does not depend on the element
	at    hcl.Range
	eval  func(*template.Each) (string, error)
}

// destination reads the destination of a template.
func (s *Settings) destination(expr expression, forEach bool) destination {
	d := destination{at: expr.At}
	if !expr.Set {
		return d
	}
	ctx := s.context(d.at.Filename, vars{each: forEach}.unknown())
	got, diags := s.evaluate(expr, ctx)
	if diags.HasErrors() {
		return d
	}
	d.text = s.text(d.at)
	got, _ = got.UnmarkDeep()
	got, err := convert.Convert(got, cty.String)
	if err != nil || got.IsKnown() && got.IsNull() {
		s.errorAt(d.at, "Incorrect value type", "%q must be a string.", expr.Name)
		return d
	}
	path := func(text string) (string, error) { return s.destinationPath(d.at, text) }
	if got.IsKnown() {
		fixed, err := path(got.AsString())
		if err != nil {
			s.errorAt(d.at, "Invalid destination", "%v.", err)
			return d
		}
		if forEach {
			s.warnAt(d.at, "One destination for all elements", "With for_each each element has a file; use ${each.key} in the destination, or there may be one element only.")
		}
		d.fixed, d.text = fixed, fixed
		d.eval = func(*template.Each) (string, error) { return fixed, nil }
		return d
	}
	d.eval = func(e *template.Each) (string, error) {
		vals := map[string]cty.Value{}
		if e != nil {
			vals["each"] = eachValue(e)
		}
		return pathOf(expr, &hcl.EvalContext{Functions: ctx.Functions, Variables: vals}, path)
	}
	return d
}

// pathOf evaluates a destination for one element. The key of an element comes
// from ZooKeeper: it must not lead out of the directory that was meant.
func pathOf(expr hcl.Expression, ctx *hcl.EvalContext, path func(string) (string, error)) (string, error) {
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return "", fmt.Errorf("evaluate destination: %s", Line(diags[0]))
	}
	v, err := convert.Convert(v, cty.String)
	if err != nil || v.IsNull() || !v.IsKnown() {
		return "", fmt.Errorf("evaluate destination at %s: it is not a string", place(expr.Range()))
	}
	return path(v.AsString())
}

func (s *Settings) destinationPath(at hcl.Range, text string) (string, error) {
	if text == "" || strings.HasSuffix(text, "/") {
		return "", fmt.Errorf("%q is not the path of a file", text)
	}
	for element := range strings.SplitSeq(text, "/") {
		if element == ".." {
			return "", fmt.Errorf("%q leads upwards with \"..\"", text)
		}
	}
	for _, r := range text {
		if r < 0x20 || r == 0x7f {
			return "", fmt.Errorf("%q has a control character", text)
		}
	}
	return filepath.Clean(relative(at, text)), nil
}
