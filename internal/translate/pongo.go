package translate

import (
	"regexp"
	"strings"
)

// Templates of remco are pongo2's. What is translated is what most of them
// hold: the key functions, loops over them, conditions on keys and variables,
// and the filters that have a counterpart.

var (
	pongoTag    = regexp.MustCompile(`(?s)\{\{-?(.*?)-?\}\}|\{%-?(.*?)-?%\}|\{#(.*?)#\}`)
	pongoCall   = regexp.MustCompile(`^(getv|gets|getvs|exists|ls|lsdir|getenv)\(\s*("[^"]*"|'[^']*')\s*(?:,\s*("[^"]*"|'[^']*')\s*)?\)$`)
	pongoVar    = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	pongoFor    = regexp.MustCompile(`^for\s+([A-Za-z_]\w*)\s+in\s+(.+)$`)
	pongoSet    = regexp.MustCompile(`^set\s+([A-Za-z_]\w*)\s*=\s*(.+)$`)
	pongoIf     = regexp.MustCompile(`^(if|elif)\s+(.+)$`)
	pongoEqual  = regexp.MustCompile(`^(.+?)\s*(==|!=)\s*(.+)$`)
	pongoString = regexp.MustCompile(`^("[^"]*"|'[^']*'|\d+)$`)
	pongoFilter = map[string]string{
		"upper": "toUpper", "lower": "toLower", "title": "title", "parseJSON": "parseJSON", "parseYAML": "parseYAML",
		"toJSON": "toJSON", "toPrettyJSON": "toJSONPretty", "toYAML": "toYAML", "base64": "base64Encode", "length": "len",
	}
)

// pongo translates one template.
type pongo struct {
	r      *Result
	t      *Template
	prefix string
	scope  []map[string]bool // variables of the open blocks
}

func remcoText(r *Result, t *Template, source, prefix string) {
	p := &pongo{r: r, t: t, prefix: prefix, scope: []map[string]bool{{}}}
	var b strings.Builder
	at := 0
	for _, m := range pongoTag.FindAllStringSubmatchIndex(source, -1) {
		b.WriteString(source[at:m[0]])
		whole := source[m[0]:m[1]]
		at = m[1]
		switch {
		case m[2] >= 0:
			b.WriteString(p.value(strings.TrimSpace(source[m[2]:m[3]]), whole))
		case m[4] >= 0:
			b.WriteString(p.tag(strings.TrimSpace(source[m[4]:m[5]]), whole))
		default:
			b.WriteString("{{/*" + strings.ReplaceAll(source[m[6]:m[7]], "*/", "* /") + "*/}}")
		}
	}
	t.Text = b.String() + source[at:]
}

func (p *pongo) failed(whole string) string {
	p.t.miss("not translated: %s", whole)
	return "{{/* import: not translated: " + strings.ReplaceAll(whole, "*/", "* /") + " */}}"
}

func (p *pongo) value(expr, whole string) string {
	e, ok := p.expr(expr)
	if !ok {
		return p.failed(whole)
	}
	return "{{ " + e + " }}"
}

func (p *pongo) push(names ...string) {
	vars := map[string]bool{}
	for _, n := range names {
		vars[n] = true
	}
	p.scope = append(p.scope, vars)
}

// tag translates a statement.
func (p *pongo) tag(text, whole string) string {
	switch text {
	case "endfor", "endif":
		if len(p.scope) > 1 {
			p.scope = p.scope[:len(p.scope)-1]
			return "{{ end }}"
		}
		return p.failed(whole)
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
		if !ok {
			e = `""`
		}
		p.scope[len(p.scope)-1][m[1]] = true
		out := "{{ $" + m[1] + " := " + e + " }}"
		if !ok {
			out = p.failed(whole) + out
		}
		return out
	}
	if m := pongoIf.FindStringSubmatch(text); m != nil {
		word := "if "
		if m[1] == "elif" {
			word = "else if "
		} else {
			p.push()
		}
		if e, ok := p.condition(strings.TrimSpace(m[2])); ok {
			return "{{ " + word + e + " }}"
		}
		p.failed(whole)
		return "{{ " + word + "false }}{{/* import: not translated: " + strings.ReplaceAll(whole, "*/", "* /") + " */}}"
	}
	return p.failed(whole)
}

// loop translates a loop over keys.
func (p *pongo) loop(name, over, whole string) string {
	defer p.push(name)
	m := pongoCall.FindStringSubmatch(over)
	if m == nil {
		if e, ok := p.expr(over); ok {
			return "{{ range $" + name + " := " + e + " }}"
		}
		return p.failed(whole) + "{{ range $" + name + ` := split "," "" }}`
	}
	ref := quoteGo(p.r.configOf(p.prefix, m[2][1:len(m[2])-1], false))
	switch m[1] {
	case "gets":
		return "{{ range $" + name + " := tree " + ref + " }}"
	case "getvs":
		return "{{ range $" + name + "_pair := tree " + ref + " }}{{ $" + name + " := $" + name + "_pair.Value }}"
	case "ls":
		return "{{ range $" + name + "_pair := ls " + ref + " }}{{ $" + name + " := $" + name + "_pair.Key }}"
	}
	return p.failed(whole) + "{{ range $" + name + ` := split "," "" }}`
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
		name, _, _ := strings.Cut(text, ".")
		for _, vars := range p.scope {
			if vars[name] {
				return "$" + text, true
			}
		}
	}
	return "", false
}

func (p *pongo) call(name, path, def string) (string, bool) {
	if name == "getenv" {
		p.t.allow = append(p.t.allow, "env")
		return "env " + quoteGo(path), def == ""
	}
	ref := quoteGo(p.r.configOf(p.prefix, path, true))
	switch {
	case name == "exists":
		return "keyExists " + ref, true
	case name == "getv" && def != "":
		return "keyOrDefault " + ref + " " + quoteGo(def[1:len(def)-1]), true
	case name == "getv":
		return "key " + ref, true
	case name == "gets":
		return "tree " + ref, true
	}
	return "", false
}
