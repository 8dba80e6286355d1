package template

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/view"
)

// parseTrees parses the source without looking at function names, so that
// unknown ones are all reported at once, with their columns.
func parseTrees(cfg Config) (map[string]*parse.Tree, error) {
	trees := map[string]*parse.Tree{}
	tree := parse.New(cfg.Name)
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(cfg.Source, cfg.Left, cfg.Right, trees); err != nil {
		return nil, parseError(cfg, err)
	}
	if _, ok := trees[cfg.Name]; !ok {
		trees[cfg.Name] = tree
	}
	return trees, nil
}

var parsePosition = regexp.MustCompile(`^:(\d+): `)

func parseError(cfg Config, err error) error {
	text := strings.TrimPrefix(err.Error(), "template: "+cfg.Name)
	m := parsePosition.FindStringSubmatch(text)
	if m == nil {
		return &Error{Template: cfg.Name, Err: errors.New(strings.TrimPrefix(text, ": "))}
	}
	line, _ := strconv.Atoi(m[1])
	text = strings.TrimPrefix(text, m[0])
	if strings.HasSuffix(text, "unexpected EOF") {
		if word, at := unclosed(cfg); at > 0 {
			return &Error{Template: cfg.Name, Line: at, Column: guessColumn(cfg, at), Err: fmt.Errorf("%s has no {{ end }}", word)}
		}
	}
	if lines := strings.Split(cfg.Source, "\n"); line >= 1 && line <= len(lines) {
		text += syntaxHint(text, lines[line-1])
	}
	return &Error{Template: cfg.Name, Line: line, Column: guessColumn(cfg, line), Err: errors.New(text)}
}

// guessColumn finds the action that the parser complained about: the parser names
// the line only. It is the first action of the line that does not parse alone,
// else the first action, else the start of the line.
func guessColumn(cfg Config, line int) int {
	lines := strings.Split(cfg.Source, "\n")
	if line < 1 || line > len(lines) {
		return 1
	}
	first := 0
	for at, action := range cfg.actions(lines[line-1]) {
		first = cmp.Or(first, at+1)
		tree := parse.New("x")
		tree.Mode = parse.SkipFuncCheck
		_, err := tree.Parse(action, cfg.Left, cfg.Right, map[string]*parse.Tree{})
		if err != nil && !strings.Contains(err.Error(), "unexpected EOF") {
			return at + 1
		}
	}
	return max(first, 1)
}

// actions yields the actions of a text with their delimiters, and where they begin. One
// that does not end is the last.
func (c *Config) actions(text string) iter.Seq2[int, string] {
	left, right := cmp.Or(c.Left, "{{"), cmp.Or(c.Right, "}}")
	return func(yield func(int, string) bool) {
		for at := 0; ; {
			i := strings.Index(text[at:], left)
			if i < 0 {
				return
			}
			at += i
			action := text[at:]
			if end := strings.Index(action[len(left):], right); end >= 0 {
				action = action[:len(left)+end+len(right)]
			}
			if !yield(at, action) {
				return
			}
			at += len(action)
		}
	}
}

func (t *Template) at(n parse.Node) place { return placeOf(t.cfg.Source, int(n.Position())) }

func placeOf(source string, offset int) place {
	before := source[:min(max(offset, 0), len(source))]
	return place{1 + strings.Count(before, "\n"), len(before) - strings.LastIndexByte(before, '\n')}
}

func (t *Template) errorAt(n parse.Node, err error) *Error {
	p := t.at(n)
	return &Error{Template: t.cfg.Name, Line: p.line, Column: p.column, Err: err}
}

// checkNames reports every unknown or forbidden function and every template
// that is called and not defined; it returns the functions that are used.
func (t *Template) checkNames() ([]string, error) {
	used, errs := map[string]bool{}, []*Error(nil)
	known := functionTable()
	for _, tree := range t.sortedTrees() {
		inspect(tree.Root, func(n parse.Node) {
			switch n := n.(type) {
			case *parse.IdentifierNode:
				if err := t.checkName(n.Ident, known); err != nil {
					errs = append(errs, t.errorAt(n, err))
				}
				used[n.Ident] = true
			case *parse.TemplateNode:
				if _, ok := t.trees[n.Name]; !ok {
					err := fmt.Errorf("template %q is not defined%s", n.Name, meant(n.Name, slices.Collect(maps.Keys(t.trees))))
					errs = append(errs, t.errorAt(n, err))
				}
			}
		})
	}
	return slices.Sorted(maps.Keys(used)), joinErrors(errs)
}

