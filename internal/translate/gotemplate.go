package translate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/zkagent/zkagent/template"
)

// dialect is how one program's template functions become ours.
type dialect struct {
	left, right string
	prefix      string         // of all keys
	keys        []string       // below which the original reads; empty: everywhere
	keyIsPath   bool           // the key of a pair is its whole path
	remco       bool           // its store: what is absent is empty, and a key is not listed below itself
	lists       *regexp.Regexp // finds calls that give members or pairs
	// call translates the call of a function at list[i]; it may change the tokens. It
	// panics with the problem of what cannot be translated.
	call func(w *rewriter, list []token, i int) []token
	// mapField translates a field of a value: what stands for it, empty to leave
	// it as it is. It panics as call does.
	mapField func(w *rewriter, of shape, base, path string, list []token) string
}

type rewriter struct {
	dialect

	result  *Result
	tmpl    *Template
	scopes  []scope           // of the open blocks; the first is that of the template
	calls   map[string]shape  // what defined templates are called with
	scratch map[string]shape  // what is in the scratchpad
	texts   map[string]string // the expressions of what is there that is set once
	listed  bool              // it lists members or pairs somewhere
	fields  map[string]bool   // ID, Node: which of them it uses
	at      string            // where the action is that is translated
	before  []string          // actions that have to stand before it
	count   int               // of names that are made
}

type scope struct {
	dot  shape
	vars map[string]shape
	defs map[string][]token // the expressions that variables have, while they have them
}

// now is the scope of the innermost block.
func (w *rewriter) now() *scope {
	if len(w.scopes) == 0 {
		w.scopes = []scope{{vars: map[string]shape{}, defs: map[string][]token{}}}
	}
	return &w.scopes[len(w.scopes)-1]
}

func (w *rewriter) dot() shape { return w.now().dot }

// open begins a block, with the variables that are there.
func (w *rewriter) open(dot shape) {
	s := w.now()
	w.scopes = append(w.scopes, scope{dot, maps.Clone(s.vars), maps.Clone(s.defs)})
}

// close ends the innermost block.
func (w *rewriter) close() {
	if n := len(w.scopes); n > 1 {
		w.scopes = w.scopes[:n-1]
	}
}

var keywords = []string{"if", "else", "end", "range", "with", "define", "block", "template", "break", "continue", "nil", "true", "false"}

// translateText translates the text of a template. It goes over it twice: what
// defined templates are called with is known when all has been seen.
func (r *Result) translateText(t *Template, text string, d dialect) {
	r.translateBest(t, d, func(t *Template, d dialect) {
		w := newRewriter(r, d)
		w.listed = d.lists.MatchString(text)
		w.text(text)
		w.tmpl = t
		t.Text = w.text(text)
	})
}

// translateBest translates a template with a config for each first element of a key; or,
// where that loses something that one config of all keys does not lose, with that.
func (r *Result) translateBest(t *Template, d dialect, translate func(*Template, dialect)) {
	lost := func(d dialect) int {
		notes, configs := r.notes, maps.Clone(r.configs)
		defer func() { r.notes, r.configs = notes, configs }()
		try := Template{source: t.source}
		translate(&try, d)
		return try.lost
	}
	if least := lost(d); d.prefix == "" && least > 0 {
		all := d
		if all.prefix = rootPath; lost(all) < least {
			d = all
			t.note("it asks for keys whose first element is computed: put all keys that it may ask for below %s", rootPath)
		}
	}
	translate(t, d)
}

// newRewriter returns one that notes what it misses in a template of nobody.
func newRewriter(r *Result, d dialect) *rewriter {
	return &rewriter{dialect: d, result: r, tmpl: &Template{}, calls: map[string]shape{}, scratch: map[string]shape{}, texts: map[string]string{}, fields: map[string]bool{}}
}

