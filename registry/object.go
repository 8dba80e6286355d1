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
// case-sensitive. A null field counts as absent.
type object map[string]json.RawMessage

// parseObject reads data, which must be one JSON object and nothing else.
func parseObject(data []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var o object
	if err := dec.Decode(&o); err != nil {
		return nil, errors.New("data is not a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data has something after the JSON object")
	}
	if o == nil {
		return nil, errors.New("data is null")
	}
	return o, nil
}

// has reports whether the field is there and not null.
func (o object) has(key string) bool {
	raw, ok := o[key]
	return ok && string(raw) != "null"
}

// keys returns the keys in order, so that errors are deterministic.
func (o object) keys() []string { return slices.Sorted(maps.Keys(o)) }

// str returns a string field; empty when absent.
func (o object) str(key string) (string, error) {
	if !o.has(key) {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(o[key], &s); err != nil {
		return "", fmt.Errorf("%s is not a string", key)
	}
	return s, nil
}

// text returns a string, number or boolean field as text.
func (o object) text(key string) (string, error) {
	if !o.has(key) {
		return "", nil
	}
	raw := o[key]
	switch raw[0] {
	case '{', '[':
		return "", fmt.Errorf("%s is not a single value", key)
	case '"':
		return o.str(key)
	}
	return string(raw), nil
}

// integer returns an integer field, given as a number or as a string of
// digits (writers in the wild do both); def when absent.
func (o object) integer(key string, def int) (int, error) {
	s, err := o.text(key)
	if err != nil {
		return 0, err
	}
	if s == "" && !o.has(key) {
		return def, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || s[0] == '+' {
		return 0, fmt.Errorf("%s is not an integer", key)
	}
	return int(n), nil
}

// port returns a port field that must be within 1 and 65535.
func (o object) port(key string) (int, error) {
	if !o.has(key) {
		return 0, fmt.Errorf("%s is missing", key)
	}
	n, err := o.integer(key, 0)
	if err == nil && (n < 1 || n > 65535) {
		err = fmt.Errorf("%s %d is not within 1 to 65535", key, n)
	}
	return n, err
}

// boolean returns a boolean field; def when absent.
func (o object) boolean(key string, def bool) (bool, error) {
	if !o.has(key) {
		return def, nil
	}
	var b bool
	if err := json.Unmarshal(o[key], &b); err != nil {
		return false, fmt.Errorf("%s is not a boolean", key)
	}
	return b, nil
}

// object returns an object field; nil when absent.
func (o object) object(key string) (object, error) {
	if !o.has(key) {
		return nil, nil
	}
	sub, err := parseObject(o[key])
	if err != nil {
		return nil, fmt.Errorf("%s is not an object", key)
	}
	return sub, nil
}

// list returns an array of strings; nil when absent.
func (o object) list(key string) ([]string, error) {
	if !o.has(key) {
		return nil, nil
	}
	var l []string
	if err := json.Unmarshal(o[key], &l); err != nil {
		return nil, fmt.Errorf("%s is not a list of strings", key)
	}
	return l, nil
}

// labels returns an object of single values as strings, and why there is none. A value
// that is not single stays as its JSON text. A member never fails for its labels.
func (o object) labels(key string) (map[string]string, view.RawText) {
	sub, err := o.object(key)
	if err != nil {
		return nil, view.RawText(err.Error())
	}
	m := make(map[string]string, len(sub))
	for k, raw := range sub {
		if m[k], err = sub.text(k); err != nil {
			m[k] = string(raw)
		}
	}
	if len(m) == 0 {
		return nil, ""
	}
	return m, ""
}
