package translate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
)

// valueKind is what is known of a value of a template of remco. pongo2 prints numbers and
// truth values in its own way, and compares only what is of one kind.
type valueKind byte

const (
	ofText  valueKind = 's'
	ofInt   valueKind = 'n'
	ofFloat valueKind = 'f'
	ofBool  valueKind = 'b'
	ofTruth valueKind = 't' // only whether it is empty is right
	ofTexts valueKind = 'l'
	ofPair  valueKind = 'p'
	ofPairs valueKind = 'P'
	ofData  valueKind = 'd' // of a parsed document: one of those above, a list or a map
	ofMap   valueKind = 'm' // of createMap
	ofSet   valueKind = 'S' // of createSet
	noValue valueKind = 'x' // a call that prints nothing
)

func (k valueKind) is(kinds string) bool { return strings.IndexByte(kinds, byte(k)) >= 0 }

// value is an expression of a template of confd. A problem says what cannot be translated.
type value struct {
	code string
	kind valueKind
}

// problem is what cannot be translated. Whoever finds it panics with it, and tried catches it.
type problem string

func problemf(format string, args ...any) problem { return problem(fmt.Sprintf(format, args...)) }

// tried returns what cannot be translated of what do translates; empty: nothing.
func tried(do func()) (why problem) { //nolint:nonamedreturns // The deferred function sets it.
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if why, ok = p.(problem); !ok {
				panic(p)
			}
		}
	}()
	do()
	return ""
}

// paren is an expression as an argument.
func paren(code string) string {
	if !strings.Contains(code, " ") || code[0] == '(' && closing(tokens(code), 0) == len(tokens(code))-1 {
		return code
	}
	if l := tokens(code); len(l) == 1 {
		return code
	}
	return "(" + code + ")"
}

// conversion is a filter or function: what it takes and gives. IN and ARG stand for what
// is given to it; the kind 0 is that of IN.
type conversion struct {
	takes string
	gives valueKind
	code  string
}

var pongoFilters = map[string][]conversion{
	"upper": {{"sd", ofText, "toUpper IN"}}, "lower": {{"sd", ofText, "toLower IN"}}, "title": {{"sd", ofText, "title (toLower IN)"}},
	"base": {{"sd", ofText, "base IN"}}, "dir": {{"sd", ofText, "dir IN"}}, "base64": {{"sd", ofText, "base64Encode IN"}},
	"split": {{"sd", ofTexts, "split IN ARG"}}, "join": {{"l", ofText, "join IN ARG"}}, "cut": {{"sd", ofText, `replaceAll ARG "" IN`}},
	"length":          {{"lP", ofInt, "len IN"}, {"s", ofInt, `len (splitList "" IN)`}, {"d", ofInt, `len (or (and (kindIs "string" IN) (splitList "" IN)) IN)`}},
	"first":           {{"l", ofText, `or (first IN) ""`}, {"d", ofData, "first IN"}},
	"last":            {{"l", ofText, `or (last IN) ""`}, {"d", ofData, "last IN"}},
	"default":         {{"snfbl", 0, "or IN ARG"}, {"d", ofData, "or IN ARG"}},
	"default_if_none": {{"snfbl", 0, "IN"}, {"d", ofData, `ternary ARG IN (kindIs "invalid" IN)`}},
	"parseJSON":       {{"sd", ofData, "parseJSON IN"}}, "parseYAML": {{"sd", ofData, "parseJSON (toJSON (parseYAML IN))"}},
	"parseInt": {{"sd", ofInt, "parseInt IN"}, {"n", ofInt, "IN"}}, "parseFloat": {{"sd", ofFloat, "parseFloat IN"}, {"f", ofFloat, "IN"}},
	"floatformat": {{"fn", ofText, `printf "%.ARGf" (float64 IN)`}}, "stringformat": {{"sn", ofText, "printf ARG IN"}},
	"ljust": {{"s", ofText, `printf "%-ARGs" IN`}}, "rjust": {{"s", ofText, `printf "%ARGs" IN`}}, "urlencode": {{"s", ofText, "urlquery IN"}},
	"safe": {{"snfbd", 0, "IN"}}, "divisibleby": {{"n", ofBool, "eq 0 (modulo ARG IN)"}},
	"index": {{"l", ofText, "index IN ARG"}, {"d", ofData, "index IN ARG"}}, "mapValue": {{"d", ofData, "index IN ARG"}},
	"toJSON": {{"snfbdm", ofText, "toJSON IN"}, {"l", ofText, `ternary "null" (toJSON IN) (empty IN)`}}, "sortByLength": {{"lP", 0, "sortByLength IN"}},
}

