package translate

import (
	"regexp"
	"slices"
	"strings"
)

// Templates of remco are pongo2's. What is translated is what most of them
// hold: the key functions, loops over them, conditions on keys and variables,
// and the filters that have a counterpart.

var (
	pongoTag      = regexp.MustCompile(`(?s)\{\{-?(.*?)-?\}\}|\{%-?(.*?)-?%\}|\{#(.*?)#\}`)
	commentAfter  = regexp.MustCompile(`(?s)(%\})(?:\{#.*?#\})+`)
	commentBefore = regexp.MustCompile(`(?s)(?:\{#.*?#\})+(\{%)`)
	pongoCall     = regexp.MustCompile(`^(getv|gets|getvs|exists|ls|lsdir|getenv)\(\s*("[^"]*"|'[^']*')\s*(?:,\s*("[^"]*"|'[^']*')\s*)?\)$`)
	pongoVar      = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	pongoFor      = regexp.MustCompile(`^for\s+([A-Za-z_]\w*)\s+in\s+(.+)$`)
	pongoSet      = regexp.MustCompile(`^set\s+([A-Za-z_]\w*)\s*=\s*(.+)$`)
	pongoIf       = regexp.MustCompile(`^(if|elif)\s+(.+)$`)
	pongoEqual    = regexp.MustCompile(`^(.+?)\s*(==|!=)\s*(.+)$`)
	pongoString   = regexp.MustCompile(`^("[^"]*"|'[^']*'|\d+)$`)
	pongoFilter   = map[string]string{
		"upper": "toUpper", "lower": "toLower", "title": "title", "parseJSON": "parseJSON", "parseYAML": "parseYAML",
		"toJSON": "toJSON", "toPrettyJSON": "toJSONPretty", "toYAML": "toYAML", "base64": "base64Encode", "length": "len",
	}
)

// pongo translates one template.
type pongo struct {
	r      *Result
	t      *Template
	prefix string
	keys   []string               // below which the original reads; empty: everywhere
	scope  []map[string]pongoKind // variables of the open blocks
}

func remcoText(r *Result, t *Template, source, prefix string, keys []string) {
	p := &pongo{r: r, t: t, prefix: prefix, keys: keys, scope: []map[string]pongoKind{{}}}
	var b strings.Builder
	at := 0
	source = trimmedBlocks(source)
	for _, m := range pongoTag.FindAllStringSubmatchIndex(source, -1) {
		b.WriteString(strings.ReplaceAll(source[at:m[0]], "{{", `{{ "{{" }}`))
		whole := source[m[0]:m[1]]
		at = m[1]
		out := ""
		switch {
		case m[2] >= 0:
			out = p.value(strings.TrimSpace(source[m[2]:m[3]]), whole)
		case m[4] >= 0:
			out = p.tag(strings.TrimSpace(source[m[4]:m[5]]), whole)
		default:
			out = "{{/*" + strings.ReplaceAll(source[m[6]:m[7]], "*/", "* /") + "*/}}"
		}
		if strings.HasPrefix(whole, "{%-") || strings.HasPrefix(whole, "{{-") {
			out = "{{- " + strings.TrimPrefix(strings.TrimPrefix(out, "{{"), " ")
		}
		if strings.HasSuffix(whole, "-%}") || strings.HasSuffix(whole, "-}}") {
			out = strings.TrimSuffix(strings.TrimSuffix(out, "}}"), " ") + " -}}"
		}
		b.WriteString(out)
	}
	t.Text = b.String() + strings.ReplaceAll(source[at:], "{{", `{{ "{{" }}`)
}

// trimmedBlocks is the text as remco reads it: blanks before a statement and the line
// break after it are no text.
func trimmedBlocks(source string) string {
	// A comment beside a statement is nothing between it and the blanks.
	source = commentAfter.ReplaceAllString(source, "$1")
	source = commentBefore.ReplaceAllString(source, "$1")
	var b strings.Builder
	at := 0
	for _, m := range pongoTag.FindAllStringSubmatchIndex(source, -1) {
		if m[4] < 0 {
			continue
		}
		b.WriteString(strings.TrimRight(source[at:m[0]], " \t") + source[m[0]:m[1]])
		at = m[1]
		if strings.HasPrefix(source[at:], "\n") {
			at++
		}
	}
	return b.String() + source[at:]
}

// pongoKind is what a variable is.
type pongoKind int

