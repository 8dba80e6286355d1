package template

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// textFunctions change and compare texts. The text comes last, so that it can
// be piped.
var textFunctions = map[string]any{
	"join":            join,
	"split":           split,
	"splitToMap":      splitToMap,
	"trim":            func(cutset, s string) string { return strings.Trim(s, cutset) },
	"trimPrefix":      func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
	"trimSuffix":      func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
	"trimSpace":       strings.TrimSpace,
	"replaceAll":      replaceAll,
	"regexMatch":      regexMatch,
	"regexReplaceAll": regexReplaceAll,
	"toLower":         strings.ToLower,
	"toUpper":         strings.ToUpper,
	"toTitle":         func(s string) string { return cases.Title(language.Und, cases.NoLower).String(s) },
	"indent":          indent,
}

func join(sep string, list []string) (string, error) {
	n := len(sep) * len(list)
	for _, s := range list {
		n += len(s)
	}
	if n > maxValue {
		return "", tooLarge(n)
	}
	return strings.Join(list, sep), nil
}

// split cuts the text, without the space around it, at each separator; an
// empty text has no parts.
func split(sep, s string) ([]string, error) {
	if s = strings.TrimSpace(s); s == "" {
		return []string{}, nil
	}
	return parts(s, sep)
}

// splitToMap splits twice; parts without the second separator are dropped.
func splitToMap(sep, assign, s string) (map[string]string, error) {
	m := map[string]string{}
	list, err := split(sep, s)
	for _, part := range list {
		if k, v, ok := strings.Cut(part, assign); ok {
			m[k] = v
		}
	}
	return m, err
}

func replaceAll(from, to, s string) (string, error) {
	if n := len(s) + strings.Count(s, from)*max(len(to)-len(from), 0); n > maxValue {
		return "", tooLarge(n)
	}
	return strings.ReplaceAll(s, from, to), nil
}

// patterns keeps compiled expressions: a template calls with the same few.
var patterns = struct {
	sync.Mutex // mu guards byText
	byText     map[string]*regexp.Regexp
}{byText: map[string]*regexp.Regexp{}}

const maxPatterns = 256

func pattern(text string) (*regexp.Regexp, error) {
	patterns.Lock()
	defer patterns.Unlock()
	if re, ok := patterns.byText[text]; ok {
		return re, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, &inputError{text, "regular expression does not parse"}
	}
	if len(patterns.byText) >= maxPatterns {
		clear(patterns.byText)
	}
	patterns.byText[text] = re
	return re, nil
}

func regexMatch(re, s string) (bool, error) {
	compiled, err := pattern(re)
	if err != nil {
		return false, err
	}
	return compiled.MatchString(s), nil
}

func regexReplaceAll(re, replacement, s string) (string, error) {
	compiled, err := pattern(re)
	if err != nil {
		return "", err
	}
	return replaceBounded(compiled, s, func(dst []byte, match []int) []byte {
		return compiled.ExpandString(dst, replacement, s, match)
	})
}

// replaceBounded replaces each match, and ends when the text grows too long.
func replaceBounded(re *regexp.Regexp, s string, expand func([]byte, []int) []byte) (string, error) {
	matches := re.FindAllStringSubmatchIndex(s, maxSteps+1)
	if err := steps(int64(len(matches))); err != nil {
		return "", err
	}
	var out []byte
	last := 0
	for _, m := range matches {
		out = append(out, s[last:m[0]]...)
		out = expand(out, m)
		if last = m[1]; len(out) > maxValue {
			return "", tooLarge(len(out))
		}
	}
	return string(append(out, s[last:]...)), nil
}

// indent puts spaces before each line that is not empty.
func indent(spaces int, s string) (string, error) {
	if spaces < 0 {
		return "", fmt.Errorf("indent of %d: it must not be negative", spaces)
	}
	if n := spaces * (strings.Count(s, "\n") + 1); spaces > maxValue || n+len(s) > maxValue {
		return "", tooLarge(max(n, spaces))
	}
	lines := strings.SplitAfter(s, "\n")
	prefix := strings.Repeat(" ", spaces)
	var b strings.Builder
	for _, line := range lines {
		if line != "" && line != "\n" {
			b.WriteString(prefix)
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

// timestamp is the present time in UTC: RFC 3339, "unix" seconds, or a layout
// of package time.
func (st *state) timestamp(layout ...string) (string, error) {
	now := time.Now().UTC()
	if st.t.cfg.Now != nil {
		now = st.t.cfg.Now().UTC()
	}
	switch {
	case len(layout) == 0:
		return now.Format(time.RFC3339), nil
	case len(layout) > 1:
		return "", fmt.Errorf("timestamp takes one layout, not %d", len(layout))
	case layout[0] == "unix":
		return strconv.FormatInt(now.Unix(), 10), nil
	}
	return now.Format(layout[0]), nil
}

// loop counts from 0, or from the first of two numbers, up to before the last.
func loop(bounds ...any) ([]int64, error) {
	var from, to int64
	var err error
	switch len(bounds) {
	case 1:
		to, err = integer(bounds[0])
	case 2:
		if from, err = integer(bounds[0]); err == nil {
			to, err = integer(bounds[1])
		}
	default:
		return nil, fmt.Errorf("loop takes one or two numbers, not %d", len(bounds))
	}
	if err != nil || from >= to {
		return nil, err
	}
	if n := uint64(to) - uint64(from); n > maxSteps {
		return nil, steps(int64(min(n, 1<<62)))
	}
	numbers := make([]int64, 0, to-from)
	for i := from; i < to; i++ {
		numbers = append(numbers, i)
	}
	return numbers, nil
}

func integer(v any) (int64, error) {
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint():
		return int64(r.Uint()), nil //nolint:gosec // Wraps as a conversion in Go does.
	case r.Kind() == reflect.String:
		return parseInt(r.String())
	}
	return 0, fmt.Errorf("%T is not a number", v)
}