func (t *Template) checkName(name string, known map[string]function) error {
	f, ok := known[name]
	switch {
	case builtins[name] != "" && !ok:
		return nil
	case never[name] != "":
		return fmt.Errorf("function %q does not exist: %s", name, never[name])
	case !ok:
		candidates := slices.AppendSeq(slices.Collect(maps.Keys(known)), maps.Keys(builtins))
		slices.Sort(candidates)
		return fmt.Errorf("function %q does not exist%s", name, meant(name, candidates))
	case f.allow != "" && !slices.Contains(t.cfg.Allow, f.allow):
		return fmt.Errorf("function %q: %w: it needs allow = [%q]", name, ErrNotAllowed, f.allow)
	}
	return nil
}

func (t *Template) sortedTrees() []*parse.Tree {
	var trees []*parse.Tree
	for _, name := range slices.Sorted(maps.Keys(t.trees)) {
		if t.trees[name].Root != nil {
			trees = append(trees, t.trees[name])
		}
	}
	return trees
}

const noVault = "there is no Vault here; use a config key or file"

// never are functions that users of other programs look for, and why they
// are not here.
var never = map[string]string{
	"plugin":      "templates run no programs; use a hook",
	"writeToFile": "templates write no files; declare a template for each file",
	"secret":      noVault,
	"secrets":     noVault,
	"services":    `use groups "NAME"`,
	"node":        "use agent", "nodes": `use members "GROUP"`, "datacenters": "ZooKeeper has none",
	"getv": `use key "CONFIG/KEY"`, "gets": `use ls or tree`, "getvs": `use ls or tree`, "exists": "use keyExists", "lsdir": "use tree and byKey",
	"json": "use parseJSON", "getenv": "use env",
	"now": "use timestamp", "date": "use timestamp LAYOUT", "expandenv": "use env",
}

// Undeclared is [Deps.Undeclared] of a template that may not parse for functions
// that do not exist.
func Undeclared(cfg Config, declared []view.Source) error {
	trees, err := parseTrees(cfg)
	if err != nil {
		return nil //nolint:nilerr // Parse reports it.
	}
	return findUses(&Template{cfg: cfg, trees: trees}).Undeclared(declared)
}

// syntaxHint says what somebody who comes from another language may have meant by
// what does not parse.
func syntaxHint(text, line string) string {
	switch {
	case strings.Contains(text, "character constant") || strings.Contains(line, "'"):
		return "; write texts in double quotes"
	case strings.Contains(line, "=="):
		return "; a comparison is written eq A B"
	case strings.Contains(line, "!="):
		return "; a comparison is written ne A B"
	case strings.Contains(line, "&&") || strings.Contains(line, "||"):
		return "; conditions are joined by and A B, or A B"
	}
	return ""
}

var blockWord = regexp.MustCompile(`^-?\s*(if|range|with|define|block|end)\b`)

// unclosed finds the innermost block without an end: its word and line; 0 for none.
func unclosed(cfg Config) (string, int) {
	words, lines := []string{""}, []int{0}
	for at, action := range cfg.actions(cfg.Source) {
		m := blockWord.FindStringSubmatch(action[len(cmp.Or(cfg.Left, "{{")):])
		switch n := len(words); {
		case m == nil:
		case m[1] != "end":
			words, lines = append(words, m[1]), append(lines, placeOf(cfg.Source, at).line)
		case n > 1:
			words, lines = words[:n-1], lines[:n-1]
		}
	}
	return words[len(words)-1], lines[len(lines)-1]
}

// otherLanguage warns of marks of other template languages, which are plain text
// here.
func (t *Template) otherLanguage() {
	for _, tree := range t.sortedTrees() {
		inspect(tree.Root, func(n parse.Node) {
			if text, ok := n.(*parse.TextNode); ok {
				if at := foreignMark.FindIndex(text.Text); at != nil {
					p := placeOf(t.cfg.Source, int(text.Pos)+at[0])
					t.warnings = append(t.warnings, Warning{
						Template: t.cfg.Name, Line: p.line, Column: p.column,
						Text: string(text.Text[at[0]:at[1]]) + " is written to the file as it is: actions are Go's text/template, as in {{ if ... }}{{ end }}",
					})
				}
			}
		})
	}
}

