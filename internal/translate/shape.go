package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
)

// kind is what a value of a template is, or what the lists and maps in it are of.
type kind int

const (
	nothing  kind = iota // the dot at the top
	someData             // what a template has parsed or made: fields are its own
	passed               // what a defined template is called with
	member
	pair
	service
)

func (k kind) String() string {
	return map[kind]string{member: "members of services", pair: "pairs of keys", service: "services"}[k]
}

// shape is what is known of a value.
type shape struct {
	kind  kind
	depth int    // of the lists and maps around it
	name  string // of the service: an expression; empty when it is not known
}

// data is the shape of a value that is the same here.
var data = shape{kind: someData}

// structure reports whether a value is one that looks otherwise here.
func (s shape) structure() bool { return s.kind >= member }

// element is what a list or map gives.
func (s shape) element() shape {
	if !s.structure() || s.depth == 0 {
		return data
	}
	s.depth--
	return s
}

// inside is the value at a path of fields, and the fields of that one.
func (s shape) inside(path string) (shape, string, string) {
	keys := ""
	for s.structure() && s.depth > 0 && path != "" {
		key, rest, _ := strings.Cut(path, ".")
		s, keys, path = s.element(), keys+"."+key, rest
	}
	return s, keys, path
}

// printers show the inside of what they get.
var printers = []string{"toJSON", "toJSONPretty", "toUnescapedJSON", "toUnescapedJSONPretty", "toYAML", "toTOML", "toJson", "toPrettyJson", "toRawJson", "print", "println", "printf"}

// shapeOf finds out what a pipeline gives.
func (w *rewriter) shapeOf(list []token) shape {
	var sh shape
	for i, stage := range stages(list) {
		args := arguments(stage)
		if len(args) == 0 {
			continue
		}
		shapes := lists.Map(args, w.operand)
		if i > 0 {
			shapes = append(shapes, sh)
		}
		name := ""
		if a := args[0]; len(a) == 1 && a[0].kind == 'w' && a[0].text[0] != '.' && a[0].text[0] != '$' {
			name = strings.TrimPrefix(a[0].text, "sprig_")
		}
		if args[0][0].kind == 's' && len(args) > 1 {
			name = "template"
		}
		switch {
		case name == "" && len(args) == 1 && i == 0:
			sh = shapes[0]
		case slices.Contains(printers, name) && slices.ContainsFunc(shapes[1:], shape.structure):
			panic(problem(name + " of what looks otherwise here"))
		default:
			sh = w.given(name, shapes[1:], args)
		}
	}
	return sh
}

// sources are the functions that give members, groups and pairs.
var sources = map[string]shape{
	"service": {kind: member, depth: 1}, "members": {kind: member, depth: 1}, "groups": {kind: service, depth: 1},
	"ls": {kind: pair, depth: 1}, "tree": {kind: pair, depth: 1}, "safeLs": {kind: pair, depth: 1}, "safeTree": {kind: pair, depth: 1}, "pathMatch": {kind: pair, depth: 1},
}

// What functions do with members, services and pairs: they group them, give the list on,
// give one of their last arguments on, or use them up.
var (
	grouping  = map[string][]kind{"byTag": {member, service}, "byLabel": {member}, "byMeta": {member}, "byPort": {member}, "byKey": {pair}}
	sameLists = []string{"reverse", "sortByLength", "slice", "rest", "initial", "uniq"}
	choosers  = []string{"or", "and", "coalesce", "default", "ternary"}
	consumers = []string{"len", "not", "if", "with", "range", "else", "end", "define", "block", "template", "executeTemplate", "explode", "keys", "empty"}
)

// given is what a call gives. A call whose result cannot be followed is refused as
// soon as something goes in that looks otherwise here.
func (w *rewriter) given(name string, args []shape, words [][]token) shape {
	if s, ok := sources[name]; ok {
		if s.kind == member && len(words) > 1 {
			s.name = w.names(words[1])
		}
		return s
	}
	if method, ok := strings.CutPrefix(name, "scratch."); ok {
		return w.scratched(method, args, words)
	}
	i := slices.IndexFunc(args, shape.structure)
	if i < 0 {
		return data
	}
	sh, last := args[i], args[len(args)-1]
	switch kinds, ok := grouping[name]; {
	case ok && last.depth == 1 && slices.Contains(kinds, last.kind):
		last.depth++
		return last
	case name == "index" && i == 0 && sh.depth >= len(args)-1:
		for range args[1:] {
			sh = sh.element()
		}
		return sh
	case (name == "first" || name == "last") && sh.depth > 0:
		return sh.element()
	case name == "reverse" && w.keyIsPath && words[0][0].text == "reverse":
		panic(problem("reverse of pairs, which confd leaves in their order: leave reverse out"))
	case slices.Contains(sameLists, name):
		return sh
	case slices.Contains(choosers, name):
		return chosen(name, args)
	case slices.Contains(consumers, name), name == "values" && last.kind == pair:
		return data
	}
	panic(problem(cmp.Or(name, "this call") + " gets " + sh.kind.String() + ", and what they become cannot be seen: loop over them, or keep a text of each"))
}

