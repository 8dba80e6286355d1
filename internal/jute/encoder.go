package jute

import (
	"encoding/binary"
	"fmt"
	"reflect"
)

// Encoder appends fields to a buffer. The zero value is ready to use. It is not
// safe for concurrent use.
type Encoder struct{ buf []byte }

// NewEncoder returns an Encoder that appends to buf, which may be nil.
func NewEncoder(buf []byte) *Encoder { return &Encoder{buf: buf} }

// Bytes returns what has been encoded. The slice is valid until the next write
// or Reset.
func (e *Encoder) Bytes() []byte { return e.buf }

// Len returns the number of bytes in the buffer.
func (e *Encoder) Len() int { return len(e.buf) }

// Reset empties the buffer and keeps its storage.
func (e *Encoder) Reset() { e.buf = e.buf[:0] }

// Bool appends one byte, 1 for true.
func (e *Encoder) Bool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	e.buf = append(e.buf, b)
}

// Int32 appends a 32-bit integer.
func (e *Encoder) Int32(v int32) {
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(v)) //nolint:gosec // The same bits.
}

// Int64 appends a 64-bit integer.
func (e *Encoder) Int64(v int64) {
	e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(v)) //nolint:gosec // The same bits.
}

// Count appends the length of a buffer, string or vector.
func (e *Encoder) Count(n int) {
	e.Int32(int32(n)) //nolint:gosec // No packet is as long as that.
}

// Buffer appends a length and the bytes of v; nil is encoded as length -1.
func (e *Encoder) Buffer(v []byte) {
	if v == nil {
		e.Int32(-1)
		return
	}
	e.Count(len(v))
	e.buf = append(e.buf, v...)
}

// String appends a length and the bytes of v.
func (e *Encoder) String(v string) {
	e.Count(len(v))
	e.buf = append(e.buf, v...)
}

// Raw appends what is already encoded.
func (e *Encoder) Raw(b []byte) { e.buf = append(e.buf, b...) }

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
