package translate

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// Templates of remco are pongo2's. They become templates of confd, whose functions have
// the names of remco's, and these are translated as those of confd are.

var pongoTag = regexp.MustCompile(`(?s)\{%-?\s*verbatim\s*-?%\}(.*?)\{%-?\s*endverbatim\s*-?%\}|\{\{-?(.*?)-?\}\}|\{%-?(.*?)-?%\}|\{#(.*?)#\}`)

// node is a piece of a template.
type node struct {
	text  string // plain, or the inside of a tag
	whole string // a tag as it is written; empty for plain text
	kind  byte   // t(ext), r(aw text of verbatim), v(alue), s(tatement), c(omment)
	at    string // where a tag is
}

// word is what a statement begins with.
func (n node) word() string {
	word, _, _ := strings.Cut(n.text, " ")
	if n.kind != 's' {
		return ""
	}
	return word
}

// macro is a piece of a template with arguments. It sees the variables of the place where
// it is written.
type macro struct {
	scope    map[string]value // the variables: their names in the result, with their sign
	args     []string
	defaults map[string]string
	body     []node
}

type pongo struct {
	*rewriter

	out    strings.Builder
	read   ReadFunc
	scope  map[string]value
	loops  []value              // the indexes of the open loops; the kind is that of the index
	kinds  map[string]valueKind // of variables that are set more than once, from all of it
	macros map[string]macro
	depth  int
}

// remcoText goes over a template until it knows of what kind each variable is.
func remcoText(r *Result, t *Template, source string, d dialect, read ReadFunc) {
	d.remco = true
	r.translateBest(t, d, func(t *Template, d dialect) {
		kinds := map[string]valueKind{}
		calls := map[string]shape{}
		for final := false; ; {
			before := maps.Clone(kinds)
			w := newRewriter(r, d)
			w.tmpl.source, w.calls, w.listed = t.source, calls, true
			if final {
				w.tmpl = t
			}
			p := &pongo{rewriter: w, read: read, scope: map[string]value{}, kinds: kinds, macros: map[string]macro{}}
			p.nodes(p.parsed(source))
			if final {
				t.Text = p.out.String()
				return
			}
			final = maps.Equal(before, kinds)
		}
	})
}

// parsed splits a template into its pieces, with the text between them as remco reads it:
// blanks before a statement and the line break after it are no text.
func (p *pongo) parsed(source string) []node {
	var list []node
	at := 0
	for _, m := range pongoTag.FindAllStringSubmatchIndex(source, -1) {
		n := node{whole: source[m[0]:m[1]], at: fmt.Sprintf("line %d, column %d", strings.Count(source[:m[0]], "\n")+1, m[0]-strings.LastIndexByte(source[:m[0]], '\n'))}
		for i, kind := range []byte("rvsc") {
			if from := m[2*i+2]; from >= 0 {
				n.kind, n.text = kind, source[from:m[2*i+3]]
			}
		}
		if n.kind == 'v' || n.kind == 's' {
			n.text = strings.TrimSpace(n.text)
		}
		list = append(list, node{kind: 't', text: source[at:m[0]]}, n)
		at = m[1]
	}
	list = append(list, node{kind: 't', text: source[at:]})
	for i, n := range list {
		before, after := beside(list, i, -1), beside(list, i, 1)
		if n.kind == 's' {
			before.text, after.text = strings.TrimRight(before.text, " \t"), strings.TrimPrefix(after.text, "\n")
		}
		if n.kind != 't' && n.kind != 'c' && n.whole[2] == '-' {
			before.text = strings.TrimRight(before.text, " \t\r\n")
		}
		if n.kind != 't' && n.kind != 'c' && n.whole[len(n.whole)-3] == '-' {
			after.text = strings.TrimLeft(after.text, " \t\r\n")
		}
	}
	return list
}

// beside is the text before or after a tag. A comment beside a statement is nothing
// between it and the text.
func beside(list []node, i, step int) *node {
	kind := list[i].kind
	for i += step; i > 0 && i < len(list)-1 && kind == 's' && (list[i].kind == 'c' || list[i].text == ""); {
		i += step
	}
	if i < 0 || i >= len(list) || list[i].kind != 't' {
		return &node{}
	}
	return &list[i]
}

