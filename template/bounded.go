package template

import (
	"fmt"
	"reflect"
	"strings"
	texttemplate "text/template"
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

// short2 panics when a text is too long.
func short2(n int) {
	if n > maxValue {
		panic(tooLarge(n))
	}
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

// weighed wraps a function that makes or changes lists and maps.
func weighed(fn any) any {
	return around(fn, func(fn func([]reflect.Value) []reflect.Value, args []reflect.Value) []reflect.Value {
		out := fn(args)
		if err := weigh(anyOf(out[0])); err != nil {
			panic(err)
		}
		return out
	})
}

// printers are the functions of text/template itself that make texts, with the
// bounds of ours. A format such as "%999999d" that comes from data could otherwise
// make any amount of text in one call.
func (st *state) printers() map[string]any {
	limit := func(fn func(...any) string) func(...any) string {
		return func(args ...any) string { short2(argsLen(args)); return st.spend(fn(args...)) }
	}
	return map[string]any{
		"print": limit(fmt.Sprint), "println": limit(fmt.Sprintln),
		"html": limit(texttemplate.HTMLEscaper), "js": limit(texttemplate.JSEscaper), "urlquery": limit(texttemplate.URLQueryEscaper),
		"printf": func(format string, args ...any) string {
			short2(formatWidth(format, args))
			return st.spend(fmt.Sprintf(format, args...))
		},
	}
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
