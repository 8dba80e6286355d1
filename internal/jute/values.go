package jute

import (
	"fmt"
	"reflect"
)

// Put appends values in their order: bool, int32, int64, string, []byte, vectors of values,
// and structs and pointers to them, field by field. A nil pointer appends nothing. A []any
// stands for its values, without a count. Other types panic.
func (e *Encoder) Put(values ...any) {
	for _, v := range values {
		e.put(reflect.ValueOf(v))
	}
}

func (e *Encoder) put(v reflect.Value) {
	switch kind := v.Kind(); {
	case kind == reflect.Bool:
		e.Bool(v.Bool())
	case kind == reflect.Int32:
		e.Int32(int32(v.Int())) //nolint:gosec // The same bits.
	case kind == reflect.Int64:
		e.Int64(v.Int())
	case kind == reflect.String:
		e.String(v.String())
	case isBuffer(v):
		e.Buffer(v.Bytes())
	case kind == reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Interface {
			e.Count(v.Len())
		}
		for i := range v.Len() {
			e.put(v.Index(i))
		}
	case kind == reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // Fields takes much longer.
			e.put(v.Field(i))
		}
	case kind != reflect.Pointer && kind != reflect.Interface:
		panic(fmt.Sprintf("jute: values of type %s have no encoding", v.Type()))
	case !v.IsNil():
		e.put(v.Elem())
	}
}

func isBuffer(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8
}

// Get reads values of the same types into what the pointers point to, and returns [Err].
// A field that is a pointer stays nil at the end of the input. An empty vector is nil.
func (d *Decoder) Get(pointers ...any) error {
	for _, p := range pointers {
		d.get(reflect.ValueOf(p).Elem())
	}
	return d.err
}

func (d *Decoder) get(v reflect.Value) {
	switch kind := v.Kind(); {
	case kind == reflect.Bool:
		v.SetBool(d.Bool())
	case kind == reflect.Int32:
		v.SetInt(int64(d.Int32()))
	case kind == reflect.Int64:
		v.SetInt(d.Int64())
	case kind == reflect.String:
		v.SetString(d.String())
	case isBuffer(v):
		v.SetBytes(d.Buffer())
	case kind == reflect.Slice:
		v.SetZero()
		if n := d.Count(leastSize(v.Type().Elem())); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			d.get(v.Index(i))
		}
	case kind == reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // Fields takes much longer.
			d.get(v.Field(i))
		}
	case kind != reflect.Pointer:
		panic(fmt.Sprintf("jute: values of type %s have no encoding", v.Type()))
	case d.Len() > 0:
		v.Set(reflect.New(v.Type().Elem()))
		d.get(v.Elem())
	}
}

// leastSize is the least number of bytes that a value of a type takes.
func leastSize(t reflect.Type) int {
	switch kind := t.Kind(); {
	case kind == reflect.Bool:
		return 1
	case kind == reflect.Int64:
		return 8
	case kind != reflect.Struct:
		return 4
	}
	n := 0
	for f := range t.Fields() {
		n += leastSize(f.Type)
	}
	return n
}
