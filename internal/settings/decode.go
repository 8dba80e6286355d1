package settings

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/template"
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
	name, option, _ := strings.Cut(name, ",")
	ru := rule{
		name: name, required: option == "", is: tag.Get("is"), def: tag.Get("default"),
		min: tag.Get("min"), max: tag.Get("max"), check: cmp.Or(tag.Get("check"), tag.Get("is")), doc: tag.Get("doc"),
	}
	if e := tag.Get("enum"); e != "" {
		ru.enum = strings.Split(e, "|")
	}
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

func (s *Settings) add(diags ...*hcl.Diagnostic) {
	for _, d := range diags {
		// Say what a name of another program is called here.
		if m := unexpected.FindStringSubmatch(d.Detail); m != nil && calledHere[m[1]] != "" && !strings.Contains(d.Detail, "Did you mean") {
			d.Detail += " Here it is " + calledHere[m[1]] + "."
		}
		s.Diagnostics = append(s.Diagnostics, d)
	}
}

// errorAt reports an error: a short summary, and a detail that names the
// value and the cure.
func (s *Settings) errorAt(at hcl.Range, summary, detail string, args ...any) {
	s.add(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

func (s *Settings) warnAt(at hcl.Range, summary, detail string, args ...any) {
	s.add(&hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

// hostAt reports what is missing on this host: an error, or with
// [Options.Offline] a warning.
func (s *Settings) hostAt(at hcl.Range, summary, detail string, args ...any) {
	if s.opts.Offline {
		s.warnAt(at, summary, detail, args...)
		return
	}
	s.errorAt(at, summary, detail, args...)
}

// Write prints the diagnostics one a line as "file:line:column: summary;
// detail", or, with width > 0, for people: with the line of the file.
func (s *Settings) Write(w io.Writer, width uint, color bool) error {
	if width > 0 {
		return hcl.NewDiagnosticTextWriter(w, s.Sources, width, color).WriteDiagnostics(s.Diagnostics)
	}
	for _, d := range s.Diagnostics {
		if _, err := fmt.Fprintln(w, Line(d)); err != nil {
			return err
		}
	}
	return nil
}

// Line is a diagnostic in one line.
func Line(d *hcl.Diagnostic) string {
	var b strings.Builder
	if d.Subject != nil {
		fmt.Fprintf(&b, "%s:%d:%d: ", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column)
	}
	if d.Severity == hcl.DiagWarning {
		b.WriteString("warning: ")
	}
	b.WriteString(d.Summary)
	if d.Detail != "" {
		b.WriteString("; " + strings.Join(strings.Fields(d.Detail), " "))
	}
	return b.String()
}

// sentence ends a text with a full stop, unless it ends as a sentence does.
func sentence(text string) string {
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// Severity is "error" or "warning".
func Severity(d *hcl.Diagnostic) string {
	if d.Severity == hcl.DiagWarning {
		return "warning"
	}
	return "error"
}

// didYouMean is a sentence with the candidate that may be meant; empty without one.
func didYouMean(text string, candidates []string) string {
	if best := template.Nearest(text, candidates); best != "" {
		return " Did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// calledHere are names that other programs have for what is called otherwise here.
var calledHere = map[string]string{
	"perms": `mode = "0644"`, "user": "owner", "uid": "owner", "gid": "group", "dest": "destination", "dst": "destination", "src": "source",
	"command": `reload { command = ["...", "..."] }`, "reload_cmd": `reload { command = ["...", "..."] }`, "reload_command": `reload { command = ["...", "..."] }`,
	"check_cmd": `check { command = ["...", staged] }`, "command_timeout": `timeout in the reload block`,
	"left_delimiter": `delimiters = ["[[", "]]"]`, "right_delimiter": `delimiters = ["[[", "]]"]`, "create_dest_dirs": "create_dirs", "make_directories": "create_dirs",
	"ca_cert": "ca_file", "ca": "ca_file", "cert": "cert_file", "key": "key_file", "client_cert": "cert_file", "client_key": "key_file",
	"hosts": "servers", "zk_hosts": "servers", "nodes": "servers", "zk_path": "group", "prefix": "path", "check_interval": "interval in each check block",
	"use_previous_backends": "on_empty", "default_servers": "an {{ else }} in the template",
	"vault": "credential(\"NAME\"), or credential in a template; see docs/secrets.md", "consul": "zookeeper { servers = [...] }",
	"min_reload_interval": "min_interval in the reload block", "deduplicate": "nothing: a watch costs ZooKeeper little",
}

// unexpected are the errors of HCL about a name that it does not know.
var unexpected = regexp.MustCompile(`^(?:An argument named|Blocks of type) "([^"]+)"`)

func quoted(words []string) string {
	q := lists.Map(words, strconv.Quote)
	return strings.Join(q, ", ")
}
