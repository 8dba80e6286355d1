package template

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/zkagent/zkagent/view"
)

var quoteFunctions = map[string]any{
	"nginxString":  nginxString,
	"nginxMapKey":  nginxMapKey,
	"haproxyToken": haproxyToken,
	"shellQuote":   shellQuote,
	"rawLabel":     rawLabel,
}

// control finds what no configuration file can carry within one word.
var control = regexp.MustCompile(`[\x00-\x08\x0a-\x1f\x7f]`)

func printable(v any) (string, error) {
	s := fmt.Sprint(v)
	if v == nil {
		s = ""
	}
	if control.MatchString(s) {
		return "", failf(ErrQuote, "", "value has a control character or a line break, which cannot be quoted")
	}
	return s, nil
}

var nginxEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// nginxString returns a double-quoted string of nginx. nginx has no way to
// write a dollar sign where it expands variables, so one is an error.
func nginxString(v any) (string, error) {
	s, err := printable(v)
	if err != nil {
		return "", err
	}
	if strings.Contains(s, "$") {
		return "", failf(ErrQuote, "", "value has a dollar sign, which nginx would take for a variable")
	}
	return nginxWord(`"` + nginxEscapes.Replace(s) + `"`)
}

// maxNginxWord is what nginx can read as one word: longer ones do not fit its buffer.
const maxNginxWord = 4096

// nginxWord returns a word in quotes, unless it is too long: nginx would refuse the whole
// configuration.
func nginxWord(s string) (string, error) {
	if len(s) > maxNginxWord {
		return "", failf(ErrQuote, "", "value has %d bytes in quotes, and nginx takes %d", len(s), maxNginxWord)
	}
	return s, nil
}

var haproxyEscapes = strings.NewReplacer(
	`\`, `\\`, ` `, `\ `, "\t", `\t`, `"`, `\"`, `'`, `\'`, `#`, `\#`, `$`, `\$`, `,`, `\,`, `(`, `\(`, `)`, `\)`,
)

// nginxMapKey returns a key of a map block of nginx. There a key that begins with ~ is
// a regular expression and some words are directives, even in quotes; behind a
// backslash they are text.
func nginxMapKey(v any) (string, error) {
	s, err := nginxString(v)
	if err != nil {
		return "", err
	}
	return nginxWord(`"\\` + s[1:])
}

// haproxyToken returns one word of a HAProxy configuration; the empty text is
// a pair of quotes. HAProxy has no one way to write a percent sign: where it expects a
// log format, one begins a variable. So one is an error.
func haproxyToken(v any) (string, error) {
	s, err := printable(v)
	if err != nil {
		return "", err
	}
	if strings.Contains(s, "%") {
		return "", failf(ErrQuote, "", "value has a percent sign, which HAProxy would take for a variable in a log format")
	}
	if s == "" {
		return `""`, nil
	}
	return haproxyEscapes.Replace(s), nil
}

var shellSafe = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

func shellQuote(v any) (string, error) {
	s := fmt.Sprint(v)
	if v == nil {
		s = ""
	}
	if strings.Contains(s, "\x00") {
		return "", failf(ErrQuote, "", "value has a zero byte, which cannot be quoted")
	}
	if shellSafe.MatchString(s) {
		return s, nil
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

// rawLabel returns a label of a member, even when it is not a token: the writer of
// the member chose the text, and it needs a quoting helper.
func rawLabel(name string, m view.Member) string {
	if v, ok := m.Labels[name]; ok {
		return v
	}
	return m.RawLabels[name]
}