const (
	pongoValue pongoKind = iota + 1
	pongoPair
	pongoData // of a parsed document
	pongoLoop // the loop itself, by the name of its index
)

// failed is an action that fails: what is not translated never is an empty value.
func (p *pongo) failed(head, whole string) string {
	p.t.miss("not translated: %s", whole)
	return "{{ " + head + "fail " + quoteGo("import: not translated: "+whole) + " }}"
}

func (p *pongo) value(expr, whole string) string {
	e, ok := p.expr(expr)
	if !ok {
		return p.failed("", whole)
	}
	if p.parsed(expr) {
		// As pongo2 does: numbers with six digits, True and False, and no list or object.
		return "{{ $v := " + e + ` }}{{ if kindIs "float64" $v }}{{ printf "%f" $v }}{{ else if kindIs "bool" $v }}{{ ternary "True" "False" $v }}` +
			`{{ else if or (kindIs "string" $v) (kindIs "int" $v) (kindIs "int64" $v) }}{{ $v }}{{ else if kindIs "invalid" $v }}` +
			`{{ else }}{{ fail "a list or object is printed: write it with toJSON" }}{{ end }}`
	}
	return "{{ " + e + " }}"
}

// parsed reports whether an expression gives what a document holds: values that pongo2
// prints in its own way.
func (p *pongo) parsed(expr string) bool {
	head, filters, _ := strings.Cut(expr, "|")
	name, _, _ := strings.Cut(strings.TrimSpace(head), ".")
	if filters == "" {
		return p.kind(name) == pongoData
	}
	last := filters[strings.LastIndexByte(filters, '|')+1:]
	last, _, _ = strings.Cut(strings.TrimSpace(last), ":")
	return last == "parseJSON" || last == "parseYAML" || last == "default" && p.kind(name) == pongoData
}

func (p *pongo) push(vars map[string]pongoKind) { p.scope = append(p.scope, vars) }

// kind is what a variable is; 0 for none.
func (p *pongo) kind(name string) pongoKind {
	for _, vars := range slices.Backward(p.scope) {
		if k := vars[name]; k != 0 {
			return k
		}
	}
	return 0
}

// tag translates a statement.
func (p *pongo) tag(text, whole string) string {
	switch text {
	case "endfor", "endif":
		if len(p.scope) > 1 {
			p.scope = p.scope[:len(p.scope)-1]
			return "{{ end }}"
		}
		return p.failed("", whole)
	case "else":
		return "{{ else }}"
	case "empty":
		return "{{ else }}"
	}
	if m := pongoFor.FindStringSubmatch(text); m != nil {
		return p.loop(m[1], strings.TrimSpace(m[2]), whole)
	}
	if m := pongoSet.FindStringSubmatch(text); m != nil {
		e, ok := p.expr(m[2])
		op := " := "
		if p.kind(m[1]) != 0 {
			op = " = "
		} else {
			p.scope[len(p.scope)-1][m[1]] = p.valueKind(m[2])
		}
		if !ok {
			return p.failed("$"+m[1]+op, whole)
		}
		return "{{ $" + m[1] + op + e + " }}"
	}
	if m := pongoIf.FindStringSubmatch(text); m != nil {
		word := "if "
		if m[1] == "elif" {
			word = "else if "
		} else {
			p.push(map[string]pongoKind{})
		}
		if e, ok := p.condition(strings.TrimSpace(m[2])); ok {
			return "{{ " + word + e + " }}"
		}
		return p.failed(word, whole)
	}
	return p.failed("", whole)
}

func (p *pongo) valueKind(expr string) pongoKind {
	if p.parsed(expr) {
		return pongoData
	}
	return pongoValue
}

// loop translates a loop over keys, or over a list.
func (p *pongo) loop(name, over, whole string) string {
	kind := p.valueKind(over)
	e, ok := p.expr(over)
	if m := pongoCall.FindStringSubmatch(over); m != nil && m[1] == "gets" {
		kind = pongoPair
	}
	index := "$" + name + "_i"
	p.push(map[string]pongoKind{name: kind, "forloop": pongoLoop, index: pongoLoop})
	head := "range " + index + ", $" + name + " := "
	if !ok {
		return p.failed(head, whole)
	}
	return "{{ " + head + e + " }}"
}

