package settings

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// isSet reports whether the attribute is written and not null.
func (r *reader) isSet(p *hcl.Expression) bool {
	if *p == nil {
		return false
	}
	v, diags := (*p).Value(r.ctx)
	r.s.missing = nil
	return diags.HasErrors() || !v.IsNull()
}

// where is the place of the attribute's value, or of the block without one.
func (r *reader) where(p *hcl.Expression) hcl.Range {
	if *p == nil || (*p).Range().Filename == "" {
		return r.at
	}
	return (*p).Range()
}

// value evaluates an attribute and converts it to the wanted type. The second
// result is false when it is absent or wrong; what is wrong is reported.
func (r *reader) value(p *hcl.Expression, want cty.Type) (cty.Value, bool) {
	ru := r.rule(p)
	if *p == nil {
		return cty.NilVal, false
	}
	v, diags := (*p).Value(r.ctx)
	r.s.add(diags...)
	for _, text := range r.s.missing {
		r.s.warnAt(r.where(p), "Credential missing on this host", "%s", text)
	}
	r.s.missing = nil
	if diags.HasErrors() {
		return cty.NilVal, false
	}
	if v.IsNull() {
		if ru.required {
			r.s.errorAt(r.at, "Missing required argument", "The argument %q is required, but no definition was found.", ru.name)
		}
		return cty.NilVal, false
	}
	c, err := convert.Convert(v, want)
	if err != nil || !c.IsWhollyKnown() {
		r.s.errorAt(r.where(p), "Incorrect value type", "%q must be %s.", ru.name, typeName(ru, want))
		return cty.NilVal, false
	}
	return c, true
}

// typeName says in words what an attribute must be.
func typeName(ru rule, want cty.Type) string {
	switch {
	case ru.is == "command":
		return `a list of arguments, as in ["nginx", "-t"]; there is no shell unless you write one: ["sh", "-c", "..."]`
	case want == cty.Bool:
		return "true or false"
	case want == cty.Number:
		return "a number"
	case want.IsListType():
		return "a list of strings"
	case want.IsMapType():
		return "a map of strings"
	}
	return "a string"
}

// str reads a string; the enum of its rule is checked.
func (r *reader) str(p *hcl.Expression) string {
	ru := r.rule(p)
	v, ok := r.value(p, cty.String)
	if !ok {
		return ru.def
	}
	text := v.AsString()
	if len(ru.enum) > 0 && !slices.Contains(ru.enum, text) {
		r.s.errorAt(r.where(p), "Unknown value", "%q must be one of %s, not %q.%s", ru.name, quoted(ru.enum), text, didYouMean(text, ru.enum))
		return ru.def
	}
	return text
}

// text reads a string that must not be empty.
func (r *reader) text(p *hcl.Expression) string {
	text := r.str(p)
	if text == "" && r.isSet(p) && r.known(p) {
		r.s.errorAt(r.where(p), "Empty value", "%q must not be empty.", r.rule(p).name)
	}
	return text
}

// known reports whether the expression evaluates without an error, so that an
// empty result is the user's own.
func (r *reader) known(p *hcl.Expression) bool {
	v, diags := (*p).Value(r.ctx)
	r.s.missing = nil
	if diags.HasErrors() {
		return false
	}
	_, err := convert.Convert(v, cty.String)
	return err == nil
}

// checked reads a non-empty string and checks it.
func (r *reader) checked(p *hcl.Expression, summary string, check func(string) error) string {
	text := r.text(p)
	if text == "" {
		return text
	}
	if err := check(text); err != nil {
		r.s.errorAt(r.where(p), summary, "%s: %v.", r.rule(p).name, err)
		return r.rule(p).def
	}
	return text
}

// znode reads an absolute znode path.
func (r *reader) znode(p *hcl.Expression) string {
	return r.checked(p, "Invalid znode path", checkZnode)
}

// file reads a path, relative to the directory of the settings file.
func (r *reader) file(p *hcl.Expression) string {
	path := r.text(p)
	if path == "" {
		return ""
	}
	if strings.ContainsRune(path, 0) {
		r.s.errorAt(r.where(p), "Invalid path", "%q has a NUL byte.", r.rule(p).name)
		return ""
	}
	return r.s.relative(r.where(p), path)
}

