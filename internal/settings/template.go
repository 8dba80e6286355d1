package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

const maxTemplate = 16 << 20

func (s *Settings) resolveBundles(d *decoder) {
	for _, b := range d.blocks("template", "name", "A file that is rendered: a bundle of one.") { // a bundle of one
		s.resolveWork(b, []apply.FileConfig{s.resolveFile(b, b.label, b.has("for_each"))})
	}
	for _, b := range d.blocks("bundle", "name", "Files that change together or not at all.") {
		var list []apply.FileConfig
		for _, f := range b.blocks("template", "name", "One file of the bundle.") {
			if slices.ContainsFunc(list, func(t apply.FileConfig) bool { return t.Name == f.label }) {
				s.errorAt(f.at, "Duplicate template", "Bundle %q has two templates named %q.", b.label, f.label)
			}
			list = append(list, s.resolveFile(f, b.label+"/"+f.label, b.has("for_each")))
		}
		if len(list) == 0 {
			s.errorAt(b.at, "Bundle without a template", "Bundle %q has no template block, so there is nothing to render.", b.label)
		}
		s.resolveWork(b, list)
	}
	// Destinations that cannot be there together with another file of the settings.
	for _, b := range s.Config.Bundles {
		for _, t := range b.Templates {
			if c, ok := s.claims[realPath(t.Source)]; ok && t.Source != "" {
				s.errorAt(c.at, "Destination is a template", "%s is the source of the template at %s, which would be overwritten.", t.Source, t.Position)
			}
		}
	}
	for path, c := range s.claims {
		for dir := filepath.Dir(path); len(dir) > 1; dir = filepath.Dir(dir) {
			if other, ok := s.claims[dir]; ok {
				s.errorAt(c.at, "Destination below another", "%s cannot be a directory: it is the file of template %q at %s.", dir, other.name, place(other.at))
			}
		}
	}
}

func (s *Settings) resolveFile(b *decoder, full string, forEach bool) apply.FileConfig {
	t := apply.FileConfig{
		Name: b.label, Position: position(b.at),
		Source:   b.text("source,optional", `is:"path" doc:"The template file, relative to the settings file; it is watched for changes."`),
		Contents: b.text("contents,optional", `is:"string" doc:"The template itself, instead of source. \"${\" is written \"$${\" in it."`),
	}
	dest := s.destination(b.expression("destination", `is:"path" doc:"The file that is written. With for_each it must use each.key."`), forEach)
	t.Destination, t.DestinationText = dest.eval, dest.text
	t.File = s.file(b)
	t.Allow = b.list("allow,optional", `is:"list of strings" enum:"env|file|credential" doc:"Data that the template may use in addition to the view: env is the environment, file the files below the template's directory, credential the credentials that systemd gives the agent."`)
	t.Left, t.Right = s.delimiters(b, b.list("delimiters,optional", `is:"list of strings" doc:"The texts that begin and end an action, instead of [\"{{\", \"}}\"]."`))
	t.CreateDirs = b.boolean("create_dirs,optional", `is:"bool" default:"false" doc:"Make the directories of the destination that are missing: mode 0755, of the owner of the file."`)
	t.Syntax = b.text("syntax,optional", `is:"string" default:"none" enum:"none|json|yaml|toml|xml|hcl|ini" doc:"The rendered bytes must parse as this."`)
	t.MissingKeyOK = !b.boolean("error_on_missing_key,optional", `is:"bool" default:"true" doc:"Whether an entry that a map does not have is an error, or \"<no value>\". A key that is not in its config holds the file, either way."`)
	t.ByNode = b.text("member_order,optional", `is:"string" default:"address" enum:"address|node" doc:"How members of groups are ordered: by address, or by node and then id, as consul-template orders services."`) == "node"
	t.InPlace = b.boolean("in_place,optional", `is:"bool" default:"false" doc:"Write into the file instead of renaming a new one over it: for a file that is bind-mounted by itself. Readers may see half of it."`)
	t.Symlink = b.text("symlink,optional", `is:"string" default:"auto" enum:"auto|follow|refuse" doc:"The reaction when the destination is a symbolic link: replace the file that it leads to, or fail. auto follows links, except in a directory that another user can write."`)
	t.AllowSubdirs = b.boolean("allow_subdirs,optional", `is:"bool" default:"false" doc:"With for_each: each.key may hold slashes, and so name directories below the one of the destination."`)
	t.Adopt = b.boolean("adopt,optional", `is:"bool" default:"false" doc:"With for_each: take over a file that the agent did not write. Otherwise it stays, with the condition destination-taken."`)
	t.Drift = b.text("drift,optional", `is:"string" default:"repair" enum:"repair|report" doc:"The reaction when somebody else has changed the file: write it again, or only report it."`)
	t.MaxOutput = b.size("max_size,optional", `is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"The most that the template may render."`)
	t.Timeout = b.duration("timeout,optional", `is:"duration" default:"10s" min:"10ms" max:"10m" doc:"The longest that the template may run."`)
	t.Dir, t.Syntaxes, t.LookupEnv = filepath.Dir(b.at.Filename), Syntaxes(), s.opts.Env
	s.claim(dest, full)
	switch {
	case b.set("source") && b.set("contents"):
		s.errorAt(b.place("contents"), "Two templates in one", "Template %q has both source and contents; give one of them.", t.Name)
	case !b.set("source") && !b.set("contents"):
		s.errorAt(b.at, "Template without text", "Template %q has neither source nor contents.", t.Name)
	case b.set("source"):
		if data, err := readClosed(t.Source, maxTemplate); err != nil {
			s.errorAt(b.place("source"), "Template cannot be read", "%v.", err)
		} else if t.Source != "" {
			s.parseTemplate(&t, string(data), origin{file: t.Source, at: b.place("source")})
		}
	default:
		s.parseTemplate(&t, t.Contents, s.contentsOrigin(b.place("contents")))
	}
	return t
}

