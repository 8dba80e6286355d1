package translate

import (
	"cmp"
	"slices"
	"strings"
)

// kind is what a value of a template is.
type kind int

const (
	nothing  kind = iota // the dot at the top
	someData             // what a template has parsed or made: fields are its own
	passed               // what a defined template is called with
	members
	member
	groupedMembers
	pairs
	pair
	groupedPairs
	services
	service
)

func (k kind) String() string {
	switch k {
	case members, member, groupedMembers:
		return "members of services"
	case pairs, pair, groupedPairs:
		return "pairs of keys"
	default:
		return "services"
	}
}

// shape is what is known of a value.
type shape struct {
	kind kind
	name string // of the service: an expression; empty when it is not known
}

// structure reports whether a value is one that looks otherwise here.
func (s shape) structure() bool { return s.kind >= members }

// element is what a range over the value gives.
func (s shape) element() shape {
	switch s.kind {
	case members:
		return shape{member, s.name}
	case groupedMembers:
		return shape{members, s.name}
	case pairs, groupedPairs:
		return shape{kind: pair}
	case services:
		return shape{kind: service}
	default:
		return shape{kind: someData}
	}
}

// printers show the inside of what they get.
var printers = []string{"toJSON", "toJSONPretty", "toUnescapedJSON", "toUnescapedJSONPretty", "toYAML", "toTOML", "toJson", "toPrettyJson", "toRawJson", "print", "println", "printf"}

// shapeOf finds out what a pipeline gives.
func (w *rewriter) shapeOf(list []token) (shape, string) {
	var sh shape
	for i, stage := range stages(list) {
		args := arguments(stage)
		if len(args) == 0 {
			continue
		}
		var shapes []shape
		for _, a := range args {
			inner, problem := w.operand(a)
			if problem != "" {
				return shape{}, problem
			}
			shapes = append(shapes, inner)
		}
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
		last := shapes[len(shapes)-1]
		switch {
		case name == "" && len(args) == 1 && i == 0:
			sh = shapes[0]
		case slices.Contains(printers, name) && slices.ContainsFunc(shapes[1:], shape.structure):
			return shape{}, name + " of what looks otherwise here"
		default:
			var problem string
			if sh, problem = w.result1(name, shapes[1:], last, args); problem != "" {
				return shape{}, problem
			}
		}
	}
	return sh, ""
}

// consumers take members, pairs and services, and give nothing of them on, or only
// texts.
var consumers = []string{"len", "not", "if", "with", "range", "else", "end", "define", "block", "template", "executeTemplate", "explode", "keys", "empty"}

// choosers give one of their last arguments on.
var choosers = []string{"or", "and", "coalesce", "default", "ternary"}

// result1 is what a call gives. A call whose result cannot be followed is refused as
// soon as something goes in that looks otherwise here.
func (w *rewriter) result1(name string, args []shape, last shape, words [][]token) (shape, string) {
	switch name {
	case "service", "members":
		s := shape{kind: members}
		if len(words) > 1 {
			s.name = w.names(words[1])
		}
		return s, ""
	case "groups":
		return shape{kind: services}, ""
	case "ls", "tree", "safeLs", "safeTree", "pathMatch":
		return shape{kind: pairs}, ""
	}
	if !slices.ContainsFunc(args, shape.structure) {
		return shape{kind: someData}, ""
	}
	switch name {
	case "index":
		if k := args[0].kind; k == groupedMembers || k == members || k == pairs || k == groupedPairs {
			return args[0].element(), ""
		}
	case "byTag", "byLabel", "byMeta", "byPort":
		if last.kind == members {
			return shape{groupedMembers, last.name}, ""
		}
	case "byKey":
		return shape{kind: groupedPairs}, ""
	case "first", "last":
		return last.element(), ""
	case "reverse", "sortByLength", "slice", "rest", "initial", "uniq", "sprig_reverse":
		if w.keyIsPath && words[0][0].text == "reverse" {
			return shape{}, "reverse of pairs, which confd leaves in their order: leave reverse out"
		}
		if args[0].structure() {
			return args[0], ""
		}
		return last, ""
	case "values":
		if last.kind == pairs {
			return shape{kind: someData}, ""
		}
	}
	if slices.Contains(choosers, name) {
		return chosen(name, args)
	}
	if slices.Contains(consumers, name) {
		return shape{kind: someData}, ""
	}
	i := slices.IndexFunc(args, shape.structure)
	return shape{}, cmp.Or(name, "this call") + " gets " + args[i].kind.String() + ", and what they become cannot be seen: loop over them, or keep a text of each"
}

