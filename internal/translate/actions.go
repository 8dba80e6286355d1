package translate

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// segment is a piece of a template: plain text, or what stands between
// delimiters.
type segment struct {
	action    bool
	text      string // without delimiters and trim marks
	trimLeft  bool
	trimRight bool

	line, column int // of the action, from 1
}

// split splits a template at its delimiters. Strings and comments in actions
// are not looked into.
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

// endOf finds the end of an action.
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
