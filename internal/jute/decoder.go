package jute

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
)

// Errors of a Decoder, wrapped with the position.
var (
	// ErrShort means that the record ends before the field does.
	ErrShort = errors.New("record is too short")
	// ErrLength means that a length is below -1.
	ErrLength = errors.New("length is negative")
)

// Decoder reads fields from a buffer. After the first error all reads return
// zero values and Err returns that error. It is not safe for concurrent use.
type Decoder struct {
	buf []byte
	pos int
	err error
}

// NewDecoder returns a Decoder that reads b. The Decoder does not change b.
func NewDecoder(b []byte) *Decoder { return &Decoder{buf: b} }

// Err returns the first error, or nil.
func (d *Decoder) Err() error { return d.err }

// Len returns the number of bytes not yet read; 0 after an error.
func (d *Decoder) Len() int {
	if d.err != nil {
		return 0
	}
	return len(d.buf) - d.pos
}

// take returns the next n bytes, or nil when there are fewer.
func (d *Decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.buf)-d.pos {
		d.fail(ErrShort)
		return nil
	}
	b := d.buf[d.pos : d.pos+n : d.pos+n]
	d.pos += n
	return b
}

func (d *Decoder) fail(err error) {
	if d.err == nil {
		d.err = fmt.Errorf("decode at byte %d: %w", d.pos, err)
	}
}

// Bool reads one byte; every value but 0 is true.
func (d *Decoder) Bool() bool {
	b := d.take(1)
	return len(b) == 1 && b[0] != 0
}

// Int32 reads a 32-bit integer.
func (d *Decoder) Int32() int32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b)) //nolint:gosec // The same bits.
}

// Int64 reads a 64-bit integer.
func (d *Decoder) Int64() int64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b)) //nolint:gosec // The same bits.
}

// length reads the length of a buffer, string or vector. It returns 0 for length -1, and
// for an error.
func (d *Decoder) length() (n int, none bool) { //nolint:nonamedreturns // says what is false
	switch l := d.Int32(); {
	case l < -1:
		d.fail(ErrLength)
		return 0, true
	default:
		return max(int(l), 0), d.err != nil || l == -1
	}
}

// Buffer reads a length and that many bytes, as a copy. Length -1 gives nil,
// length 0 an empty slice that is not nil.
func (d *Decoder) Buffer() []byte {
	n, none := d.length()
	b := d.take(n)
	if none || d.err != nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// String reads a length and that many bytes. Length -1 gives "".
func (d *Decoder) String() string {
	n, _ := d.length()
	return string(d.take(n))
}

// Count reads the length of a vector whose elements take at least size bytes
// each. Length -1 gives 0. A length that cannot fit into what is left is an
// error, so that a caller may allocate for it.
func (d *Decoder) Count(size int) int {
	n, _ := d.length()
	if int64(n)*int64(size) > int64(d.Len()) {
		d.fail(ErrShort)
		return 0
	}
	return n
}

// Strings reads a vector of strings; nil when it is empty.
func (d *Decoder) Strings() []string {
	n := d.Count(4)
	if n == 0 {
		return nil
	}
	s := make([]string, 0, n)
	for range n {
		s = append(s, d.String())
	}
	if d.err != nil {
		return nil
	}
	return s
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
