package settings

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/view"
)

//go:generate go test -run TestReference -update .

// exampleBlocks has a block of each name, which the reference shows.
//
//go:embed examples.hcl
var exampleBlocks string

// reference is the page as far as it is written.
type reference struct {
	text   strings.Builder
	tables []table
}

type table struct {
	heading string
	rows    []string
}

// Reference is the reference of all blocks and arguments as Markdown.
func Reference() string {
	var b reference
	b.text.WriteString(`# Settings

<!-- Generated from the code by "make gen"; do not edit. -->

Settings are HCL 2: a file, or a directory whose ` + "`*.hcl`" + ` files are taken together. Unknown blocks and
arguments, labels used twice and references to names that do not exist are errors. ` + "`zkagent validate`" + ` prints all of
them, with file, line and column, and exits with 78. (A syntax error hides the errors after it.)

Durations are written ` + "`500ms`, `10s`, `5m`, `2h`, `1d`" + `, sizes ` + "`512kB`, `1MiB`" + `, shares ` + "`30%`" + `, file modes in octal
in quotes. Paths of files are relative to the settings file. References have no quotes: ` + "`election.nightly`" + `, or
` + "`config[\"web.v2\"]`" + ` for a label with a dot. Commands are lists of arguments; there is no shell.

`)
	b.text.WriteString("## Expressions\n\n" +
		"Functions: `env(\"NAME\")` and `env(\"NAME\", \"default\")` (a variable that is not set is the default, or empty), " +
		"`file(\"path\")`, `credential(\"name\")` (a file in `$CREDENTIALS_DIRECTORY`, without its last line break), `hostname()`.\n\n")
	fmt.Fprintf(&b.text, "String and list functions of HCL: `%s`.\n\n", strings.Join(sortedKeys(pure), "`, `"))
	b.text.WriteString("Commands of checks and reloads may use `staged` (the staged file), `staged_dir` (a private directory in which every " +
		"file of the bundle is under its own destination path), `destination`, and with `for_each` `each.key` and `each.value`; " +
		"destinations may use `each`. The agent evaluates them each time that it needs them, and once on load with unknown values.\n\n")
	for _, top := range describe().blocks {
		b.block([]string{top.name}, top)
	}
	return strings.TrimRight(b.text.String(), "\n") + "\n"
}

func describe() *shape {
	s := newSettings(Options{})
	s.describing = true
	d := &decoder{s: s, shape: &shape{}}
	s.resolve(d)
	return d.shape
}

func (b *reference) block(path []string, t *shape) {
	heading := strings.Join(path, " → ")
	if t.label != "" && len(t.kinds) == 0 {
		heading += ` "` + strings.ToUpper(t.label) + `"`
	}
	fmt.Fprintf(&b.text, "%s `%s`\n\n%s\n\n", strings.Repeat("#", min(len(path)+1, 5)), heading, t.doc)
	if len(path) == 1 {
		fmt.Fprintf(&b.text, "```hcl part\n%s\n```\n\n", example(path[0]))
	}
	if len(t.kinds) > 0 {
		b.text.WriteString("Every kind but ttl takes these:\n\n")
		b.arguments(heading, t.kinds[0].args, true)
		for _, kind := range t.kinds {
			b.block(append(slices.Clone(path[:len(path)-1]), kind.name), kind)
		}
		return
	}
	b.arguments(heading, t.args, false)
	for _, inner := range t.blocks {
		b.block(append(slices.Clone(path), inner.name), inner)
	}
}

// example is the block of this name in examples.hcl.
func example(name string) string {
	for text := range strings.SplitSeq(exampleBlocks, "\n\n") {
		if strings.HasPrefix(text, name+" ") {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// arguments writes the table of a block's arguments. A table whose rows another
// table has, with at most two more, is not written again: the page names the other one.
func (b *reference) arguments(heading string, args []rule, common bool) {
	var rows []string
	for _, ru := range args {
		if ru.common != common {
			continue
		}
		def := ""
		switch {
		case ru.required:
			def = "required"
		case ru.def != "":
			def = "`" + ru.def + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", ru.name, ru.is, def, ru.doc+ru.limits()))
	}
	if len(rows) == 0 {
		return
	}
	for _, other := range b.tables {
		missing := slices.DeleteFunc(slices.Clone(other.rows), func(row string) bool { return slices.Contains(rows, row) })
		if len(other.rows)-len(missing) < len(rows) || len(missing) > 2 {
			continue
		}
		fmt.Fprintf(&b.text, "It takes the arguments of `%s`", other.heading)
		for i, row := range missing {
			name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " ")
			b.text.WriteString([]string{", without ", " and "}[i] + name)
		}
		b.text.WriteString(".\n\n")
		return
	}
	b.tables = append(b.tables, table{heading, rows})
	b.text.WriteString("| argument | type | default | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n\n")
}

func (r rule) limits() string {
	switch {
	case len(r.enum) > 0:
		return " One of `" + strings.Join(r.enum, "`, `") + "`."
	case r.min != "" && r.max != "":
		return fmt.Sprintf(" From %s to %s.", r.min, r.max)
	case r.min != "":
		return fmt.Sprintf(" At least %s.", r.min)
	case r.max != "":
		return fmt.Sprintf(" At most %s.", r.max)
	}
	return ""
}

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