func (s *Settings) file(b *decoder) files.File {
	f := files.File{Mode: limited(b, "mode,optional", `is:"mode" max:"0777" doc:"Permissions of the file, in octal. The default is the mode of the file in place, else 0644."`, cty.String, "Invalid file mode", parseMode)}
	owner := b.text("owner,optional", `is:"string" check:"nonempty" doc:"User that owns the file: a name or a number."`)
	if owner != "" && !isID(owner) {
		if _, err := user.Lookup(owner); err != nil {
			s.hostAt(b.place("owner"), "Unknown user", "There is no user %q on this host.", owner)
		}
	}
	group := b.text("group,optional", `is:"string" check:"nonempty" doc:"Group of the file: a name or a number."`)
	if group != "" && !isID(group) {
		if _, err := user.LookupGroup(group); err != nil {
			s.hostAt(b.place("group"), "Unknown group", "There is no user group %q on this host.", group)
		}
	}
	f.Owner, f.Group = owner, group
	f.Backup = b.number("backup,optional", `is:"number" default:"0" min:"0" max:"100" doc:"Number of previous contents to keep in the same directory."`)
	return f
}

// delimiters are what actions begin and end with; empty without the argument.
func (s *Settings) delimiters(b *decoder, list []string) (left, right string) { //nolint:nonamedreturns // two texts need names.
	if list == nil {
		return "", ""
	}
	if len(list) != 2 || list[0] == "" || list[1] == "" || list[0] == list[1] {
		s.errorAt(b.place("delimiters"), "Wrong delimiters", "delimiters are two different texts, as in [\"[[\", \"]]\"].")
		return "", ""
	}
	return list[0], list[1]
}

