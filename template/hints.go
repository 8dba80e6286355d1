package template

import (
	"regexp"
	"strings"
	"text/template/parse"

	"github.com/zkagent/zkagent/view"
)

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
		return "; texts stand in double quotes"
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
func unclosed(cfg Config, left, right string) (string, int) {
	type block struct {
		word string
		line int
	}
	var open []block
	text := cfg.Source
	for at := 0; ; {
		i := strings.Index(text[at:], left)
		if i < 0 {
			break
		}
		at += i + len(left)
		end := strings.Index(text[at:], right)
		if end < 0 {
			break
		}
		m := blockWord.FindStringSubmatch(text[at : at+end])
		switch {
		case m == nil:
		case m[1] != "end":
			open = append(open, block{m[1], 1 + strings.Count(text[:at], "\n")})
		case len(open) > 0:
			open = open[:len(open)-1]
		}
		at += end
	}
	if len(open) == 0 {
		return "", 0
	}
	last := open[len(open)-1]
	return last.word, last.line
}

// otherLanguage warns of marks of other template languages, which are plain text
// here.
func (t *Template) otherLanguage() {
	for _, tree := range t.sortedTrees() {
		inspect(tree.Root, func(n parse.Node) {
			text, ok := n.(*parse.TextNode)
			if !ok {
				return
			}
			for _, mark := range []string{"{% if", "{% for", "{% end", "{%- if", "{%- for", "{%- end", "<% if", "<%= "} {
				if i := strings.Index(string(text.Text), mark); i >= 0 {
					p := placeOf(t.cfg.Source, int(text.Pos)+i)
					t.warnings = append(t.warnings, Warning{
						Template: t.cfg.Name, Line: p.line, Column: p.column,
						Text: mark + " is written to the file as it is: actions are Go's text/template, as in {{ if ... }}{{ end }}",
					})
					return
				}
			}
		})
	}
}
