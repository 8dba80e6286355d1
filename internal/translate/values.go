package translate

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func blocks(v any) []map[string]any {
	switch b := v.(type) {
	case map[string]any:
		return []map[string]any{b}
	case []map[string]any:
		return b
	case []any:
		var list []map[string]any
		for _, x := range b {
			list = append(list, blocks(x)...)
		}
		return list
	}
	return nil
}

// first is the last block of that name, which wins; nil without one.
func first(v any) map[string]any {
	if l := blocks(v); len(l) > 0 {
		return l[len(l)-1]
	}
	return nil
}

func sorted(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// keys goes through the keys of decoded settings that are not among the known ones: some
// have a note, in which VALUE stands for the value; the others are missed.
func (n *notes) keys(m map[string]any, missed string, remarks map[string]string, known ...string) {
	for _, key := range sorted(m) {
		switch remark := remarks[key]; {
		case slices.Contains(known, key):
		case remark != "":
			n.note("%s", strings.ReplaceAll(remark, "VALUE", text(m[key])))
		default:
			n.miss("%s%s", key, strings.ReplaceAll(missed, "VALUE", fmt.Sprint(m[key])))
		}
	}
}

// text is a value as a text; empty for none.
func text(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case []any, map[string]any, []map[string]any:
		return ""
	}
	return fmt.Sprint(v)
}

func texts(v any) []string {
	var list []string
	l, _ := v.([]any)
	for _, x := range l {
		list = append(list, text(x))
	}
	return list
}

// wait is a wait block, or its form "min:max".
func wait(v any) (string, string) {
	if s := text(v); s != "" {
		low, high, _ := strings.Cut(s, ":")
		return low, longest(low, high)
	}
	m := first(v)
	if m == nil || text(m["enabled"]) == "false" {
		return "", ""
	}
	return text(m["min"]), longest(text(m["min"]), text(m["max"]))
}

// longest is the longest wait of consul-template: where it is not set, four times the
// shortest.
func longest(low, high string) string {
	if d, err := time.ParseDuration(low); err == nil && d > 0 && high == "" {
		return (4 * d).String()
	}
	return high
}

// seconds is a number of seconds as a duration; a duration stays.
func seconds(v any) string {
	s := text(v)
	if n, err := strconv.ParseFloat(s, 64); err == nil && n != 0 {
		return s + "s"
	}
	return s
}

func quoteGo(s string) string { return strconv.Quote(s) }

// shellChars need a shell.
const shellChars = "|&;<>()$`\\\"'*?[]#~%!{}\n"

// place is a word of a command that stands for a path. A shell gets it quoted.
var (
	place       = regexp.MustCompile(`\{\{ ?\.(src|dest) ?\}\}`)
	quotedPlace = regexp.MustCompile(`'\{\{\.(?:src|dest)\}\}'|"\{\{\.(?:src|dest)\}\}"|\{\{\.(?:src|dest)\}\}`)
)

// command translates a command line into the arguments of a command, as HCL
// expressions. Words such as {{.src}} stand for expressions of ours.
func command(text string, words map[string]string) []string {
	text = place.ReplaceAllString(strings.TrimSpace(text), "{{.$1}}")
	if text == "" {
		return nil
	}
	var args []string
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(place.ReplaceAllString(text, ""), shellChars) && !strings.Contains(word, "=") {
		for f := range strings.FieldsSeq(text) {
			args = append(args, interpolated(f, words))
		}
		return args
	}
	// A shell gets the paths as parameters: they are never parsed by it.
	script := quotedPlace.ReplaceAllStringFunc(text, func(of string) string {
		path := words[place.FindStringSubmatch(of)[1]]
		if !slices.Contains(args, path) {
			args = append(args, path)
		}
		return fmt.Sprintf(`"$%d"`, slices.Index(args, path)+1)
	})
	if len(args) > 0 {
		args = slices.Insert(args, 0, quote("sh"))
	}
	return append([]string{quote("/bin/sh"), quote("-c"), quote(script)}, args...)
}

// interpolated is one argument in which places stand for expressions.
func interpolated(word string, words map[string]string) string {
	if m := place.FindStringSubmatch(word); m != nil && m[0] == word {
		return words[m[1]]
	}
	return place.ReplaceAllStringFunc(quote(word), func(of string) string { return "${" + words[place.FindStringSubmatch(of)[1]] + "}" })
}