var foreignMark = regexp.MustCompile(`\{%-? (if|for|end)|<% if|<%= `)

// What can be known of a template without data is checked when it is parsed: how
// many arguments a function gets, the fields of members, pairs and leaders, the
// words of statuses, and that key names a key. What a template has parsed or made
// by itself is not known, and not checked.

type checker struct {
	t     *Template
	funcs map[string]reflect.Type
	errs  []*Error
}

// env is what is known at one place; a nil type is not known.
type env struct {
	dot  reflect.Type
	vars map[string]reflect.Type
}

func (t *Template) checkCalls() error {
	c := &checker{t: t, funcs: map[string]reflect.Type{}}
	table, st := functionTable(), &state{t: t}
	for _, name := range t.names {
		if f, ok := table[name]; ok {
			c.funcs[name] = reflect.TypeOf(f.make(st))
		}
	}
	for _, tree := range t.sortedTrees() {
		c.list(tree.Root, &env{vars: map[string]reflect.Type{}})
	}
	return joinErrors(c.errs)
}

func (c *checker) fail(n parse.Node, format string, args ...any) {
	c.errs = append(c.errs, c.t.errorAt(n, fmt.Errorf(format, args...)))
}

func (c *checker) list(list *parse.ListNode, e *env) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			c.declare(n.Pipe, c.pipe(n.Pipe, e), e)
			continue
		case *parse.TemplateNode:
			c.pipe(n.Pipe, e)
			continue
		}
		b, isRange := branchOf(n)
		if b == nil {
			continue
		}
		value := c.pipe(b.Pipe, e)
		inner := &env{dot: e.dot, vars: maps.Clone(e.vars)}
		if _, isWith := n.(*parse.WithNode); isWith {
			inner.dot = value
		}
		if isRange {
			key, elem := elements(value)
			inner.dot = elem
			if len(b.Pipe.Decl) == 2 {
				inner.vars[b.Pipe.Decl[0].Ident[0]] = key
			}
			if n := len(b.Pipe.Decl); n > 0 {
				inner.vars[b.Pipe.Decl[n-1].Ident[0]] = elem
			}
		} else {
			c.declare(b.Pipe, value, inner)
		}
		c.list(b.List, inner)
		c.list(b.ElseList, &env{dot: e.dot, vars: maps.Clone(e.vars)})
		for _, d := range assigned(n) {
			delete(e.vars, d)
		}
	}
}

// assigned are the variables that a list gives new values to: what they are
// afterwards is not known.
func assigned(below parse.Node) []string {
	var names []string
	inspect(below, func(n parse.Node) {
		if p, ok := n.(*parse.PipeNode); ok && p.IsAssign {
			for _, d := range p.Decl {
				names = append(names, d.Ident[0])
			}
		}
	})
	return names
}

func (c *checker) declare(p *parse.PipeNode, value reflect.Type, e *env) {
	for _, d := range p.Decl {
		if p.IsAssign && e.vars[d.Ident[0]] != value {
			value = nil
		}
		e.vars[d.Ident[0]] = value
	}
}

// elements are the types of what a range over a value gives.
func elements(t reflect.Type) (key, elem reflect.Type) { //nolint:nonamedreturns // two types need names.
	if t == nil {
		return nil, nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return reflect.TypeFor[int](), known(t.Elem())
	case reflect.Map:
		return known(t.Key()), known(t.Elem())
	default:
		return nil, nil
	}
}

// known is a type that says something: an interface may hold anything.
func known(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Interface {
		return nil
	}
	return t
}

func (c *checker) pipe(p *parse.PipeNode, e *env) reflect.Type {
	if p == nil {
		return nil
	}
	var value reflect.Type
	for i, cmd := range p.Cmds {
		value = c.command(cmd, e, i > 0)
	}
	return value
}

