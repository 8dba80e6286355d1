package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/zkagent/zkagent/view"
)

// object is a JSON object whose fields are read with type checks. Keys are
// case-sensitive. A null field counts as absent. The first error is kept, also that of an
// object within; what is read after it has no meaning.
type object struct {
	fields map[string]json.RawMessage
	err    *error
}

// parseObject reads data, which must be one JSON object and nothing else.
func parseObject(data []byte) object {
	dec := json.NewDecoder(bytes.NewReader(data))
	o := object{err: new(error)}
	if err := dec.Decode(&o.fields); err != nil {
		o.fail("data is not a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		o.fail("data has something after the JSON object")
	}
	if o.fields == nil {
		o.fail("data is null")
	}
	return o
}

func (o object) fail(format string, args ...any) {
	if *o.err == nil {
		*o.err = fmt.Errorf(format, args...)
	}
}

// has reports whether the field is there and not null.
func (o object) has(key string) bool {
	raw, ok := o.fields[key]
	return ok && string(raw) != "null"
}

func (o object) keys() []string { return slices.Sorted(maps.Keys(o.fields)) }

// read puts a field into what v points to, and fails when it is not a what. An absent field
// leaves v as it is.
func (o object) read(key string, v any, what string) {
	if o.has(key) && json.Unmarshal(o.fields[key], v) != nil {
		o.fail("%s is not %s", key, what)
	}
}

// str returns a string field; empty when absent.
func (o object) str(key string) string {
	var s string
	o.read(key, &s, "a string")
	return s
}

// boolean returns a boolean field; def when absent.
func (o object) boolean(key string, def bool) bool {
	o.read(key, &def, "a boolean")
	return def
}

// list returns an array of strings; nil when absent.
func (o object) list(key string) []string {
	var l []string
	o.read(key, &l, "a list of strings")
	return l
}

// object returns an object field; one without fields when absent.
func (o object) object(key string) object {
	sub := object{err: o.err}
	o.read(key, &sub.fields, "an object")
	return sub
}

// text returns a string, number or boolean field as text.
func (o object) text(key string) string {
	if !o.has(key) {
		return ""
	}
	raw := o.fields[key]
	switch raw[0] {
	case '{', '[':
		o.fail("%s is not a single value", key)
		return ""
	case '"':
		return o.str(key)
	}
	return string(raw)
}

// integer returns an integer field, given as a number or as a string of
// digits (writers in the wild do both); def when absent.
func (o object) integer(key string, def int) int {
	if !o.has(key) {
		return def
	}
	s := o.text(key)
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || s[0] == '+' {
		o.fail("%s is not an integer", key)
	}
	return int(n)
}

// port returns a port field that must be within 1 and 65535.
func (o object) port(key string) int {
	if !o.has(key) {
		o.fail("%s is missing", key)
	}
	n := o.integer(key, 0)
	if n < 1 || n > 65535 {
		o.fail("%s %d is not within 1 to 65535", key, n)
	}
	return n
}

// labels returns an object of single values as strings, and why there is none. A value
// that is not single stays as its JSON text. A member never fails for its labels.
func (o object) labels(key string) (map[string]string, view.RawText) {
	o.err = new(error)
	sub := o.object(key)
	if *o.err != nil {
		return nil, view.RawText((*o.err).Error())
	}
	if len(sub.fields) == 0 {
		return nil, ""
	}
	m := make(map[string]string, len(sub.fields))
	for k, raw := range sub.fields {
		switch raw[0] {
		case '"':
			m[k] = sub.str(k)
		case 'n': // null
			m[k] = ""
		default:
			m[k] = string(raw)
		}
	}
	return m, ""
}