// scratched follows what goes into the scratchpad and comes out of it, by name; all
// names that are computed are one.
func (w *rewriter) scratched(method string, args []shape, words [][]token) shape {
	if len(words) < 2 {
		return data
	}
	name, literally := literal(words[1], 0)
	if !literally {
		for _, s := range w.scratch {
			if s.structure() {
				panic(problem("scratch with a name that is computed, beside " + s.kind.String() + " in it"))
			}
		}
		name = ""
	}
	have, known := w.scratch[name]
	if method == "Key" {
		return data
	}
	if !strings.Contains(method, "Set") {
		return have
	}
	put := args[len(args)-1]
	if def := joined(words[len(words)-1]); len(w.scopes) > 1 || strings.Contains(def, "$") || w.texts[name] != "" && w.texts[name] != def {
		w.texts[name] = "nil" // not known
	} else {
		w.texts[name] = def
	}
	if put.structure() && !literally {
		panic(problem(put.kind.String() + " under a name of scratch that is computed"))
	}
	if strings.HasPrefix(method, "Map") && put.structure() {
		put.depth++
	}
	if known && (have.kind != put.kind || have.depth != put.depth) && (have.structure() || put.structure()) {
		panic(problem("scratch " + quoteGo(name) + " gets values of different kinds: use two names"))
	}
	if put.name = ""; known || put.structure() {
		w.scratch[name] = put
	} else {
		w.scratch[name] = data
	}
	return data
}

// chosen is one of several values, which must all look alike.
func chosen(name string, args []shape) shape {
	sh := data
	for _, a := range args {
		switch {
		case !a.structure():
		case !sh.structure():
			sh = a
		case a.kind != sh.kind || a.depth != sh.depth:
			panic(problem(name + " of " + a.kind.String() + " and " + sh.kind.String()))
		case a.name != sh.name:
			sh.name = ""
		}
	}
	return sh
}

// operand finds out what one argument is.
func (w *rewriter) operand(a []token) shape {
	sh, path := data, ""
	t := a[0]
	switch {
	case t.text == "(":
		end := closing(a, 0)
		sh = w.shapeOf(a[1:end])
		path = strings.TrimPrefix(joined(a[end+1:]), ".")
	case t.kind != 'w':
	case t.text[0] == '.':
		sh, path = w.dot(), t.text[1:]
	case t.text[0] == '$':
		var name string
		name, path, _ = strings.Cut(t.text, ".")
		sh = w.now().vars[name]
	case len(a) == 1 && sources[t.text].kind == service:
		sh = sources[t.text]
	}
	if sh, _, path = sh.inside(path); path != "" {
		sh = data
	}
	return sh
}

func stages(list []token) [][]token {
	return parted(list, func(t token) bool { return t.text == "|" })
}

func arguments(list []token) [][]token {
	words := parted(list, func(t token) bool { return t.kind == 'b' })
	return slices.DeleteFunc(words, func(w []token) bool { return len(w) == 0 })
}

// parted splits a list at signs that are in no parentheses.
func parted(list []token, at func(token) bool) [][]token {
	var out [][]token
	from := 0
	for i := 0; i < len(list); i++ {
		switch {
		case list[i].text == "(":
			i = closing(list, i)
		case at(list[i]):
			out, from = append(out, list[from:i]), i+1
		}
	}
	return append(out, list[from:])
}

// closing is the index of the parenthesis that closes the one at i.
func closing(list []token, i int) int { return min(matching(list, i, 1), len(list)-1) }

// opening is the index of the parenthesis that the one at i closes.
func opening(list []token, i int) int { return max(matching(list, i, -1), 0) }

func matching(list []token, i, step int) int {
	for depth := 0; i >= 0 && i < len(list); i += step {
		switch list[i].text {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

// field translates a field at list[i], as what it is a field of has it.
func (w *rewriter) field(list []token, i int) []token {
	text := list[i].text
	var of shape
	base, path := "", strings.TrimPrefix(text, ".")
	from := i
	switch {
	case i > 0 && list[i-1].text == ")" && text[0] == '.':
		from = opening(list, i-1)
		of = w.shapeOf(list[from+1 : i-1])
		base = joined(list[from:i])
	case text[0] == '$':
		base, path, _ = strings.Cut(text, ".")
		of = w.now().vars[base]
	default:
		of = w.dot()
	}
	of, keys, path := of.inside(path)
	if path == "" {
		return list
	}
	to := w.mapField(w, of, base+keys, path, list)
	if to == "" {
		return list
	}
	// The list keeps its length, so that the index of a loop over it stays right.
	out := slices.Clone(list)
	for j := from; j < i; j++ {
		out[j] = token{"", 'o'}
	}
	out[i] = token{to, 'o'}
	return out
}

// names is the expression of the name of a service, where it stays the same
// inside of blocks.
func (w *rewriter) names(arg []token) string {
	if name, ok := literal(arg, 0); ok && len(arg) == 1 {
		for _, g := range w.result.services {
			if g.label == name {
				return quoteGo(g.name)
			}
		}
	}
	return w.result.computed[joined(arg)]
}