// rename translates the argument that names a key or the keys below it. A
// function changes what is literal of it, as the end of a pattern.
func (w *rewriter) rename(list []token, arg int, what string, single bool, change func(string) (string, bool)) []token {
	if end := argument(list, arg); !strings.Contains(joined(list[min(arg, end):end]), "$") {
		if s, whole := w.head(list[min(arg, end):end]); whole {
			list = slices.Concat(list[:arg], []token{{quoteGo(s), 's'}}, list[end:])
		}
	}
	if s, ok := literal(list, arg); ok {
		if s, ok = change(s); !ok {
			panic(problem(what + " of this pattern"))
		}
		clean := path.Clean("/" + s)
		listing := w.keyIsPath && strings.HasPrefix(what, "ls")
		if listing && (s == "" || clean == "/" && (w.remco || what == "lsdir")) || w.keyIsPath && s != "" && s != clean && (!listing || s != clean+"/") {
			panic(problem(what + " of " + quoteGo(s) + ": keys begin with a slash and do not end with one, so it finds nothing there"))
		}
		if !below(w.keys, s) {
			panic(problem(what + " of " + quoteGo(s) + ", which is not below the keys of the resource: confd does not read it"))
		}
		if cleanPrefix(w.prefix) == "" && (strings.Trim(s, "/") == "" && strings.HasPrefix(what, "gets") || what == "getvs" && s == "") {
			list[arg].text = quoteGo(w.result.rootKeys()) // gets "/*"
		} else {
			list[arg].text = quoteGo(w.result.configOf(w.prefix, s, single))
		}
		return list
	}
	if arg < len(list) && list[arg].kind == 'w' && w.prefix == "" && single {
		if base, field, _ := strings.Cut(list[arg].text, "."); field == "Path" || field == "Key" && w.keyIsPath {
			if of := w.now().vars[base]; of.kind == pair || base == "" && w.dot().kind == pair {
				// The path of a pair begins with the config's name.
				return slices.Concat(list[:arg], []token{{"(", 'o'}, {strings.TrimSuffix(list[arg].text, field) + "Path", 'o'}, {")", 'o'}}, list[arg+1:])
			}
		}
	}
	return w.renameComputed(list, arg, what, change)
}

// renameComputed translates a name that is computed. Its beginning must be known, to be
// in a config; below a prefix everything is.
func (w *rewriter) renameComputed(list []token, arg int, what string, change func(string) (string, bool)) []token {
	const computed = " of a name that is computed: its first element must be the name of a config block, as in printf \"CONFIG/%s\""
	end := argument(list, arg)
	if end == arg || list[arg].text[0] == '.' && w.prefix == "" {
		panic(problem(what + computed))
	}
	head, whole := w.head(list[arg:end])
	fixed := head
	if !whole {
		fixed = head[:strings.LastIndexByte(head, '/')+1]
	}
	if !below(w.keys, fixed) {
		panic(problem(what + " of keys that may be outside of the keys of the resource: confd does not read them"))
	}
	first, _, deep := strings.Cut(strings.TrimLeft(head, "/"), "/")
	if w.prefix == "" && (!deep || first == "") {
		panic(problem(what + computed))
	}
	// What is literal of it is changed where it stands.
	format := next(list, next(list, arg))
	if s, ok := literal(list, format); ok && format < end && list[arg].text == "(" && slices.Contains([]string{"printf", "print"}, list[next(list, arg)].text) {
		if list[next(list, arg)].text == "printf" || next(list, format) >= end-1 {
			if s, ok = change(s); !ok {
				panic(problem(what + " of this pattern"))
			}
		} else if _, ok := change(""); !ok {
			panic(problem(what + " of this pattern"))
		}
		list[format].text = quoteGo(s)
		if strings.Trim(s, "/") != "" && s[0] != '%' && strings.Contains(strings.TrimLeft(s, "/"), "/") || w.prefix != "" && s[0] == '/' {
			ref := w.result.configOf(w.prefix, s, false)
			if strings.HasSuffix(s, "/") {
				ref += "/"
			}
			list[format].text = quoteGo(ref)
			return list
		}
	} else if _, ok := change(""); !ok {
		panic(problem(what + " of this pattern"))
	}
	if w.prefix == "" {
		if name, _, _ := strings.Cut(w.result.configOf("", head, false), "/"); name != first {
			panic(problem(what + computed))
		}
		return list
	}
	ref := w.result.configOf(w.prefix, "", false)
	before, after := "(print "+quoteGo(ref)+" ", ")"
	if !w.keyIsPath { // keys of Consul do not begin with a slash
		before, after = "(print "+quoteGo(ref+"/")+" (trimPrefix \"/\" ", "))"
	}
	inside := slices.Concat(tokens(before), list[arg:end], tokens(after))
	return slices.Concat(list[:arg], inside, list[end:])
}

// head is the beginning of the text that an expression gives, as far as it is known, and
// whether that is all of it.
func (w *rewriter) head(list []token) (string, bool) {
	args := arguments(list)
	if len(args) == 0 {
		return "", false
	}
	if len(args) == 1 {
		t := args[0][0]
		if s, ok := literal(args[0], 0); ok && len(args[0]) == 1 {
			return s, true
		}
		if def, ok := w.now().defs[t.text]; ok && len(args[0]) == 1 {
			return w.head(def)
		}
		if n := len(args[0]); t.text == "(" && closing(args[0], 0) == n-1 {
			return w.head(args[0][1 : n-1])
		}
		return "", false
	}
	format, ok := literal(args[1], 0)
	var b strings.Builder
	switch {
	case args[0][0].text == "printf" && ok:
		args = args[2:]
		for i, part := range strings.Split(format, "%") {
			if i > 0 {
				if part == "" || !strings.ContainsRune("sv", rune(part[0])) || len(args) == 0 {
					return b.String(), false
				}
				s, whole := w.head(args[0])
				if b.WriteString(s); !whole {
					return b.String(), false
				}
				part, args = part[1:], args[1:]
			}
			b.WriteString(part)
		}
		return b.String(), true
	case args[0][0].text == "scratch.Get" && ok:
		return w.head(tokens(w.texts[format]))
	case args[0][0].text == "print":
		for _, a := range args[1:] {
			s, whole := w.head(a)
			if b.WriteString(s); !whole {
				return b.String(), false
			}
		}
		return b.String(), true
	}
	return "", false
}
