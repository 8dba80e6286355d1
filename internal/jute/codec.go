package jute

import (
	"crypto/md5"  //nolint:gosec // DIGEST-MD5 is defined with it
	"crypto/sha1" //nolint:gosec // the scheme digest is defined with it
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"
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

// CheckPath returns why ZooKeeper does not accept a path. A path is absolute, has no slash at
// the end, no empty, "." or ".." element, and no control or private-use characters.
func CheckPath(path string) error {
	switch {
	case path == "/":
		return nil
	case path == "":
		return errors.New("it is empty; a znode path begins with a slash, like /locks/deploy")
	case path[0] != '/':
		return fmt.Errorf("%q is not absolute; znode paths begin with a slash", path)
	case path[len(path)-1] == '/':
		return fmt.Errorf("%q ends with a slash; leave that out", path)
	case !utf8.ValidString(path):
		return fmt.Errorf("%q is not UTF-8", path)
	}
	for e := range strings.SplitSeq(path[1:], "/") {
		if err := CheckName(e); err != nil {
			return fmt.Errorf("%q has %w", path, err)
		}
	}
	return nil
}

// CheckName returns an error when ZooKeeper does not accept name as an element of a path.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("an empty element")
	case name == ".", name == "..", strings.Contains(name, "/"), !utf8.ValidString(name):
		return fmt.Errorf("the element %q, which ZooKeeper does not allow", name)
	}
	for _, r := range name {
		// Java sees characters beyond the basic plane as surrogates, which are refused too.
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return fmt.Errorf("the character %U, which ZooKeeper does not allow", r)
		}
	}
	return nil
}

// IsCreate reports whether an operation creates a znode.
func IsCreate(op int32) bool {
	return op == OpCreate || op == OpCreate2 || op == OpCreateContainer || op == OpCreateTTL
}

// Digest returns the id of the scheme digest for "user:password".
func Digest(credential string) string {
	user, _, _ := strings.Cut(credential, ":")
	sum := sha1.Sum([]byte(credential)) //nolint:gosec // see the import
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// DigestURI is the name of every ZooKeeper server in SASL DIGEST-MD5: "zookeeper" is the
// service, and the rest stands for the host, whatever its real name.
const DigestURI = "zookeeper/zk-sasl-md5"

// DigestResponse is response-value of RFC 2831, 2.1.2.1, for the first use of a nonce with
// the quality of protection "auth". The method is AUTHENTICATE for the client's proof, and
// empty for the server's.
func DigestResponse(method, user, realm, password, nonce, cnonce string) string {
	sum := func(s string) string {
		h := md5.Sum([]byte(s)) //nolint:gosec // see the import
		return string(h[:])
	}
	hexSum := func(s string) string { return hex.EncodeToString([]byte(sum(s))) }
	a1 := hexSum(sum(latin1(user)+":"+latin1(realm)+":"+latin1(password)) + ":" + nonce + ":" + cnonce)
	return hexSum(a1 + ":" + nonce + ":00000001:" + cnonce + ":auth:" + hexSum(method+":"+DigestURI))
}

// latin1 returns a text in ISO 8859-1 if it has no other characters: the RFC hashes it so.
func latin1(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return s
		}
		b = append(b, byte(r)) //nolint:gosec // at most 0xff
	}
	return string(b)
}

var (
	directive = regexp.MustCompile(`(?s)^([^="]*)=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^",][^,]*)?)`)
	escaped   = regexp.MustCompile(`(?s)\\(.)`)
)

// ParseDirectives reads name=value pairs that are separated by commas, as DIGEST-MD5 has
// them. Values may be quoted. If a name comes twice, the first counts.
func ParseDirectives(s string) (map[string]string, error) {
	const between = ", \t\r\n"
	found := map[string]string{}
	for s = strings.TrimLeft(s, between); s != ""; s = strings.TrimLeft(s, between) {
		match := directive.FindStringSubmatch(s)
		if match == nil {
			return nil, fmt.Errorf("%.20q is not a directive", s)
		}
		if name := strings.ToLower(strings.TrimSpace(match[1])); found[name] == "" {
			found[name] = escaped.ReplaceAllString(match[2], "$1") + strings.TrimSpace(match[3])
		}
		s = s[len(match[0]):]
	}
	return found, nil
}

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
