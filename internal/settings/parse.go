package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// origin says where the text of a template stands, so that its errors name a place
// that an editor can open.
type origin struct {
	file   string    // the file that holds the text; empty: not known
	line   int       // added to the line in the template
	column int       // added to the column, in the first line or, indented, in all
	indent bool      // column counts in every line
	at     hcl.Range // what to point at otherwise
}

// place is the range of a line and column of the template.
func (o origin) place(line, column int) hcl.Range {
	if o.file == "" || line < 1 {
		return o.at
	}
	p := hcl.Pos{Line: line + o.line, Column: max(column, 1)}
	if o.indent || line == 1 {
		p.Column += o.column
	}
	return hcl.Range{Filename: o.file, Start: p, End: p}
}

// contentsOrigin finds where a template within the settings begins: after the
// quote, or in the line after the here-document's marker.
func (s *Settings) contentsOrigin(at hcl.Range) origin {
	f := s.Sources[at.Filename]
	if f == nil || !at.CanSliceBytes(f.Bytes) {
		return origin{at: at}
	}
	text := string(at.SliceBytes(f.Bytes))
	switch {
	case strings.HasPrefix(text, "<<"):
		_, body, _ := strings.Cut(text, "\n")
		o := origin{file: at.Filename, line: at.Start.Line, at: at, indent: true}
		if strings.HasPrefix(text, "<<-") {
			o.column = leastIndent(body)
		}
		return o
	case strings.HasPrefix(text, `"`):
		return origin{file: at.Filename, line: at.Start.Line - 1, column: at.Start.Column, at: at}
	}
	return origin{at: at}
}

// leastIndent is the number of blanks that "<<-" removes from every line.
func leastIndent(body string) int {
	least := len(body)
	for line := range strings.Lines(body) {
		if trimmed := strings.TrimLeft(line, " \t"); strings.TrimSpace(trimmed) != "" {
			least = min(least, len(line)-len(trimmed))
		}
	}
	return least
}

// parseTemplate parses a template as the agent will, and reports what is
// wrong with it and which undeclared names it uses.
func (s *Settings) parseTemplate(t *apply.FileConfig, text string, o origin) {
	for _, m := range leftoverAction.FindAllStringIndex(text, -1) {
		line, column := 1+strings.Count(text[:m[0]], "\n"), m[0]-strings.LastIndexByte(text[:m[0]], '\n')
		s.errorAt(o.place(line, column), "Template "+t.Name, "Left over from import: the action could not be translated; write it in another way.")
	}
	parsed, err := template.Parse(t.Template(text))
	if err != nil {
		s.templateErrors(t.Name, errors.Join(err, template.Undeclared(t.Template(text), s.Config.Sources())), o)
		return
	}
	t.Parsed = parsed
	s.templateErrors(t.Name, parsed.Uses().Undeclared(s.Config.Sources()), o)
	for _, w := range parsed.Warnings() {
		s.warnAt(o.place(w.Line, w.Column), "Template "+t.Name, "%s", sentence(w.Text))
	}
}

// templateErrors reports each of the joined errors at its own place.
func (s *Settings) templateErrors(name string, err error, o origin) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			s.templateErrors(name, e, o)
		}
		return
	}
	e, ok := errors.AsType[*template.Error](err)
	switch {
	case err == nil:
		return
	case !ok:
		e = &template.Error{Err: err}
	}
	s.errorAt(o.place(e.Line, e.Column), "Template "+name, "%s", sentence(e.Err.Error()))
}

// Syntaxes are the parsers of rendered bytes that package template does not
// bring itself.
func Syntaxes() map[string]func([]byte) error {
	return map[string]func([]byte) error{"hcl": checkHCL}
}

// The parser of HCL recurses into conditions and directives, which nest without
// brackets, and takes some hundred bytes for each byte.
const (
	maxHCL        = 4 << 20
	maxConditions = 1000  // in one line
	maxDirectives = 10000 // in one text
)

// checkHCL parses a rendered text, unless the parser could take the memory or
// the stack of the agent. Brackets were looked at before.
func checkHCL(data []byte) error {
	if len(data) > maxHCL {
		return fmt.Errorf("%d bytes are too large: HCL is checked up to %d", len(data), maxHCL)
	}
	if bytes.Count(data, []byte("%{")) > maxDirectives {
		return fmt.Errorf("there are more than %d directives", maxDirectives)
	}
	number := 0
	for line := range bytes.Lines(data) {
		if number++; bytes.Count(line, []byte("?")) > maxConditions {
			return fmt.Errorf("line %d has more than %d conditions", number, maxConditions)
		}
	}
	if _, diags := hclsyntax.ParseConfig(data, "rendered", hcl.InitialPos); diags.HasErrors() {
		return errors.New(Line(diags[0]))
	}
	return nil
}

// OnEmpty is what one template does while no member of a group is up.
type OnEmpty struct {
	Template string `json:"template"` // BUNDLE or BUNDLE/TEMPLATE
	Group    string `json:"group"`
	OnEmpty  string `json:"on_empty"` // keep, render or fail
	Because  string `json:"because"`
}

// OnEmpty lists the rule that holds for each group that a template names.
func (s *Settings) OnEmpty() []OnEmpty {
	rules := map[string]string{}
	for _, g := range s.Config.Groups {
		rules[g.Name] = g.OnEmpty
	}
	for _, g := range s.Config.GroupSets {
		rules[g.Name+"/"] = g.OnEmpty
	}
	list := []OnEmpty{}
	for _, b := range s.Config.Bundles {
		for i := range b.Templates {
			f := &b.Templates[i]
			t, err := f.Parse()
			if err != nil {
				continue // it is among the diagnostics
			}
			name := b.Name
			if f.Name != name {
				name += "/" + f.Name
			}
			for _, u := range t.Uses().Uses {
				if u.Source.Kind != view.KindGroup {
					continue
				}
				set, _, inSet := strings.Cut(u.Source.Name, "/")
				rule := OnEmpty{name, u.Source.Name, rules[u.Source.Name], "on_empty of the group"}
				if inSet {
					rule.OnEmpty = cmp.Or(rule.OnEmpty, rules[set+"/"])
				}
				switch {
				case rule.OnEmpty != "":
				case t.Else(u.Source.Name):
					rule.OnEmpty, rule.Because = "render", "the template has an {{ else }} for it"
				default:
					rule.OnEmpty, rule.Because = "keep", "the template has no {{ else }} for it"
				}
				if !slices.Contains(list, rule) {
					list = append(list, rule)
				}
			}
		}
	}
	return list
}
