package template

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"

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