// counter is the place in the innermost loop.
func (p *pongo) counter(field string) (string, bool) {
	for _, vars := range slices.Backward(p.scope) {
		if vars["forloop"] == 0 {
			continue
		}
		for name := range vars {
			if strings.HasPrefix(name, "$") {
				switch field {
				case "Counter":
					return "(add 1 " + name + ")", true
				case "Counter0":
					return name, true
				case "First":
					return "(eq 0 " + name + ")", true
				}
			}
		}
		break
	}
	return "", false
}

func (p *pongo) condition(text string) (string, bool) {
	if rest, ok := strings.CutPrefix(text, "not "); ok {
		e, ok := p.expr(strings.TrimSpace(rest))
		return "not (" + e + ")", ok
	}
	if m := pongoEqual.FindStringSubmatch(text); m != nil {
		a, okA := p.expr(m[1])
		b, okB := p.expr(m[3])
		op := map[string]string{"==": "eq", "!=": "ne"}[m[2]]
		return op + " (" + a + ") (" + b + ")", okA && okB
	}
	return p.expr(text)
}

// expr translates a value with its filters.
func (p *pongo) expr(text string) (string, bool) {
	parts := strings.Split(text, "|")
	e, ok := p.operand(strings.TrimSpace(parts[0]))
	if !ok {
		return "", false
	}
	for _, f := range parts[1:] {
		name, arg, hasArg := strings.Cut(strings.TrimSpace(f), ":")
		switch to := pongoFilter[name]; {
		case name == "default" && hasArg && pongoString.MatchString(arg):
			e += " | sprig_default " + quoteGo(strings.Trim(arg, `"'`))
		case to != "" && !hasArg:
			e += " | " + to
		default:
			return "", false
		}
	}
	return e, true
}

func (p *pongo) operand(text string) (string, bool) {
	if m := pongoCall.FindStringSubmatch(text); m != nil {
		return p.call(m[1], m[2][1:len(m[2])-1], m[3])
	}
	if pongoString.MatchString(text) {
		if text[0] >= '0' && text[0] <= '9' {
			return text, true
		}
		return quoteGo(text[1 : len(text)-1]), true
	}
	if pongoVar.MatchString(text) {
		name, field, _ := strings.Cut(text, ".")
		switch p.kind(name) {
		case pongoLoop:
			return p.counter(field)
		case pongoValue, pongoData:
			return "$" + text, true
		case pongoPair:
			switch field {
			case "Key":
				key := p.r.pairKey(p.prefix, "$"+name+".Path")
				return key, key != ""
			case "Value":
				return "$" + text, true
			}
		}
	}
	return "", false
}

func (p *pongo) call(name, path, def string) (string, bool) {
	if name == "getenv" {
		p.t.allow = append(p.t.allow, "env")
		if def != "" {
			return "(or (env " + quoteGo(path) + ") " + quoteGo(def[1:len(def)-1]) + ")", true
		}
		return "(env " + quoteGo(path) + ")", true
	}
	single, pattern := true, false
	switch name {
	case "gets", "getvs":
		below, ok := direct(path)
		if pattern = !ok; ok {
			path = below
		}
		single = false
	case "ls", "lsdir":
		single = false
	}
	if !pattern && strings.ContainsAny(path, "*?[") {
		return "", false
	}
	if !below(p.keys, path) {
		p.t.note("%s is not below the keys of the resource, so remco does not read it", path)
		return "", false
	}
	where, problem := p.r.configOf(p.prefix, path, single)
	if problem != "" {
		p.t.note("%s", problem)
		return "", false
	}
	ref := quoteGo(where)
	pairs := "ls " + ref
	if pattern {
		head, _, _ := strings.Cut(where, "/")
		pairs = "pathMatch " + ref + " (tree " + quoteGo(head) + ")"
	}
	switch {
	case name == "exists":
		return "keyExists " + ref, true
	case name == "getv" && def != "":
		return "keyOrAbsent " + ref + " " + quoteGo(def[1:len(def)-1]), true
	case name == "getv":
		return "key " + ref, true
	case name == "gets":
		return pairs, true
	case name == "getvs":
		return "sortAlpha (values (" + pairs + "))", true
	case name == "ls" && deep(p.prefix, path):
		return "ternary (list (base " + ref + ")) (keys (explode (tree " + ref + "))) (keyExists " + ref + ")", true
	case name == "ls":
		return "keys (explode (tree " + ref + "))", true
	case name == "lsdir":
		return "keys (byKey (tree " + ref + "))", true
	}
	return "", false
}
