package translate

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/template"
)

// dialect is how one program's template functions become ours.
type dialect struct {
	left, right string
	prefix      string // of all keys
	// call translates the call of a function at list[i]; it may change the
	// tokens, and returns what cannot be translated.
	call func(t *rewriter, list []token, i int) ([]token, string)
}

// rewriter translates one template.
type rewriter struct {
	dialect

	result  *Result
	tmpl    *Template
	members bool // it lists members of groups: fields are taken for theirs
	blocks  []blockKind
}

// lists finds calls that give members.
var lists = regexp.MustCompile(`\bservice\s+["\x60$(.]`)

// blockKind is an open block.
type blockKind struct {
	ends string // what its end becomes, beside {{ end }}
}

var keywords = []string{"if", "else", "end", "range", "with", "define", "block", "template", "break", "continue", "nil", "true", "false"}

// known reports whether a template of ours can call the function.
func known(name string) bool {
	builtin := []string{
		"and", "or", "not", "len", "index", "slice", "print", "printf", "println", "html", "js", "urlquery", "call",
		"eq", "ne", "lt", "le", "gt", "ge",
	}
	return slices.Contains(builtin, name) || slices.ContainsFunc(template.Functions(), func(f template.Function) bool {
		return f.Name == name || f.Alias == name
	})
}

// translateText translates the text of a template.
func (r *Result) translateText(t *Template, text string, d dialect) {
	w := &rewriter{dialect: d, result: r, tmpl: t, members: lists.MatchString(text)}
	var b strings.Builder
	for _, s := range split(text, d.left, d.right) {
		if !s.action {
			if d.left != "{{" {
				s.text = strings.ReplaceAll(s.text, "{{", "{{ \"{{\" }}")
			}
			b.WriteString(s.text)
			continue
		}
		for _, action := range w.action(s.text) {
			b.WriteString(s.wrap(action))
		}
	}
	t.Text = b.String()
}

// wrap puts an action between delimiters, with the trim marks of the segment.
func (s segment) wrap(action string) string {
	isComment := strings.HasPrefix(action, "/*")
	left, right := "{{ ", " }}"
	switch {
	case s.trimLeft:
		left = "{{- "
	case isComment:
		left = "{{"
	}
	switch {
	case s.trimRight:
		right = " -}}"
	case isComment:
		right = "}}"
	}
	return left + action + right
}

// action translates one action; more than one come out where a comment or a
// second block is needed.
func (w *rewriter) action(text string) []string {
	if text == "" || strings.HasPrefix(text, "/*") {
		return []string{text}
	}
	list := tokens(text)
	word := list[0].text
	opens := slices.Contains([]string{"if", "range", "with", "define", "block"}, word)
	if word == "end" {
		if n := len(w.blocks); n > 0 {
			ends := w.blocks[n-1].ends
			w.blocks = w.blocks[:n-1]
			if ends != "" {
				return []string{"end", ends}
			}
		}
		return []string{text}
	}
	b := blockKind{}
	var more []string
	for i := 0; i < len(list); i++ {
		t := list[i]
		if t.kind != 'w' {
			continue
		}
		if t.text[0] == '.' || t.text[0] == '$' {
			if w.members && (t.text[0] == '$' || len(w.blocks) > 0) { // At the top the dot is nothing.
				list[i].text = w.field(t.text)
			}
			continue
		}
		if slices.Contains(keywords, t.text) || word == "template" || word == "define" {
			continue
		}
		var problem string
		if list, problem = w.call(w, list, i); problem == "" && list[i].kind == 'w' && !known(bare(list[i].text)) {
			problem = "there is no function " + list[i].text
		}
		if problem != "" {
			more = append([]string{"/* import: " + strings.ReplaceAll(problem, "*/", "* /") + ": " + strings.ReplaceAll(text, "*/", "* /") + " */"}, placeholder(text)...)
			w.tmpl.miss("not translated: %s: {{ %s }}", problem, text)
			break
		}
		w.allow(bare(list[i].text))
	}
	if opens {
		w.blocks = append(w.blocks, b)
	}
	if more != nil {
		return more
	}
	return w.listed(joined(list))
}

// listed gives a range over values of keys, or over names, the dot that its
// body expects.
func (w *rewriter) listed(text string) []string {
	for _, mark := range []struct{ word, field string }{{"\x00values", ".Value"}, {"\x00names", ".Key"}} {
		if !strings.Contains(text, mark.word) {
			continue
		}
		text = strings.ReplaceAll(text, mark.word, "")
		if strings.HasPrefix(text, "range ") && !strings.Contains(text, ":=") {
			w.blocks[len(w.blocks)-1].ends = "end"
			return []string{text, "with " + mark.field}
		}
		w.tmpl.miss("{{ %s }} gives pairs here: take %s of each", text, mark.field)
	}
	return []string{text}
}

// allow notes what the functions of a template need.
func (w *rewriter) allow(name string) {
	for _, f := range template.Functions() {
		if f.Name == name && f.Allow != "" {
			w.tmpl.allow = append(w.tmpl.allow, f.Allow)
		}
	}
}

// field translates a field of a member: consul-template's .Address is our
// .Host.
func (w *rewriter) field(text string) string {
	i := strings.LastIndexByte(text, '.')
	if i < 0 {
		return text
	}
	switch text[i+1:] {
	case "Address", "NodeAddress":
		return text[:i] + ".Host"
	case "ServiceMeta", "NodeMeta", "Meta":
		return text[:i] + ".Labels"
	}
	if before, after, ok := strings.Cut(text, ".ServiceMeta."); ok {
		return before + ".Labels." + after
	}
	if slices.Contains([]string{"Tags", "Checks", "NodeID", "Weights", "NodeTaggedAddresses", "ServiceTaggedAddresses"}, text[i+1:]) {
		w.tmpl.miss("members have no field %s: see .Labels, .Weight and .Status", text[i+1:])
	}
	return text
}

var declares = regexp.MustCompile(`^((?:range|with|if|else if|else with)?\s*(?:\$\w+\s*(?:,\s*\$\w+\s*)?:?=)?)`)

// placeholder is what keeps the structure of a template where an action could
// not be translated: a block that is not entered, a variable that is empty.
func placeholder(text string) []string {
	head := strings.TrimSpace(declares.FindString(text))
	switch {
	case strings.HasPrefix(head, "range"):
		return []string{head + " split \",\" \"\""}
	case head != "":
		return []string{head + " \"\""}
	}
	return nil
}

// literal is the value of a string token; false for anything else.
func literal(list []token, i int) (string, bool) {
	if i >= len(list) || list[i].kind != 's' {
		return "", false
	}
	s, err := strconv.Unquote(list[i].text)
	return s, err == nil
}

// bare is the name of a function without the mark of what its range needs, and
// without the method of its result, as in scratch.Set.
func bare(name string) string {
	name, _, _ = strings.Cut(name, "\x00")
	name, _, _ = strings.Cut(name, ".")
	return name
}
