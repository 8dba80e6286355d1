package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/view"
)

// block is a labelled block.
type block struct {
	kind, name string
	at         hcl.Range
}

// find returns the first block of a kind with that label.
func (s *Settings) find(kind, name string) (block, bool) {
	i := slices.IndexFunc(s.blocks, func(b block) bool { return b.kind == kind && b.name == name })
	if i < 0 {
		return block{}, false
	}
	return s.blocks[i], true
}

// labelled are the blocks that have a name.
var labelled = []string{"service", "config", "group", "groups", "format", "election", "template", "bundle", "hook", "exec"}

// index collects the names of all blocks. It reports a label that is used twice within
// one kind, or by two kinds that share their names.
func (s *Settings) index(d *decoder) {
	for _, kind := range labelled {
		for _, found := range d.find(kind, "name") {
			b := block{kind, found.Labels[0], found.DefRange}
			if first, twice := s.find(b.kind, b.name); twice {
				s.errorAt(b.at, "Duplicate "+b.kind, "A %s named %q was already declared at %s. Labels must be unique.", b.kind, b.name, place(first.at))
			} else if err := checkLabel(b.name); err != nil {
				s.errorAt(b.at, "Invalid label", "%s %q: %v.", b.kind, b.name, err)
			}
			if first, ok := s.find("template", b.name); ok && b.kind == "bundle" {
				s.errorAt(b.at, "Duplicate bundle", "A template named %q was already declared at %s; a template is a bundle of one, so they share their names.", b.name, place(first.at))
			}
			s.blocks = append(s.blocks, b)
		}
	}
}

// checkLabel checks a label: it appears in file names, metrics and template
// functions, where "config/key" is separated by a slash.
func checkLabel(name string) error {
	if name == "" || len(name) > 128 {
		return errors.New("a label has 1 to 128 characters")
	}
	for _, r := range name {
		if r <= 0x20 || r == 0x7f || strings.ContainsRune(`/\"'`+"`", r) {
			return fmt.Errorf("a label must not hold %q", r)
		}
	}
	if name == "." || name == ".." {
		return fmt.Errorf("a label must not be %q", name)
	}
	return nil
}

// place is a position as diagnostics print it.
func place(r hcl.Range) string {
	return fmt.Sprintf("%s:%d:%d", r.Filename, r.Start.Line, r.Start.Column)
}

// ref reads a reference to a block of one of the kinds, such as election.nightly or
// config["web.v2"]; the zero Source without one.
func (s *Settings) ref(e expression, kinds ...string) view.Source {
	if !e.Set {
		return view.Source{}
	}
	src, _ := s.reference(e.Expression, kinds)
	return src
}

// refs reads a list of references, each at most once.
func (s *Settings) refs(e expression, kinds ...string) []view.Source {
	if !e.Set {
		return nil
	}
	exprs, diags := hcl.ExprList(e.Expression)
	if diags.HasErrors() {
		s.errorAt(e.At, "Invalid reference", "%q must be a list of references, as in [%s].", e.Name, examples(kinds))
		return nil
	}
	var list []view.Source
	for _, e := range exprs {
		src, ok := s.reference(e, kinds)
		switch {
		case !ok:
		case slices.Contains(list, src):
			s.errorAt(e.Range(), "Duplicate reference", "%s is already in the list.", src)
		default:
			list = append(list, src)
		}
	}
	return list
}

func examples(kinds []string) string {
	return strings.Join(kinds, ".NAME, ") + ".NAME"
}

func (s *Settings) reference(e hcl.Expression, kinds []string) (view.Source, bool) {
	traversal, diags := hcl.AbsTraversalForExpr(e)
	if diags.HasErrors() || len(traversal) == 0 {
		s.errorAt(e.Range(), "Invalid reference", "Expected a reference such as %s, without quotes.", examples(kinds))
		return view.Source{}, false
	}
	kind := traversal.RootName()
	if !slices.Contains(kinds, kind) {
		s.errorAt(e.Range(), "Invalid reference", "A %q cannot be referred to here; expected %s.%s", kind, examples(kinds), didYouMean(kind, kinds))
		return view.Source{}, false
	}
	name, ok := label(traversal)
	if !ok {
		s.errorAt(e.Range(), "Invalid reference", "Expected %s.NAME, or %s[\"NAME\"] for a label with a dot.", kind, kind)
		return view.Source{}, false
	}
	if _, ok := s.find(kind, name); !ok {
		s.errorAt(e.Range(), "Reference to undeclared "+kind, "There is no %s named %q.%s", kind, name, s.nearest(kind, name))
		return view.Source{}, false
	}
	return view.Source{Kind: view.Kind(kind), Name: name}, true
}

// label is the second step of a reference, which must be its last.
func label(t hcl.Traversal) (string, bool) {
	if len(t) != 2 {
		return "", false
	}
	switch step := t[1].(type) {
	case hcl.TraverseAttr:
		return step.Name, true
	case hcl.TraverseIndex:
		if step.Key.Type() == cty.String && step.Key.IsKnown() && !step.Key.IsNull() {
			return step.Key.AsString(), true
		}
	}
	return "", false
}

func (s *Settings) nearest(kind, name string) string {
	var names []string
	for _, b := range s.blocks {
		if b.kind == kind {
			names = append(names, b.name)
		}
	}
	slices.Sort(names)
	if hint := didYouMean(name, names); hint != "" || len(names) == 0 {
		return hint
	}
	if len(names) > 8 {
		names = append(names[:8], "...")
	}
	return " Declared are " + strings.Join(names, ", ") + "."
}
