package template

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/Masterminds/sprig/v3"
)

// Parsers recurse into what they read, and some take memory or time by the
// square of the depth. So a text is looked at before it is parsed. The look
// knows no quotes: it refuses brackets in texts, too, when there are that many.

// maxBrackets is how deep brackets may nest in a text that is parsed.
const maxBrackets = 1000

// maxChecked bounds what is parsed for the syntax setting, in bytes.
const maxChecked = 16 << 20

// CheckNesting returns an error for a text that no parser should get: brackets
// too deep in each other, or too many of the signs in a row that nest without
// brackets (the dashes of YAML, the signs of HCL).
func CheckNesting(s string) error {
	depth, run := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(', '[', '{':
			depth, run = depth+1, 0
		case ')', ']', '}':
			depth, run = max(depth-1, 0), 0
		case '-', '?', ':', '!', '~':
			run++
		case ' ', '\t':
		default:
			run = 0
		}
		if depth > maxBrackets || run > maxBrackets {
			return tooDeep(s, i)
		}
	}
	return nil
}

// checkKeys bounds the dots of a TOML key: each makes a table.
func checkKeys(s string) error {
	dots := 0
	for i := range len(s) {
		switch s[i] {
		case '.':
			dots++
		case '\n', '=', '[', ',':
			dots = 0
		}
		if dots > maxBrackets {
			return tooDeep(s, i)
		}
	}
	return nil
}

func tooDeep(s string, at int) error {
	p := placeOf(s, at)
	return fmt.Errorf("line %d, column %d: nested too deeply, more than %d: %w", p.line, p.column, maxBrackets, ErrTooLarge)
}

// guardedParsers are the parsers of sprig behind CheckNesting, and its functions
// whose result is many times as long as the text.
func guardedParsers(funcs map[string]any) map[string]any {
	fromJSON := func(s string) (any, error) {
		var v any
		if err := CheckNesting(s); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			return nil, &inputError{s, "value is not JSON" + jsonPlace(s, err)}
		}
		return v, weigh(v)
	}
	return map[string]any{
		// fromJson of sprig swallows errors.
		"fromJson": func(s string) (any, error) {
			v, err := fromJSON(s)
			if _, ok := err.(*inputError); ok { //nolint:errorlint // made above.
				return nil, nil
			}
			return v, err
		},
		"mustFromJson":     fromJSON,
		"toPrettyJson":     pretty(funcs["mustToPrettyJson"].(func(any) (string, error))),
		"mustToPrettyJson": pretty(funcs["mustToPrettyJson"].(func(any) (string, error))),
		"wrapWith":         wrapWith(funcs["wrapWith"].(func(int, string, string) string)),
		"splitList":        func(sep, s string) ([]string, error) { return parts(s, sep) },
		"split": func(sep, s string) (map[string]string, error) {
			list, err := parts(s, sep)
			m := make(map[string]string, len(list))
			for i, part := range list {
				m[fmt.Sprintf("_%d", i)] = part
			}
			return m, err
		},
		"regexFindAll":     matches(sprig.GenericFuncMap()["mustRegexFindAll"].(func(string, string, int) ([]string, error))),
		"mustRegexFindAll": matches(sprig.GenericFuncMap()["mustRegexFindAll"].(func(string, string, int) ([]string, error))),
		"regexSplit":       matches(sprig.GenericFuncMap()["mustRegexSplit"].(func(string, string, int) ([]string, error))),
		"mustRegexSplit":   matches(sprig.GenericFuncMap()["mustRegexSplit"].(func(string, string, int) ([]string, error))),
	}
}

// pretty refuses a structure whose indentation alone is too long.
func pretty(fn func(any) (string, error)) any {
	return func(v any) (string, error) {
		if n := prettyLen(reflect.ValueOf(v), 1); n > maxValue {
			return "", tooLarge(n)
		}
		return fn(v)
	}
}

// prettyLen is a lower bound of the length of a structure in indented JSON.
func prettyLen(v reflect.Value, depth int) int {
	n := 0
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() && depth < 2*maxNesting {
			return prettyLen(v.Elem(), depth+1)
		}
	case reflect.String:
		return v.Len()
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if n += depth + prettyLen(v.Index(i), depth+1); n > maxValue || depth > 2*maxNesting {
				return n
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next() && n <= maxValue && depth <= 2*maxNesting; {
			n += depth + prettyLen(it.Value(), depth+1)
		}
	default: // Numbers are short.
	}
	return n
}

func wrapWith(fn func(int, string, string) string) any {
	return func(width int, sep, s string) (string, error) {
		if n := len(s) + (len(s)/max(width, 1)+1)*len(sep); n > maxValue {
			return "", tooLarge(n)
		}
		return fn(width, sep, s), nil
	}
}

// parts splits a text into at most maxSteps parts.
func parts(s, sep string) ([]string, error) {
	n := strings.Count(s, sep)
	if err := steps(int64(n)); err != nil {
		return nil, err
	}
	return strings.Split(s, sep), nil
}

// matches bounds how many parts an expression gives.
func matches(fn func(string, string, int) ([]string, error)) any {
	return func(re, s string, n int) ([]string, error) {
		if n < 0 || n > maxSteps {
			n = maxSteps + 1
		}
		list, err := fn(re, s, n)
		if err == nil {
			err = steps(int64(len(list)))
		}
		return list, err
	}
}
