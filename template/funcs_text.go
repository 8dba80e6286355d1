package template

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // The function md5sum is for cache keys, not for security.
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v2"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/zkagent/zkagent/view"
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
	if err := checkIndent(spaces, s); err != nil {
		return "", err
	}
	prefix := strings.Repeat(" ", spaces)
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line != "\n" {
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
	if len(bounds) == 1 {
		bounds = []any{0, bounds[0]}
	}
	if len(bounds) != 2 {
		return nil, fmt.Errorf("loop takes one or two numbers, not %d", len(bounds))
	}
	from, err1 := integer(bounds[0])
	to, err2 := integer(bounds[1])
	if err := cmp.Or(err1, err2); err != nil || from >= to {
		return nil, err
	}
	if n := uint64(to) - uint64(from); n > maxSteps { //nolint:gosec // to is larger; the difference may not fit into int64.
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
	case r.CanInt(), r.CanUint():
		return toInt(r), nil
	case r.Kind() == reflect.String:
		return parseInt(r.String())
	}
	return 0, fmt.Errorf("%T is not a number", v)
}

// parseFunctions read and write numbers and structured texts. An empty text
// is the zero value.
var parseFunctions = map[string]any{
	"parseBool": func(s string) (bool, error) { return number("a bool", s, strconv.ParseBool) },
	"parseInt":  parseInt,
	"parseUint": func(s string) (uint64, error) {
		return number("an unsigned integer", s, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	},
	"parseFloat": func(s string) (float64, error) {
		return number("a number", s, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	},
	"parseJSON":             parseJSON,
	"decodeJSON":            decodeJSON,
	"parseYAML":             parseYAML,
	"toJSON":                jsonText(true, ""),
	"toJSONPretty":          jsonText(true, "  "),
	"toUnescapedJSON":       jsonText(false, ""),
	"toUnescapedJSONPretty": jsonText(false, "  "),
	"toYAML":                toYAML,
	"toTOML":                toTOML,
}

// number parses with fn; its error does not show the text.
func number[T any](kind, s string, fn func(string) (T, error)) (T, error) {
	var zero T
	if s == "" {
		return zero, nil
	}
	v, err := fn(s)
	if errors.Is(err, strconv.ErrRange) {
		return zero, &inputError{s, "value is out of the range of " + kind}
	}
	if err != nil {
		return zero, &inputError{s, "value is not " + kind}
	}
	return v, nil
}

func parseInt(s string) (int64, error) {
	return number("an integer", s, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
}

func parseJSON(s string) (any, error) {
	if s == "" {
		return map[string]any{}, nil
	}
	return unmarshalJSON(s)
}

func unmarshalJSON(s string) (any, error) {
	if err := CheckNesting(s); err != nil {
		return nil, err
	}
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return nil, &inputError{s, "value is not JSON" + jsonPlace(s, err)}
	}
	return v, weigh(v)
}

// decodeJSON is parseJSON with integers: a number without a fraction or exponent
// that fits into 64 bits is one.
func decodeJSON(s string) (any, error) {
	v, err := parseJSON(s)
	if err != nil || s == "" {
		return v, err
	}
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	_ = dec.Decode(&v) // parseJSON has read it.
	return integers(v), nil
}

func integers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // parseJSON has read it.
		return f
	case map[string]any:
		for k, e := range v {
			v[k] = integers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = integers(e)
		}
	}
	return v
}

// jsonPlace says where JSON is wrong, without showing it.
func jsonPlace(s string, err error) string {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return ""
	}
	p := placeOf(s, int(syntax.Offset)-1)
	if syntax.Offset >= int64(len(s)) {
		return ": it ends too early"
	}
	return fmt.Sprintf(": line %d, column %d of the value", p.line, p.column)
}

func parseYAML(s string) (any, error) {
	if s == "" {
		return map[string]any{}, nil
	}
	if err := CheckNesting(s); err != nil {
		return nil, err
	}
	var v any
	if err := yaml.Unmarshal([]byte(s), &v); err != nil {
		return nil, &inputError{s, "value is not YAML" + yamlPlace(err)}
	}
	return v, weigh(v)
}

// yamlPlace keeps "line 3" of an error of the YAML library.
func yamlPlace(err error) string {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(rest, ":")
	if n, err := strconv.Atoi(line); err == nil {
		return fmt.Sprintf(": line %d of the value", n)
	}
	return ""
}

// jsonText returns a function that writes JSON, with escapes for HTML or without.
func jsonText(escape bool, indent string) func(any) (string, error) {
	return func(v any) (string, error) {
		if indent != "" {
			if err := checkPretty(v); err != nil {
				return "", err
			}
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(escape)
		enc.SetIndent("", indent)
		err := enc.Encode(textKeys(v))
		return strings.TrimRight(b.String(), "\r\n"), err
	}
}

func toYAML(v any) (string, error) {
	b, err := yaml.Marshal(v)
	return string(bytes.TrimSpace(b)), err
}

func toTOML(v any) (string, error) {
	var b bytes.Buffer
	err := toml.NewEncoder(&b).Encode(v)
	return string(bytes.TrimSpace(b.Bytes())), err
}

var encodeFunctions = map[string]any{
	"base64Encode":    func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64Decode":    func(s string) (string, error) { return decode64(base64.StdEncoding, s) },
	"base64URLEncode": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },
	"base64URLDecode": func(s string) (string, error) { return decode64(base64.URLEncoding, s) },
	"sha256Hex":       func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },
	"md5sum":          func(s string) string { return fmt.Sprintf("%x", md5.Sum([]byte(s))) }, //nolint:gosec // for cache keys and old file formats
	"hmacSHA256Hex":   hmacSHA256Hex,
}

func decode64(enc *base64.Encoding, s string) (string, error) {
	b, err := enc.DecodeString(s)
	if err != nil {
		return "", &inputError{s, "value is not base64"}
	}
	return string(b), nil
}

func hmacSHA256Hex(message, key string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(message))
	return hex.EncodeToString(h.Sum(nil))
}

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
