package translate

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// whole reads an expression to its end.
func (p *pongo) whole(e *expression) value {
	v := e.or()
	e.end()
	return v
}

func (e *expression) end() {
	if len(e.list) > 0 {
		panic(problemf("%q is not expected", e.list[0]))
	}
}

// set gives a value to a variable. What kind it has is known when all values are known.
func (p *pongo) set(name string, v value) {
	if v.kind.is("tx") {
		panic(problem("a condition in a variable"))
	}
	v.kind = p.merged(name, v.kind)
	have, known := p.scope[name]
	op := " = "
	if !known {
		have, op = value{"$" + name, v.kind}, " := "
	}
	p.scope[name] = value{have.code, v.kind}
	p.write(have.code + op + v.code)
}

func (p *pongo) merged(name string, kind valueKind) valueKind {
	if have, known := p.kinds[name]; known && have != kind {
		if !have.is("snfbd") || !kind.is("snfbd") {
			panic(problemf("%s is a list and something else: use two names", name))
		}
		kind = ofData
	}
	p.kinds[name] = kind
	return kind
}

func (p *pongo) include(e *expression) {
	v := e.operand()
	path, ok := literal(tokens(v.code), 0)
	if !ok || v.kind != ofText {
		panic(problem("a name that is computed"))
	}
	if len(e.list) > 0 || p.depth > 10 {
		panic(problem("include with more than a name"))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(p.tmpl.source), path)
	}
	data, err := p.read(path)
	if err != nil {
		panic(problemf("%v", err))
	}
	p.depth++
	body := p.parsed(string(data))
	p.inScope(body, func() { p.nodes(body) })
	p.depth--
}

// inScope translates a body with variables of its own: what it sets is gone after it.
func (p *pongo) inScope(body []node, do func()) {
	before := maps.Clone(p.scope)
	for _, name := range p.assigned(body) {
		if v, known := p.scope[name]; known {
			p.local(name, value{v.code, p.merged(name, v.kind)})
		}
	}
	do()
	p.scope = before
}

// expand translates the body of a macro in the place of its call.
func (p *pongo) expand(m macro, args []value) {
	if p.depth++; p.depth > 10 || len(args) > len(m.args) {
		panic(problem("a macro that calls itself, or too many arguments"))
	}
	here := p.scope
	p.scope = maps.Clone(m.scope)
	p.inScope(m.body, func() {
		for i, name := range m.args {
			text, ok := m.defaults[name]
			switch {
			case i < len(args):
				p.local(name, args[i])
			case ok:
				p.local(name, p.whole(&expression{p: p, list: lexed(text)}))
			default:
				panic(problemf("a macro without its argument %s", name))
			}
		}
		p.nodes(m.body)
	})
	p.scope = here
	p.depth--
}

// local declares a variable under a name of its own.
func (p *pongo) local(name string, v value) {
	p.count++
	local := fmt.Sprintf("$%s_%d", name, p.count)
	p.write(local + " := " + v.code)
	p.scope[name] = value{local, v.kind}
}

func (p *pongo) statement(n node, word string, e *expression, body []node) {
	switch word {
	case "set":
		name := e.must()
		e.must("=")
		p.set(name, p.whole(e))
	case "include":
		p.include(e)
	case "comment":
	case "autoescape":
		p.nodes(body)
	case "macro":
		p.declareMacro(e, body)
	case "with":
		p.inScope(body, func() {
			old := slices.Contains(e.list, "as") // VALUE as NAME, not NAME=VALUE
			for len(e.list) > 0 {
				if old {
					v := e.or()
					e.must("as")
					p.local(e.must(), v)
					continue
				}
				name := e.must()
				e.must("=")
				p.local(name, e.or())
			}
			p.nodes(body)
		})
	case "for":
		p.loop(n, e, body)
	case "if", "ifequal", "ifnotequal":
		p.branches(n, word, e, body)
	default:
		panic(problemf("the statement %s", word))
	}
}

func (p *pongo) declareMacro(e *expression, body []node) {
	name := e.must()
	m := macro{scope: maps.Clone(p.scope), defaults: map[string]string{}, body: body}
	e.must("(")
	for e.take(")") == "" {
		arg := e.must()
		m.args = append(m.args, arg)
		if e.take("=") != "" {
			m.defaults[arg] = e.must()
		}
		if e.take(",") == "" {
			e.must(")")
			break
		}
	}
	p.macros[name] = m
}

// branches translates an if: a variable that is set in it stays.
func (p *pongo) branches(n node, word string, e *expression, body []node) {
	condition := p.guarded(n, func() value {
		if word == "if" {
			return p.whole(e)
		}
		a := e.or()
		return compared(map[string]string{"ifequal": "==", "ifnotequal": "!="}[word], a, p.whole(e))
	})
	p.declare(p.assigned(body))
	p.write("if " + condition.code)
	from, depth := 0, 0
	for i, n := range body {
		switch w := n.word(); {
		case w == word:
			depth++
		case w == pongoBlocks[word]:
			depth--
		case depth == 0 && (w == "elif" || w == "else"):
			p.nodes(body[from:i])
			p.at, from = n.at, i+1
			action := "else"
			if w == "elif" {
				action = "else if " + p.guarded(n, func() value { return p.whole(&expression{p: p, list: lexed(strings.TrimPrefix(n.text, "elif"))}) }).code
			}
			p.write(action)
		}
	}
	p.nodes(body[from:])
	p.write("end")
}