func (w *rewriter) text(text string) string {
	w.scopes, w.count = nil, 0
	var b strings.Builder
	for _, s := range split(text, w.left, w.right) {
		if !s.action {
			if w.left != "{{" {
				s.text = strings.ReplaceAll(s.text, "{{", "{{ \"{{\" }}")
			}
			b.WriteString(s.text)
			continue
		}
		w.at = fmt.Sprintf("line %d, column %d", s.line, s.column)
		action := w.action(s.text)
		for _, first := range w.before {
			b.WriteString(segment{trimLeft: s.trimLeft}.wrap(first))
			s.trimLeft = false
		}
		w.before = nil
		b.WriteString(s.wrap(action))
	}
	return b.String()
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

var memberLists = regexp.MustCompile(`\bservices?\b`)

// action translates one action. One that cannot be translated fails when it is
// executed: it never gives an empty value.
func (w *rewriter) action(text string) string {
	if text == "" || strings.HasPrefix(text, "/*") {
		return text
	}
	list := unpiped(tokens(text))
	word := list[0].text
	switch word {
	case "end":
		w.close()
		return text
	case "else":
		w.close()
		w.open(w.dot())
	}
	w.called(list)
	out := ""
	why := tried(func() {
		out = joined(w.translated(slices.Clone(list), word))
		w.declare(tokens(out), word, text)
	})
	if why != "" {
		w.tmpl.miss("%s: not translated: %s: {{ %s }}", w.at, why, text)
		if opens(word) {
			w.open(data)
		}
		return strings.TrimSpace(strings.TrimSpace(declares.FindString(text)) + " fail " + quoteGo("import: "+string(why)+": "+text))
	}
	return out
}

// asks are the functions whose name of keys or of a service may be piped into them.
var asks = []string{"key", "keyExists", "ls", "tree", "safeLs", "safeTree", "service", "getv", "get", "gets", "getvs", "exists", "lsdir", "atoi"}

// unpiped writes a value that is piped into such a function as its argument.
func unpiped(list []token) []token {
	for i := 0; i < len(list); i++ {
		if after := next(list, i); list[i].kind != 'w' || !slices.Contains(asks, list[i].text) || after < len(list) && list[after].text != "|" && list[after].text != ")" {
			continue
		}
		bar := i - 1
		for ; bar >= 0 && list[bar].kind == 'b'; bar-- {
		}
		if bar < 0 || list[bar].text != "|" {
			continue
		}
		from := bar
		for from > 0 && list[from-1].text != "(" && list[from-1].text != "=" && !slices.Contains(keywords, list[from-1].text) {
			if from--; list[from].text == ")" {
				from = opening(list, from)
			}
		}
		for list[from].kind == 'b' {
			from++
		}
		value := slices.Clone(list[from:bar])
		for len(value) > 0 && value[len(value)-1].kind == 'b' {
			value = value[:len(value)-1]
		}
		if len(value) > 1 {
			value = slices.Concat([]token{{"(", 'o'}}, value, []token{{")", 'o'}})
		}
		list = slices.Concat(list[:from], []token{list[i], {" ", 'b'}}, value, list[i+1:])
		i = from
	}
	return list
}

func opens(word string) bool {
	return slices.Contains([]string{"if", "range", "with", "define", "block"}, word)
}

func (w *rewriter) called(list []token) {
	for _, stage := range stages(list) {
		args := arguments(stage)
		if len(args) < 3 || !slices.Contains([]string{"template", "executeTemplate", "block"}, args[0][0].text) {
			continue
		}
		name, ok := literal(args[1], 0)
		var sh shape
		why := tried(func() {
			if at := slices.IndexFunc(list, func(t token) bool { return t.kind == 's' }); args[0][0].text != "executeTemplate" && at >= 0 {
				sh = w.shapeOf(list[at+1:]) // all that follows is a pipeline
			} else {
				sh = w.operand(args[2])
			}
		})
		if !ok || why != "" {
			continue
		}
		if have, known := w.calls[name]; known && have != sh {
			if sh.name = ""; have.kind != sh.kind || have.depth != sh.depth {
				sh = shape{kind: passed}
			}
		}
		w.calls[name] = sh
	}
}

func (w *rewriter) calledWith(list []token) shape {
	name, _ := literal(list, max(slices.IndexFunc(list, func(t token) bool { return t.kind == 's' }), 0))
	if sh, known := w.calls[name]; known {
		return sh
	}
	return shape{kind: passed}
}

func (w *rewriter) translated(list []token, word string) []token {
	if word == "define" {
		return list
	}
	for i := 0; i < len(list); i++ {
		switch t := list[i]; {
		case t.kind != 'w' || slices.Contains(keywords, t.text):
		case t.text[0] == '.' || t.text[0] == '$':
			list = w.field(list, i)
		default:
			list = w.call(w, list, i)
			if name := bare(list[i].text); list[i].kind == 'w' && !w.allow(name) {
				panic(problem("there is no function " + name))
			}
		}
	}
	return list
}

// declare opens the block of an action, and remembers what its variables are.
func (w *rewriter) declare(list []token, word, original string) {
	text := joined(list)
	head := declares.FindString(text)
	names := variableName.FindAllString(head, -1)
	if word == "else" && strings.Contains(head, "with") {
		word = "else with"
	}
	sh := w.shapeOf(tokens(text[len(head):]))
	elem := sh
	if word == "range" {
		elem = sh.element()
	}
	for _, name := range names {
		if have, known := w.now().vars[name]; known && (have.kind != elem.kind || have.depth != elem.depth) && (have.structure() || elem.structure()) && len(names) == 1 {
			panic(problem("the variable " + name + " is " + have.kind.String() + " and something else: use two names"))
		}
	}
	outer := w.dot()
	if opens(word) {
		w.open(outer)
	}
	if len(names) == 2 {
		w.variable(names[0], data, "")
	}
	if len(names) > 0 {
		w.variable(names[len(names)-1], elem, original)
	}
	switch {
	case opens(word):
		dot := outer
		switch word {
		case "range", "with":
			dot = elem
		case "define", "block":
			dot = w.calledWith(list)
			w.variable("$", dot, "")
		}
		w.now().dot = dot
	case word == "else with":
		w.now().dot = elem
	case !slices.Contains(keywords, word) && len(names) == 0 && sh.structure():
		panic(problem("it prints " + sh.kind.String() + ", which look otherwise here"))
	}
}

// defined is a variable that gets a value by itself.
var defined = regexp.MustCompile(`(?s)^(?:with\s+)?\$\w+\s*(:?=)\s*(.*)$`)

// variable remembers what a variable is, and the expression that it is declared with.
// Expressions with a variable of that name are not what they were.
func (w *rewriter) variable(name string, sh shape, action string) {
	m := defined.FindStringSubmatch(action)
	from := len(w.scopes) - 1
	if m != nil && m[1] == "=" {
		from = 0
	}
	for _, s := range w.scopes[from:] {
		if _, known := s.vars[name]; known || from > 0 || len(w.scopes) == 1 {
			s.vars[name] = sh
		}
		maps.DeleteFunc(s.defs, func(of string, list []token) bool {
			return of == name || slices.ContainsFunc(list, func(t token) bool { return bare(t.text) == name })
		})
	}
	if m == nil {
		return
	}
	if def := tokens(m[2]); !slices.ContainsFunc(def, func(t token) bool { return bare(t.text) == name }) {
		w.now().defs[name] = def
	}
}

// allow notes what a function of a template needs. It returns whether there is one.
func (w *rewriter) allow(name string) bool {
	for _, f := range template.Functions() {
		if f.Name == name || f.Alias == name {
			if f.Allow != "" {
				w.tmpl.allow = append(w.tmpl.allow, f.Allow)
			}
			return true
		}
	}
	return false
}

var (
	declares     = regexp.MustCompile(`^(?:(?:range|with|if|else\s+if|else\s+with)\b)?\s*(?:\$\w+\s*(?:,\s*\$\w+\s*)?:?=)?`)
	variableName = regexp.MustCompile(`\$\w+`)
)

// literal is the value of a string token; false for anything else.
func literal(list []token, i int) (string, bool) {
	if i >= len(list) || list[i].kind != 's' {
		return "", false
	}
	s, err := strconv.Unquote(list[i].text)
	return s, err == nil
}

// bare is the name of a function without a method, as in scratch.Set.
func bare(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return name
}

// segment is plain text, or what stands between delimiters.
type segment struct {
	action    bool
	text      string // without delimiters and trim marks
	trimLeft  bool
	trimRight bool

	line, column int // of the action, from 1
}

// split splits a template at its delimiters, but not at those in strings and comments.
func split(text, left, right string) []segment {
	var list []segment
	line, column := 1, 1
	pass := func(part string) {
		line += strings.Count(part, "\n")
		if i := strings.LastIndexByte(part, '\n'); i >= 0 {
			column = len(part) - i
		} else {
			column += len(part)
		}
	}
	for {
		i := strings.Index(text, left)
		if i < 0 {
			return append(list, segment{text: text})
		}
		list = append(list, segment{text: text[:i]})
		pass(text[:i])
		text = text[i+len(left):]
		n := endOf(text, right)
		if n < 0 {
			return append(list, segment{text: left + text})
		}
		s := segment{action: true, text: text[:n], line: line, column: column}
		pass(left + text[:n] + right)
		if rest, ok := strings.CutPrefix(s.text, "-"); ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			s.trimLeft, s.text = true, rest
		}
		if rest, ok := strings.CutSuffix(s.text, "-"); ok && rest != "" && strings.ContainsAny(rest[len(rest)-1:], " \t\r\n") {
			s.trimRight, s.text = true, rest
		}
		s.text = strings.TrimSpace(s.text)
		list = append(list, s)
		text = text[n+len(right):]
	}
}