var pongoFunctions = map[string]conversion{
	"getv": {"ss", ofText, "getv"}, "exists": {"s", ofBool, "exists"}, "get": {"s", ofPair, "get"}, "gets": {"s", ofPairs, "gets"},
	"getvs": {"s", ofTexts, "getvs"}, "ls": {"s", ofTexts, "ls"}, "lsdir": {"s", ofTexts, "lsdir"}, "getenv": {"ss", ofText, "getenv"},
	"printf": {"", ofText, "printf"}, "contains": {"ss", ofBool, "contains"}, "replace": {"sssn", ofText, "replace"},
	"createMap": {"", ofMap, "dict"}, "createSet": {"", ofSet, "dict"}, "unixTS": {"", ofText, `timestamp "unix"`},
}

// pongoMethods are those of createMap and createSet, with the name of the variable first.
var pongoMethods = map[string]conversion{
	"mSet": {"", noValue, "$_ := set IN ARGS"}, "mGet": {"", ofData, "index IN ARGS"}, "mRemove": {"", noValue, "$_ := unset IN ARGS"},
	"SAppend": {"", noValue, "$_ := set IN (print ARGS) true"}, "SRemove": {"", noValue, "$_ := unset IN ARGS"},
	"SContains": {"", ofBool, "hasKey IN (print ARGS)"}, "SSortedSet": {"", ofTexts, "sortAlpha (keys IN)"},
}

var pongoToken = regexp.MustCompile(`^(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d+|==|!=|<>|<=|>=|&&|\|\||.)`)

// lexed splits an expression into its words and signs.
func lexed(text string) []string {
	var list []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		word := pongoToken.FindString(text)
		if word == "" {
			panic(problemf("%q", text))
		}
		list, text = append(list, word), text[len(word):]
	}
	return list
}

// expression reads expressions, by the grammar of pongo2.
type expression struct {
	p    *pongo
	list []string
}

func (e *expression) peek() string {
	if len(e.list) == 0 {
		return ""
	}
	return e.list[0]
}

// take reads a word if it is one of those that are named.
func (e *expression) take(words ...string) string {
	word := e.peek()
	if word == "" || !slices.Contains(words, word) {
		return ""
	}
	e.list = e.list[1:]
	return word
}

// must reads the word, or any word.
func (e *expression) must(words ...string) string {
	word := e.peek()
	if word == "" || len(words) > 0 && !slices.Contains(words, word) {
		panic(problemf("%q is in the place where %q is expected", word, words))
	}
	e.list = e.list[1:]
	return word
}

// or is a whole expression: and and or are of one precedence, from the right.
func (e *expression) or() value {
	left := e.relation()
	op := e.take("and", "or", "&&", "||")
	if op == "" {
		return left
	}
	name := map[string]string{"and": "and", "&&": "and", "or": "or", "||": "or"}[op]
	return value{name + " " + paren(left.code) + " " + paren(e.or().code), ofTruth}
}

func (e *expression) relation() value {
	left := e.sum()
	switch op := e.take("==", "!=", "<>", "<", ">", "<=", ">=", "in"); op {
	case "":
		return left
	case "in":
		whole := e.sum()
		operands := " " + paren(whole.code) + " " + paren(left.code)
		switch {
		case left.kind == ofText && whole.kind == ofText:
			return value{"contains" + operands, ofBool}
		case left.kind == ofText && whole.kind == ofTexts:
			return value{"in" + operands, ofBool}
		case left.kind == ofText && whole.kind == ofData:
			return value{`or (and (kindIs "map" ` + paren(whole.code) + ") (hasKey" + operands + ")) (in" + operands + ")", ofBool}
		}
		panic(problem("in of these values"))
	default:
		return compared(op, left, e.relation())
	}
}

