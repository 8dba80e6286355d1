package template

import (
	"errors"
	"fmt"
	"reflect"
)

// mathFunctions calculate. In a pipe the piped number is the left one:
// "5 | subtract 2" is 3. Integers stay integers; a fraction makes both floats.
func mathFunctions() map[string]any {
	funcs := map[string]any{
		"minimum": func(b, a any) (any, error) { return choose(a, b, true) },
		"maximum": func(b, a any) (any, error) { return choose(a, b, false) },
	}
	for name, operator := range map[string]byte{"add": '+', "subtract": '-', "multiply": '*', "divide": '/', "modulo": '%'} {
		funcs[name] = func(b, a any) (any, error) { return calculate(a, operator, b) }
	}
	return funcs
}

func calculate(a any, operator byte, b any) (any, error) {
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	if err := numbers(av, bv); err != nil {
		return nil, err
	}
	switch {
	case (av.CanFloat() || bv.CanFloat()) && operator == '%':
		return nil, errors.New("modulo is for integers only")
	case av.CanFloat() || bv.CanFloat():
		return operate(toFloat(av), operator, toFloat(bv)), nil
	case (operator == '/' || operator == '%') && bv.IsZero():
		return nil, errors.New("division by zero")
	case av.CanUint() && bv.CanUint():
		return operate(av.Uint(), operator, bv.Uint()), nil
	}
	return operate(toInt(av), operator, toInt(bv)), nil
}

func operate[T int64 | uint64 | float64](a T, operator byte, b T) T {
	switch operator {
	case '+':
		return a + b
	case '-':
		return a - b
	case '*':
		return a * b
	case '%': // Of integers.
		return a - a/b*b
	}
	return a / b
}

func choose(a, b any, smaller bool) (any, error) {
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	if err := numbers(av, bv); err != nil {
		return nil, err
	}
	var less, more bool
	switch {
	case av.CanFloat() || bv.CanFloat():
		less, more = toFloat(av) < toFloat(bv), toFloat(av) > toFloat(bv)
	case av.CanUint() && bv.CanUint():
		less, more = av.Uint() < bv.Uint(), av.Uint() > bv.Uint()
	default:
		less, more = toInt(av) < toInt(bv), toInt(av) > toInt(bv)
	}
	if smaller && less || !smaller && more {
		return widened(av), nil
	}
	return widened(bv), nil
}

func numbers(vs ...reflect.Value) error {
	for _, v := range vs {
		if !v.IsValid() {
			return errors.New("nothing is not a number")
		}
		if !v.CanInt() && !v.CanUint() && !v.CanFloat() {
			return fmt.Errorf("%s is not a number: use parseInt or parseFloat for a text", v.Type())
		}
	}
	return nil
}

func toFloat(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

func toInt(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint()) //nolint:gosec // Wraps as a conversion in Go does.
	}
	return v.Int()
}

func widened(v reflect.Value) any {
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return v.Uint()
	}
	return v.Float()
}