// relative resolves a path against the directory of the file of the range.
func (s *Settings) relative(at hcl.Range, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	path = filepath.Join(filepath.Dir(at.Filename), path)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// duration reads a duration within the limits of its rule.
func (r *reader) duration(p *hcl.Expression) time.Duration {
	return limited(r, p, "Invalid duration", ParseDuration)
}

// size reads a number of bytes.
func (r *reader) size(p *hcl.Expression) int64 { return limited(r, p, "Invalid size", ParseSize) }

// percent reads a share such as "30%" as 0.3.
func (r *reader) percent(p *hcl.Expression) float64 {
	return limited(r, p, "Invalid share", ParsePercent)
}

// mode reads an octal file mode.
func (r *reader) mode(p *hcl.Expression) fs.FileMode {
	return limited(r, p, "Invalid file mode", ParseMode)
}

// limited reads a value that is written as a string and has limits.
func limited[T ~int64 | ~uint32 | ~float64](r *reader, p *hcl.Expression, summary string, parse func(string) (T, error)) T {
	ru := r.rule(p)
	def := must(parse, ru.def)
	v, ok := r.value(p, cty.String)
	if !ok {
		return def
	}
	got, err := parse(v.AsString())
	if err != nil {
		r.s.errorAt(r.where(p), summary, "%s: %v.", ru.name, err)
		return def
	}
	if ru.min != "" && got < must(parse, ru.min) {
		r.s.errorAt(r.where(p), summary, "%s: %s is less than the least allowed, %s.", ru.name, v.AsString(), ru.min)
		return def
	}
	if ru.max != "" && got > must(parse, ru.max) {
		r.s.errorAt(r.where(p), summary, "%s: %s is more than the most allowed, %s.", ru.name, v.AsString(), ru.max)
		return def
	}
	return got
}

// must parses the text of a tag; empty is the zero value.
func must[T any](parse func(string) (T, error), text string) T {
	var zero T
	if text == "" {
		return zero
	}
	v, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("settings: bad tag: %v", err))
	}
	return v
}

// integer reads a whole number within the limits of its rule.
func (r *reader) integer(p *hcl.Expression) int {
	ru := r.rule(p)
	def := must(strconv.Atoi, ru.def)
	v, ok := r.value(p, cty.Number)
	if !ok {
		return def
	}
	n64, accuracy := v.AsBigFloat().Int64()
	n := int(n64)
	switch {
	case accuracy != 0:
		r.s.errorAt(r.where(p), "Invalid number", "%q must be a whole number.", ru.name)
	case ru.min != "" && n < must(strconv.Atoi, ru.min):
		r.s.errorAt(r.where(p), "Invalid number", "%s: %d is less than the least allowed, %s.", ru.name, n, ru.min)
	case ru.max != "" && n > must(strconv.Atoi, ru.max):
		r.s.errorAt(r.where(p), "Invalid number", "%s: %d is more than the most allowed, %s.", ru.name, n, ru.max)
	default:
		return n
	}
	return def
}

// boolean reads true or false.
func (r *reader) boolean(p *hcl.Expression) bool {
	v, ok := r.value(p, cty.Bool)
	if !ok {
		return r.rule(p).def == "true"
	}
	return v.True()
}

// strings reads a list of strings; a null among them is an error.
func (r *reader) strings(p *hcl.Expression) []string {
	v, ok := r.value(p, cty.List(cty.String))
	if !ok {
		return nil
	}
	ru := r.rule(p)
	list := make([]string, 0, v.LengthInt())
	for _, e := range v.AsValueSlice() {
		switch {
		case e.IsNull():
			r.s.errorAt(r.where(p), "Incorrect value type", "%q has an element that is null.", ru.name)
		case len(ru.enum) > 0 && !slices.Contains(ru.enum, e.AsString()):
			r.s.errorAt(r.where(p), "Unknown value", "The elements of %q must be among %s, not %q.%s", ru.name, quoted(ru.enum), e.AsString(), didYouMean(e.AsString(), ru.enum))
		default:
			list = append(list, e.AsString())
		}
	}
	return list
}

// strmap reads a map of strings; a null value is an absent key.
func (r *reader) strmap(p *hcl.Expression) map[string]string {
	v, ok := r.value(p, cty.Map(cty.String))
	if !ok {
		return nil
	}
	m := map[string]string{}
	for k, e := range v.AsValueMap() {
		if !e.IsNull() {
			m[k] = e.AsString()
		}
	}
	return m
}