// claim remembers a destination; two templates must not share one.
func (s *Settings) claim(d destination, name string) {
	path := d.fixed
	if path == "" && d.eval != nil { // A key whose file would be read as settings.
		path, _ = d.eval(&template.Each{Key: "key.hcl"})
	}
	path = realPath(path)
	key := path
	if d.fixed == "" {
		key = "\x00" + d.text // evaluated: equal when it is spelled the same
	}
	if d.eval == nil {
		return
	}
	if other, ok := s.claims[key]; ok {
		s.errorAt(d.at, "Two templates with one destination", "%s is already written by template %q at %s.", d.text, other.name, place(other.at))
		return
	}
	s.claims[key] = claimed{name, d.at}
	if s.isSettings(path) {
		s.errorAt(d.at, "Destination is a settings file", "The agent would load %s as settings. Name another directory or another ending than .hcl.", cmp.Or(d.fixed, path))
	}
	if dir := s.Config.StateDir; dir != "" && strings.HasPrefix(path, realPath(dir)+"/") {
		s.errorAt(d.at, "Destination is in the state directory", "The agent keeps its own files in %s. Name another directory.", dir)
	}
	// A warning: another user could make the directory, and the other templates work.
	if info, err := os.Stat(d.fixed); d.fixed != "" && err == nil && info.IsDir() {
		s.warnAt(d.at, "Destination is a directory", "%s is a directory; name the file in it.", d.fixed)
	}
}

// realPath is a path without links: one file has one such path. Links that another user
// could have made stay: they must not make settings invalid.
func realPath(path string) string {
	if path == "" || path == "/" {
		return path
	}
	if resolved, err := files.Real(path); err == nil {
		return resolved
	}
	return filepath.Join(realPath(filepath.Dir(path)), filepath.Base(path))
}

// isSettings reports whether the agent reads the file as settings, now or at its next load.
func (s *Settings) isSettings(path string) bool {
	if s.realFiles == nil {
		for _, file := range s.Config.Files {
			if abs, err := filepath.Abs(file); err == nil {
				s.realFiles = append(s.realFiles, realPath(abs))
			}
		}
	}
	if slices.Contains(s.realFiles, path) {
		return true
	}
	return slices.ContainsFunc(s.given, func(p string) bool {
		abs, err := filepath.Abs(p)
		return err == nil && isSettingsName(filepath.Base(path)) && realPath(filepath.Join(abs, filepath.Base(path))) == path
	})
}

func position(at hcl.Range) string { return fmt.Sprintf("%s:%d", at.Filename, at.Start.Line) }

type claimed struct {
	name string
	at   hcl.Range
}

func isID(text string) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && n < 1<<32-1
}

// eachValue is the variable "each" of one element: each.key, and each.value
// as strings, numbers and lists of objects.
func eachValue(e *template.Each) cty.Value {
	value := cty.NullVal(cty.DynamicPseudoType)
	switch v := e.Value.(type) {
	case string:
		value = cty.StringVal(v)
	case view.Member:
		value = memberValue(v)
	case []view.Member:
		values := lists.Map(v, memberValue)
		value = cty.TupleVal(values)
	}
	return cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(e.Key), "value": value})
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

func (s *Settings) destination(expr expression, forEach bool) destination {
	d := destination{at: expr.At}
	if !expr.Set {
		return d
	}
	ctx := s.context(d.at.Filename, vars{each: forEach}.values(nil))
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
	if slices.Contains(strings.Split(text, "/"), "..") {
		return "", fmt.Errorf("%q leads upwards with \"..\"", text)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("%q has a control character", text)
	}
	return filepath.Clean(relative(at, text)), nil
}

// origin says where the text of a template stands, so that its errors name a place
// that an editor can open.
type origin struct {
	file   string    // the file that holds the text; empty: not known
	line   int       // added to the line in the template
	column int       // added to the column, in the first line or, indented, in all
	indent bool      // column counts in every line
	at     hcl.Range // what to point at otherwise
}

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
			least := len(body) // number of blanks that "<<-" removes from every line
			for line := range strings.Lines(body) {
				if trimmed := strings.TrimLeft(line, " \t"); strings.TrimSpace(trimmed) != "" {
					least = min(least, len(line)-len(trimmed))
				}
			}
			o.column = least
		}
		return o
	case strings.HasPrefix(text, `"`):
		return origin{file: at.Filename, line: at.Start.Line - 1, column: at.Start.Column, at: at}
	}
	return origin{at: at}
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
