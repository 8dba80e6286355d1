package template

import (
	"fmt"
	"reflect"
	"strings"
)

// maxValue bounds one value within an execution, in bytes of text. Loops are
// bounded by their guards; this bounds what one call can make, such as the
// doubling of a string in a loop.
const maxValue = DefaultMaxOutput

// maxNesting bounds how deeply lists and maps contain each other.
const maxNesting = 200

// The texts that one execution makes, together: an execution can hold all of
// them. Large ones count on their own, since few of them fill the memory of the
// host; what comes from the view is there already and does not count.
const (
	maxTexts  = 1 << 30
	maxLarge  = 256 << 20
	largeText = 64 << 10
	// parsedFactor is how much memory a parsed text takes, at most.
	parsedFactor = 16
)

// spend counts a text that a function made, and panics when it is too long or
// the execution has made too much: text/template makes an error of it.
func (st *state) spend(s string) string {
	short2(len(s))
	st.charge(len(s))
	return s
}

func (st *state) charge(n int) {
	st.texts += n
	if n >= largeText {
		st.large += n
	}
	if st.texts > maxTexts || st.large > maxLarge {
		panic(fmt.Errorf("the values of one execution are %w: more than %d bytes in large values, or %d in all", ErrTooLarge, maxLarge, maxTexts))
	}
}

// around returns a function of the type of fn that calls it through call.
func around(fn any, call func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value) any {
	v := reflect.ValueOf(fn)
	inner := v.Call
	if v.Type().IsVariadic() {
		inner = v.CallSlice
	}
	return reflect.MakeFunc(v.Type(), func(args []reflect.Value) []reflect.Value { return call(inner, args) }).Interface()
}

// bounded wraps a function so that a text it returns is not longer than
// maxValue, and counts for the execution. What a parser makes of a text counts, too.
func bounded(fn any) func(*state) any {
	return func(st *state) any {
		switch f := fn.(type) {
		case func(string) string: // The most frequent shape needs no reflection.
			return func(a string) string { return st.spend(f(a)) }
		case func(string) (any, error):
			return func(a string) (any, error) { st.charge(parsedFactor * len(a)); return f(a) }
		case func(...any) string:
			return func(a ...any) string { short2(argsLen(a)); return st.spend(f(a...)) }
		}
		if t := reflect.TypeOf(fn); t.NumOut() == 0 || t.Out(0).Kind() != reflect.String {
			return fn
		}
		return around(fn, func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value {
			out := fn(args)
			st.spend(out[0].String())
			return out
		})
	}
}

// refusing returns a function that panics with the error of check, which takes the same
// arguments, before it calls fn: text/template makes an error of it.
func refusing(fn, check any) any {
	ask := reflect.ValueOf(check)
	return around(fn, func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value {
		if err, refused := reflect.TypeAssert[error](ask.Call(args)[0]); refused {
			panic(err)
		}
		return fn(args)
	})
}

// short2 panics when a text is too long.
func short2(n int) {
	if n > maxValue {
		panic(tooLarge(n))
	}
}

func checkLen(n int) error {
	if n > maxValue {
		return tooLarge(n)
	}
	return nil
}

func tooLarge(n int) error {
	return fmt.Errorf("a value is %w: %d bytes, the limit is %d", ErrTooLarge, n, maxValue)
}

func argsLen(args []any) int {
	n := 0
	for _, a := range args {
		if s, ok := a.(string); ok {
			n += len(s)
		}
	}
	return n
}

// steps checks the length of a loop or list before it is made.
func steps(n int64) error {
	if n > maxSteps {
		return fmt.Errorf("%d elements are %w: the limit is %d", n, ErrTooLarge, maxSteps)
	}
	return nil
}

// weigh checks a structure of lists and maps: values that contain each other
// in a circle, or that share parts so often that printing them would not end,
// are refused when they are made.
func weigh(v any) error {
	budget := maxSteps
	return weighValue(reflect.ValueOf(v), &budget, 0)
}

func weighValue(v reflect.Value, budget *int, depth int) error {
	if *budget--; *budget < 0 {
		return fmt.Errorf("a structure is %w: more than %d values", ErrTooLarge, maxSteps)
	}
	if depth > maxNesting {
		return fmt.Errorf("a structure is %w: nested deeper than %d, or contains itself", ErrTooLarge, maxNesting)
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.Kind() == reflect.Interface && !v.IsNil() {
			return weighValue(v.Elem(), budget, depth)
		}
		if !v.IsNil() && v.Type() == reflect.TypeFor[*Scratch]() {
			return weighValue(v.Elem().FieldByName("values"), budget, depth+1)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			if err := weighValue(v.Index(i), budget, depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if err := weighValue(it.Value(), budget, depth+1); err != nil {
				return err
			}
		}
	default: // Texts and numbers hold nothing.
	}
	return nil
}

func weighed(fn any) any {
	return around(fn, func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value {
		out := fn(args)
		if err := weigh(anyOf(out[0])); err != nil {
			panic(err)
		}
		return out
	})
}

// formatWidth is an upper bound of the padding that a format asks for,
// together with the texts that it prints.
func formatWidth(format string, args []any) int {
	total, verbs := 0, strings.Count(format, "%")
	for i := 0; i < len(format); i++ {
		n := 0
		for ; i < len(format) && format[i] >= '0' && format[i] <= '9' && n < maxValue; i++ {
			n = n*10 + int(format[i]-'0')
		}
		total += n
		if i < len(format) && format[i] == '*' {
			total += 1 << 20 // fmt takes no larger one.
		}
		if total > maxValue {
			return total
		}
	}
	if strings.Contains(format, "[") { // %[1]s may print one argument again and again.
		return total + argsLen(args)*max(verbs, 1)
	}
	return total + argsLen(args)
}

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
	findAll := matches(funcs["mustRegexFindAll"].(func(string, string, int) ([]string, error)))
	split := matches(funcs["mustRegexSplit"].(func(string, string, int) ([]string, error)))
	toPretty := refusing(funcs["mustToPrettyJson"], checkPretty)
	return map[string]any{
		// fromJson of sprig swallows errors.
		"fromJson": func(s string) (any, error) {
			v, err := unmarshalJSON(s)
			if _, ok := err.(*inputError); ok { //nolint:errorlint // made above.
				return nil, nil
			}
			return v, err
		},
		"mustFromJson":     unmarshalJSON,
		"toPrettyJson":     toPretty,
		"mustToPrettyJson": toPretty,
		"wrapWith": refusing(funcs["wrapWith"], func(width int, sep, s string) error {
			return checkLen(len(s) + (len(s)/max(width, 1)+1)*len(sep))
		}),
		"splitList": func(sep, s string) ([]string, error) { return parts(s, sep) },
		"split": func(sep, s string) (map[string]string, error) {
			list, err := parts(s, sep)
			m := make(map[string]string, len(list))
			for i, part := range list {
				m[fmt.Sprintf("_%d", i)] = part
			}
			return m, err
		},
		"regexFindAll":     findAll,
		"mustRegexFindAll": findAll,
		"regexSplit":       split,
		"mustRegexSplit":   split,
	}
}

// checkPretty refuses a structure whose indentation alone is too long.
func checkPretty(v any) error {
	return checkLen(prettyLen(reflect.ValueOf(v), 1))
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
