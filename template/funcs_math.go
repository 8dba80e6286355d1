package template

import (
	"errors"
	"fmt"
	"reflect"
)

// mathFunctions calculate. In a pipe the piped number is the left one:
// "5 | subtract 2" is 3. Integers stay integers; a fraction makes both floats.
func mathFunctions() map[string]any {
	return map[string]any{
		"add":      func(b, a any) (any, error) { return calculate(a, b, adding) },
		"subtract": func(b, a any) (any, error) { return calculate(a, b, subtracting) },
		"multiply": func(b, a any) (any, error) { return calculate(a, b, multiplying) },
		"divide":   func(b, a any) (any, error) { return calculate(a, b, dividing) },
		"modulo":   func(b, a any) (any, error) { return calculate(a, b, remaining) },
		"minimum":  func(b, a any) (any, error) { return choose(a, b, true) },
		"maximum":  func(b, a any) (any, error) { return choose(a, b, false) },
	}
}

// operation is one calculation for each kind of number.
type operation struct {
	ints   func(a, b int64) (int64, error)
	uints  func(a, b uint64) (uint64, error)
	floats func(a, b float64) float64 // nil: not for fractions
}

var errDivideByZero = errors.New("division by zero")

var (
	adding = operation{
		func(a, b int64) (int64, error) { return a + b, nil },
		func(a, b uint64) (uint64, error) { return a + b, nil },
		func(a, b float64) float64 { return a + b },
	}
	subtracting = operation{
		func(a, b int64) (int64, error) { return a - b, nil },
		func(a, b uint64) (uint64, error) { return a - b, nil },
		func(a, b float64) float64 { return a - b },
	}
	multiplying = operation{
		func(a, b int64) (int64, error) { return a * b, nil },
		func(a, b uint64) (uint64, error) { return a * b, nil },
		func(a, b float64) float64 { return a * b },
	}
	dividing = operation{
		func(a, b int64) (int64, error) { return whole(a, b, func() int64 { return a / b }) },
		func(a, b uint64) (uint64, error) { return whole(a, b, func() uint64 { return a / b }) },
		func(a, b float64) float64 { return a / b },
	}
	remaining = operation{
		ints:  func(a, b int64) (int64, error) { return whole(a, b, func() int64 { return a % b }) },
		uints: func(a, b uint64) (uint64, error) { return whole(a, b, func() uint64 { return a % b }) },
	}
)

func whole[T int64 | uint64](_, b T, fn func() T) (T, error) {
	if b == 0 {
		return 0, errDivideByZero
	}
	return fn(), nil
}

func calculate(a, b any, op operation) (any, error) {
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	if err := numbers(av, bv); err != nil {
		return nil, err
	}
	switch {
	case av.CanFloat() || bv.CanFloat():
		if op.floats == nil {
			return nil, errors.New("modulo is for integers only")
		}
		return op.floats(toFloat(av), toFloat(bv)), nil
	case av.CanUint() && bv.CanUint():
		return op.uints(av.Uint(), bv.Uint())
	}
	return op.ints(toInt(av), toInt(bv))
}

// choose returns the smaller or the larger number, in its own kind.
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

// widened is the number as int64, uint64 or float64.
func widened(v reflect.Value) any {
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return v.Uint()
	}
	return v.Float()
}