func (c *checker) command(cmd *parse.CommandNode, e *env, piped bool) reflect.Type {
	for _, a := range cmd.Args[1:] {
		c.value(a, e)
	}
	id, ok := cmd.Args[0].(*parse.IdentifierNode)
	if !ok {
		if len(cmd.Args) == 1 {
			return c.value(cmd.Args[0], e)
		}
		return nil
	}
	c.words(id, cmd.Args[1:])
	fn := c.funcs[id.Ident]
	if fn == nil {
		if id.Ident == "index" && len(cmd.Args) == 3 {
			_, elem := elements(c.value(cmd.Args[1], e))
			return elem
		}
		return nil
	}
	got := len(cmd.Args) - 1
	if piped {
		got++
	}
	switch want := fn.NumIn(); {
	case fn.IsVariadic() && got < want-1:
		c.fail(id, "function %q takes at least %s, not %d", id.Ident, arguments(want-1), got)
	case !fn.IsVariadic() && got != want:
		c.fail(id, "function %q takes %s, not %d", id.Ident, arguments(want), got)
	}
	return known(fn.Out(0))
}

func arguments(n int) string {
	if n == 1 {
		return "1 argument"
	}
	return fmt.Sprintf("%d arguments", n)
}

func (c *checker) words(id *parse.IdentifierNode, args []parse.Node) {
	switch id.Ident {
	case "members", "service":
		for _, a := range args[min(1, len(args)):] {
			if s, ok := a.(*parse.StringNode); ok {
				if err := checkStatus(s.Text); err != nil {
					c.fail(a, "%w", err)
				}
			}
		}
	case "key", "keyOrDefault", "keyOrAbsent", "keyExists":
		if len(args) == 0 {
			return
		}
		if s, ok := args[0].(*parse.StringNode); ok && !strings.Contains(strings.Trim(s.Text, "/"), "/") {
			c.fail(id, "key %q names a config and no key: write \"%s/KEY\"", s.Text, strings.Trim(s.Text, "/"))
		}
	}
}

func (c *checker) value(n parse.Node, e *env) reflect.Type {
	switch n := n.(type) {
	case *parse.DotNode:
		return e.dot
	case *parse.FieldNode:
		return c.fields(n, e.dot, n.Ident)
	case *parse.VariableNode:
		return c.fields(n, e.vars[n.Ident[0]], n.Ident[1:])
	case *parse.ChainNode:
		return c.fields(n, c.value(n.Node, e), n.Field)
	case *parse.PipeNode:
		return c.pipe(n, e)
	case *parse.IdentifierNode:
		if fn := c.funcs[n.Ident]; fn != nil && fn.NumIn() == 0 {
			return known(fn.Out(0))
		}
	}
	return nil
}

var checked = map[reflect.Type]string{
	reflect.TypeFor[view.Member](): "a member", reflect.TypeFor[Pair](): "a pair", reflect.TypeFor[Leader](): "a leader",
	reflect.TypeFor[view.Agent](): "agent", reflect.TypeFor[Group](): "a group",
}

// foreign are the names that other programs have for fields.
var foreign = map[string]string{
	"NodeAddress": "Host", "ServiceMeta": "Labels", "NodeMeta": "Labels", "ServiceAddress": "Host", "ServicePort": "Port", "Weights": "Weight",
}

func (c *checker) fields(n parse.Node, t reflect.Type, path []string) reflect.Type {
	for _, name := range path {
		if t == nil {
			return nil
		}
		what, ok := checked[t]
		switch {
		case t.Kind() == reflect.Map:
			t = known(t.Elem())
			continue
		case !ok && t.Kind() != reflect.Struct:
			if t.Kind() == reflect.Slice && checked[t.Elem()] != "" {
				c.fail(n, ".%s is asked of a list: take its elements by range or index", name)
			}
			return nil
		case !ok:
			return nil
		}
		if f, found := t.FieldByName(name); found {
			t = known(f.Type)
			continue
		}
		if m, found := reflect.PointerTo(t).MethodByName(name); found {
			if m.Type.NumOut() == 0 || m.Type.NumIn() != 1 {
				return nil
			}
			t = known(m.Type.Out(0))
			continue
		}
		hint := meant(name, fieldsOf(t))
		if to := foreign[name]; to != "" && what == "a member" {
			hint = fmt.Sprintf("; did you mean %q?", to)
		}
		c.fail(n, "%s has no field .%s%s", what, name, hint)
		return nil
	}
	return t
}

func fieldsOf(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		names = append(names, f.Name)
	}
	for m := range reflect.PointerTo(t).Methods() {
		if m.Type.NumIn() == 1 {
			names = append(names, m.Name)
		}
	}
	return names
}

func joinErrors(errs []*Error) error {
	slices.SortStableFunc(errs, func(a, b *Error) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	joined := lists.Map(errs, func(e *Error) error { return e })
	return errors.Join(joined...)
}