// compared compares as pongo2 does: values of two kinds are never equal.
func compared(op string, a, b value) value {
	operands := " " + paren(a.code) + " " + paren(b.code)
	switch {
	case op == "==" || op == "!=" || op == "<>":
		equal := "deepEqual" + operands
		if a.kind == b.kind && a.kind.is("snfb") {
			equal = "eq" + operands
		} else if !a.kind.is("snfbd") || !b.kind.is("snfbd") || a.kind == ofInt && b.kind == ofInt {
			panic(problem("a comparison of lists, pairs or conditions"))
		}
		if op != "==" {
			equal = "not (" + equal + ")"
		}
		return value{equal, ofBool}
	case a.kind == b.kind && a.kind.is("nf"):
		return value{map[string]string{"<": "lt", ">": "gt", "<=": "le", ">=": "ge"}[op] + operands, ofBool}
	}
	panic(problemf("%s of values that are not numbers: write parseInt", op))
}

// sum is a sum of products; a not before it is for its first product only.
func (e *expression) sum() value {
	minus := e.take("-", "+") == "-"
	not := e.take("not", "!") != ""
	v := e.product()
	if not {
		v = value{"not " + paren(v.code), ofTruth}
	}
	if minus {
		if _, err := strconv.Atoi(v.code); err != nil {
			panic(problem("a minus before a value"))
		}
		v.code = "-" + v.code
	}
	for op := e.take("+", "-"); op != ""; op = e.take("+", "-") {
		v = calculated(op, v, e.product())
	}
	return v
}

func (e *expression) product() value {
	v := e.factor()
	for op := e.take("*", "/", "%"); op != ""; op = e.take("*", "/", "%") {
		v = calculated(op, v, e.factor())
	}
	return v
}