func endOf(text, right string) int {
	if t := strings.TrimLeft(strings.TrimPrefix(text, "-"), " \t\r\n"); strings.HasPrefix(t, "/*") {
		if i := strings.Index(text, "*/"); i >= 0 {
			if j := strings.Index(text[i:], right); j >= 0 {
				return i + j
			}
		}
		return -1
	}
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], right):
			return i
		case strings.ContainsRune("\"`'", rune(text[i])):
			n := stringEnd(text[i:])
			if n < 0 {
				return -1
			}
			i += n
		default:
			i++
		}
	}
	return -1
}

// stringEnd is the length of the quoted string that text begins with.
func stringEnd(text string) int {
	q := text[0]
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && q != '`':
			i++
		case text[i] == q:
			return i + 1
		}
	}
	return -1
}

// token is a word, a string or a sign of an action.
type token struct {
	text string
	kind byte // w(ord), s(tring), b(lank), o(there)
}

var wordPattern = regexp.MustCompile(`^(?:\$[\pL\pN_]*|[\pL_][\pL\pN_]*|\.[\pL_][\pL\pN_]*)(?:\.[\pL_][\pL\pN_]*)*|^\.`)

func tokens(text string) []token {
	var list []token
	for text != "" {
		t := token{kind: 'o'}
		switch n := len(text) - len(strings.TrimLeft(text, " \t\r\n")); {
		case n > 0:
			t = token{text[:n], 'b'}
		case strings.ContainsRune("\"`'", rune(text[0])) && stringEnd(text) > 0:
			t = token{text[:stringEnd(text)], 's'}
		default:
			if w := wordPattern.FindString(text); w != "" {
				t = token{w, 'w'}
			} else {
				_, size := utf8.DecodeRuneInString(text)
				t.text = text[:size]
			}
		}
		list = append(list, t)
		text = text[len(t.text):]
	}
	return list
}

func joined(list []token) string {
	var b strings.Builder
	for _, t := range list {
		b.WriteString(t.text)
	}
	return b.String()
}

// next is the index of the next token that is not blank; len(list) for none.
func next(list []token, i int) int {
	for i++; i < len(list) && list[i].kind == 'b'; {
		i++
	}
	return i
}