func (p *pongo) nodes(list []node) {
	for i := 0; i < len(list); i++ {
		switch n := list[i]; n.kind {
		case 't', 'r':
			p.out.WriteString(plain(n.text))
		case 'c':
			p.out.WriteString("{{/*" + strings.ReplaceAll(n.text, "*/", "* /") + "*/}}")
		default:
			p.at = n.at
			i += p.tag(n, list[i+1:])
		}
	}
}

// tag translates a value or a statement, and returns how many of the pieces after it
// belong to it.
func (p *pongo) tag(n node, rest []node) int {
	used := 0
	why := tried(func() {
		if n.kind == 'v' {
			p.value(n.text)
			return
		}
		word := n.word()
		e := &expression{p: p, list: lexed(strings.TrimSpace(strings.TrimPrefix(n.text, word)))}
		body := rest[:0]
		if end, isBlock := pongoBlocks[word]; isBlock {
			size := bodyOf(rest, word, end)
			if size < 0 {
				panic(problemf("there is no %s", end))
			}
			body, used = rest[:size], size+1 // also when something in the block is refused
		}
		p.statement(n, word, e, body)
	})
	if why != "" {
		p.out.WriteString("{{ " + p.failed(n, why) + " }}")
	}
	return used
}

// pongoBlocks are the statements that have an end.
var pongoBlocks = map[string]string{
	"for": "endfor", "if": "endif", "ifequal": "endifequal", "ifnotequal": "endifnotequal", "with": "endwith", "macro": "endmacro",
	"comment": "endcomment", "autoescape": "endautoescape",
}

func bodyOf(list []node, word, end string) int {
	depth := 0
	for i, n := range list {
		switch n.word() {
		case word:
			depth++
		case end:
			if depth == 0 {
				return i
			}
			depth--
		}
	}
	return -1
}

// failed is an action that fails: what is not translated never is an empty value.
func (p *pongo) failed(n node, why problem) string {
	p.tmpl.miss("%s: not translated: %s: %s", p.at, why, n.whole)
	return "fail " + quoteGo("import: not translated: "+n.whole)
}

func (p *pongo) write(action string) { p.out.WriteString("{{ " + p.action(action) + " }}") }

// guarded reads an expression. One that cannot be translated fails when it is executed.
func (p *pongo) guarded(n node, read func() value) value {
	var v value
	if why := tried(func() { v = read() }); why != "" {
		v = value{p.failed(n, why), ofData}
	}
	return v
}

func (p *pongo) value(text string) {
	e := &expression{p: p, list: lexed(text)}
	if len(e.list) > 1 && e.list[1] == "(" {
		if m, ok := p.macros[e.list[0]]; ok {
			e.list = e.list[2:]
			p.expand(m, e.arguments())
			return
		}
	}
	switch v := p.whole(e); {
	case v.kind == ofBool:
		p.write(`ternary "True" "False" ` + paren(v.code))
	case v.kind == ofFloat:
		p.write(`printf "%f" ` + paren(v.code))
	case v.kind == ofData:
		p.write("$_ := " + v.code)
		p.out.WriteString(printedData)
	case v.kind.is("snx"):
		p.write(v.code)
	default:
		panic(problem("a list, pair or condition is printed"))
	}
}

// printedData prints a value of a document as pongo2 does: numbers with six digits, True
// and False, and no list or object.
const printedData = `{{ if kindIs "float64" $_ }}{{ printf "%f" $_ }}{{ else if kindIs "bool" $_ }}{{ ternary "True" "False" $_ }}` +
	`{{ else if or (kindIs "string" $_) (kindIs "int" $_) (kindIs "int64" $_) }}{{ $_ }}{{ else if kindIs "invalid" $_ }}` +
	`{{ else }}{{ fail "a list or object is printed: write it with toJSON" }}{{ end }}`