func calculated(op string, a, b value) value {
	name := map[string]string{"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}[op]
	switch {
	case op == "+" && a.kind == ofText && b.kind == ofText && strings.HasPrefix(a.code, "print "):
		return value{a.code + " " + paren(b.code), ofText}
	case op == "+" && a.kind == ofText && b.kind == ofData:
		return calculated(op, a, textOf(b))
	case op == "+" && a.kind == ofData && b.kind == ofText:
		return calculated(op, textOf(a), b)
	case op == "+" && (a.kind == ofText && b.kind.is("sn") || a.kind == ofInt && b.kind == ofText):
		return value{"print " + paren(a.code) + " " + paren(b.code), ofText}
	case a.kind == ofInt && b.kind == ofInt:
		return value{name + " " + paren(b.code) + " " + paren(a.code), ofInt}
	}
	panic(problemf("%s of values that are not numbers: write parseInt", op))
}

// textOf is a value of a document that must be a text.
func textOf(v value) value {
	is := `kindIs "string" ` + paren(v.code)
	return value{"or (and (" + is + ") " + paren(v.code) + ") (and (not (" + is + `)) (fail "a value that is no text is added to a text")) ""`, ofText}
}

func (e *expression) factor() value {
	var v value
	if e.take("(") != "" {
		v = e.or()
		e.must(")")
	} else {
		v = e.operand()
	}
	for e.take("|") != "" {
		name := e.must()
		var arg *value
		if e.take(":") != "" {
			a := e.operand()
			arg = &a
		}
		v = filtered(name, v, arg)
	}
	return v
}

func filtered(name string, in value, arg *value) value {
	switch name {
	case "parseYAMLArray":
		name = "parseYAML"
	case "integer":
		name = "parseInt"
	case "float":
		name = "parseFloat"
	case "add":
		if arg != nil {
			return calculated("+", in, *arg)
		}
	case "yesno":
		if words, ok := yesNo(arg); ok {
			return value{"ternary " + words + " (not (not " + paren(in.code) + "))", ofText}
		}
	}
	for _, c := range pongoFilters[name] {
		if !in.kind.is(c.takes) || (arg != nil) != strings.Contains(c.code, "ARG") && c.code != "IN" {
			continue
		}
		out := value{c.code, c.gives}
		out.kind = cmp.Or(out.kind, in.kind)
		if arg != nil {
			code := arg.code
			if name == "index" {
				code = strings.Trim(code, `"`)
			}
			if _, err := strconv.ParseUint(code, 10, 32); err != nil && (name == "index" || strings.Contains(c.code, "%")) {
				panic(problemf("the filter %s with a number that is computed or negative", name))
			}
			if name == "default" && arg.kind != in.kind {
				out.kind = ofData
			}
			out.code = strings.ReplaceAll(out.code, "ARG", paren(code))
		}
		out.code = strings.ReplaceAll(out.code, "IN", paren(in.code))
		return out
	}
	panic(problemf("the filter %s of this value", name))
}

// yesNo are the two words of the filter yesno.
func yesNo(arg *value) (string, bool) {
	if arg == nil {
		return `"yes" "no"`, true
	}
	words, err := strconv.Unquote(arg.code)
	yes, no, ok := strings.Cut(words, ",")
	return quoteGo(yes) + " " + quoteGo(no), err == nil && ok && !strings.Contains(no, ",")
}

// operand is a literal, a variable with fields, or a call.
func (e *expression) operand() value {
	word := e.must()
	switch c := word[0]; {
	case c == '"' || c == '\'':
		text := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(word[1 : len(word)-1])
		return value{quoteGo(text), ofText}
	case c >= '0' && c <= '9':
		if e.take(".") != "" {
			return value{word + "." + e.must(), ofFloat}
		}
		return value{word, ofInt}
	case word == "true" || word == "false":
		return value{word, ofBool}
	case !regexp.MustCompile(`^[A-Za-z_]`).MatchString(word):
		panic(problemf("%q is in the place where a value is expected", word))
	}
	if e.take("(") != "" {
		return e.p.call(word, e.arguments())
	}
	if f, ok := pongoFunctions[word]; ok && f.takes == "" && word != "printf" {
		return value{f.code, f.gives}
	}
	v, known := e.p.scope[word]
	switch {
	case word == "forloop":
		v = value{code: word}
	case !known:
		panic(problemf("there is no variable %s", word))
	}
	for v.code == "forloop" || e.peek() == "." || e.peek() == "[" {
		v = e.field(v)
	}
	return v
}

func (e *expression) arguments() []value {
	var args []value
	for e.take(")") == "" {
		args = append(args, e.or())
		if e.take(",") == "" {
			e.must(")")
			break
		}
	}
	return args
}

// field is a field, an element or a method of a value.
func (e *expression) field(v value) value {
	if e.take("[") != "" {
		i := e.or()
		e.must("]")
		if v.kind != ofData || !i.kind.is("ns") {
			panic(problem("an element of a value that is not a document"))
		}
		return value{"index " + paren(v.code) + " " + paren(i.code), ofData}
	}
	e.must(".")
	name := e.must()
	switch {
	case v.code == "forloop":
		return e.p.counter(name)
	case v.kind == ofPair && (name == "Key" || name == "Value"):
		return value{paren(v.code) + "." + name, ofText}
	case v.kind.is("dl") && name[0] >= '0' && name[0] <= '9':
		return value{"index " + paren(v.code) + " " + name, map[valueKind]valueKind{ofData: ofData, ofTexts: ofText}[v.kind]}
	case v.kind == ofData:
		return value{paren(v.code) + "." + name, ofData}
	}
	m, ok := pongoMethods[string(v.kind)+name]
	if !ok {
		panic(problemf("the field %s of this value", name))
	}
	e.must("(")
	args := lists.Map(e.arguments(), func(a value) string { return paren(a.code) })
	return value{strings.NewReplacer("IN", v.code, "ARGS", strings.Join(args, " ")).Replace(m.code), m.gives}
}

// call is the call of a function.
func (p *pongo) call(name string, args []value) value {
	f, ok := pongoFunctions[name]
	if !ok {
		panic(problemf("the function %s", name))
	}
	words := []string{f.code}
	for i, a := range args {
		if name != "printf" && (i >= len(f.takes) || a.kind != valueKind(f.takes[i]) && a.kind != ofData) || !a.kind.is("snfbd") {
			panic(problemf("the argument %d of %s", i+1, name))
		}
		words = append(words, paren(a.code))
	}
	if name == "getv" && len(args) == 1 {
		words = append(words, `""`)
	}
	return value{strings.Join(words, " "), f.gives}
}