// chosen is one of several values, which must all look alike.
func chosen(name string, args []shape) (shape, string) {
	var sh shape
	for _, a := range args {
		switch {
		case !a.structure():
		case !sh.structure():
			sh = a
		case a.kind != sh.kind:
			return shape{}, name + " of " + a.kind.String() + " and " + sh.kind.String()
		case a.name != sh.name:
			sh.name = ""
		}
	}
	return sh, ""
}

// operand finds out what one argument is.
func (w *rewriter) operand(a []token) (shape, string) {
	t := a[0]
	switch {
	case t.text == "(":
		end := closing(a, 0)
		sh, problem := w.shapeOf(a[1:end])
		if end < len(a)-1 { // a field of it
			return shape{kind: someData}, problem
		}
		return sh, problem
	case t.kind != 'w':
		return shape{kind: someData}, ""
	case t.text == ".":
		return w.dot(), ""
	case t.text[0] == '$' && !strings.Contains(t.text, "."):
		return w.now().vars[t.text], ""
	case t.text[0] == '.' || t.text[0] == '$':
		return shape{kind: someData}, ""
	}
	if bare(t.text) == t.text && len(a) == 1 && t.text == "groups" {
		return shape{kind: services}, ""
	}
	return shape{kind: someData}, ""
}

// stages splits a pipeline.
func stages(list []token) [][]token {
	var out [][]token
	depth, from := 0, 0
	for i, t := range list {
		switch t.text {
		case "(":
			depth++
		case ")":
			depth--
		case "|":
			if depth == 0 {
				out, from = append(out, list[from:i]), i+1
			}
		}
	}
	return append(out, list[from:])
}

// arguments splits a command into its words.
func arguments(list []token) [][]token {
	var out [][]token
	var word []token
	depth := 0
	for _, t := range list {
		if t.kind == 'b' && depth == 0 {
			if len(word) > 0 {
				out, word = append(out, word), nil
			}
			continue
		}
		switch t.text {
		case "(":
			depth++
		case ")":
			depth--
		}
		word = append(word, t)
	}
	if len(word) > 0 {
		out = append(out, word)
	}
	return out
}

// closing is the index of the parenthesis that closes the one at i.
func closing(list []token, i int) int {
	depth := 0
	for ; i < len(list); i++ {
		switch list[i].text {
		case "(":
			depth++
		case ")":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(list) - 1
}

// opening is the index of the parenthesis that the one at i closes.
func opening(list []token, i int) int {
	depth := 0
	for ; i >= 0; i-- {
		switch list[i].text {
		case ")":
			depth++
		case "(":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return 0
}

// field translates a field at list[i], as what it is a field of has it.
func (w *rewriter) field(list []token, i int) ([]token, string) {
	text := list[i].text
	var of shape
	base, path := "", strings.TrimPrefix(text, ".")
	switch {
	case i > 0 && list[i-1].text == ")" && text[0] == '.':
		var problem string
		from := opening(list, i-1)
		if of, problem = w.shapeOf(list[from+1 : i-1]); problem != "" {
			return nil, problem
		}
		base = joined(list[from:i])
	case text[0] == '$':
		base, path, _ = strings.Cut(text, ".")
		of = w.now().vars[base]
		if base == "$" {
			of = shape{}
		}
	default:
		of = w.dot()
	}
	if path == "" || w.mapField == nil {
		return list, ""
	}
	to, problem := w.mapField(w, of, base, path, list)
	if problem != "" || to == "" {
		return list, problem
	}
	from := i
	if base != "" && text[0] == '.' {
		from = opening(list, i-1)
	}
	// The list keeps its length, so that the index of a loop over it stays right.
	out := slices.Clone(list)
	for j := from; j < i; j++ {
		out[j] = token{"", 'o'}
	}
	out[i] = token{to, 'o'}
	return out, ""
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