// assigned are the variables that are set in a body, and not in a loop in it.
func (p *pongo) assigned(body []node) []string {
	var names []string
	depth := 0
	for _, n := range body {
		switch n.word() {
		case "for", "with", "macro":
			depth++
		case "endfor", "endwith", "endmacro":
			depth--
		case "set":
			if words := strings.Fields(strings.ReplaceAll(n.text, "=", " = ")); depth == 0 && len(words) > 1 {
				names = append(names, words[1])
			}
		}
	}
	return names
}

func (p *pongo) declare(names []string) {
	for _, name := range names {
		if _, known := p.scope[name]; !known {
			p.scope[name] = value{"$" + name, p.merged(name, ofData)}
			p.write("$" + name + ` := index (dict) "x"`)
		}
	}
}

type looping struct {
	name, second     string
	reversed, sorted bool
	list             value
}

func (p *pongo) loop(n node, e *expression, body []node) {
	l := looping{name: e.must()}
	if e.take(",") != "" {
		l.second = e.must()
	}
	e.must("in")
	l.list = p.guarded(n, func() value {
		over := e.or()
		l.reversed, l.sorted = e.take("reversed") != "", e.take("sorted") != ""
		e.end()
		return l.over(over)
	})
	p.inScope(body, func() {
		p.declare(p.assigned(body))
		p.count++
		all := fmt.Sprintf("$list_%d", p.count)
		if slices.ContainsFunc(body, func(n node) bool {
			return strings.Contains(n.text, "forloop.Last") || strings.Contains(n.text, "forloop.Rev")
		}) {
			p.write(all + " := " + l.list.code)
			l.list.code = all
		}
		p.head(l, all)
		size := bodyOf(body, "for", "empty")
		if size < 0 {
			p.nodes(body)
		} else {
			p.nodes(body[:size])
			p.write("else")
			p.nodes(body[size+1:])
		}
		p.loops = p.loops[:len(p.loops)-1]
		p.write("end")
	})
}

func (p *pongo) head(l looping, all string) {
	first := value{"$" + l.name, l.list.kind}
	if _, known := p.scope[l.name]; known {
		first.code = fmt.Sprintf("$%s_%d", l.name, p.count)
	}
	p.scope[l.name] = first
	if l.second == "" {
		p.loops = append(p.loops, value{first.code + "_i " + all, ofInt})
		p.write("range " + first.code + "_i, " + first.code + " := " + l.list.code)
		return
	}
	p.scope[l.name] = value{first.code, ofText}
	p.scope[l.second] = value{"$" + l.second, ofData}
	p.loops = append(p.loops, value{})
	p.write("range " + first.code + ", $" + l.second + " := " + l.list.code)
}

func (l looping) over(v value) value {
	code := paren(v.code)
	list := value{v.code, map[valueKind]valueKind{ofTexts: ofText, ofPairs: ofPair, ofData: ofData}[v.kind]}
	ofMap := func(then, otherwise string) string {
		return `or (and (kindIs "map" ` + code + ") " + then + ") " + otherwise
	}
	keys := "(sortAlpha (keys " + code + "))"
	no := "(and " + code + ` (fail "a sorted loop, or one of two names, over a value that is not a map"))`
	switch {
	case list.kind == 0 || l.second != "" && v.kind != ofData || l.sorted && v.kind == ofPairs || l.second != "" && l.reversed:
		panic(problem("a loop over this value"))
	case l.second != "":
		list.code = ofMap(code, no)
	case l.sorted && v.kind == ofTexts:
		list.code = "sortAlpha " + code
	case l.sorted:
		list.code = ofMap(keys, no)
	case v.kind == ofData:
		list.code = ofMap(keys, code)
	}
	if l.reversed {
		list.code = "sprig_reverse " + paren(list.code)
	}
	return list
}

// counter is the place in the innermost loop.
func (p *pongo) counter(field string) value {
	if len(p.loops) == 0 || p.loops[len(p.loops)-1].kind != ofInt {
		panic(problemf("forloop.%s", field))
	}
	i, list, _ := strings.Cut(p.loops[len(p.loops)-1].code, " ")
	switch field {
	case "Counter":
		return value{"add 1 " + i, ofInt}
	case "Counter0":
		return value{i, ofInt}
	case "First":
		return value{"eq 0 " + i, ofBool}
	case "Last":
		return value{"eq (len " + list + ") (add 1 " + i + ")", ofBool}
	case "Revcounter":
		return value{"subtract " + i + " (len " + list + ")", ofInt}
	case "Revcounter0":
		return value{"subtract (add 1 " + i + ") (len " + list + ")", ofInt}
	}
	panic(problemf("forloop.%s", field))
}
