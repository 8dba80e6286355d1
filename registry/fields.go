package registry

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/zkagent/zkagent/view"
)

// FormatFields is followed by a colon and [Fields] as JSON.
const FormatFields = "fields"

// Fields is a custom member format: the place of each value of a member. Each is
// "name" (the name of the znode), "data" (all of its data), a path into the JSON object
// that is the data, such as "$.node.host", or the numbers of fields in the protobuf
// message that is the data, such as "#1.2". Only Address is required.
type Fields struct {
	Only    string            `json:"only,omitempty"`   // regular expression over the names of znodes; other children are no members
	Address string            `json:"address"`          // a host, host:port or a URL
	Match   string            `json:"match,omitempty"`  // regular expression over the address; a group named id or name is the ID or the Name, the others are joined by a colon
	Port    string            `json:"port,omitempty"`   // else that of the address
	Weight  string            `json:"weight,omitempty"` // else 1
	Status  string            `json:"status,omitempty"` // else up
	Up      []string          `json:"up,omitempty"`     // words of Status that mean up; empty: the usual ones
	ID      string            `json:"id,omitempty"`     // else the name of the znode
	Labels  map[string]string `json:"labels,omitempty"` // label to the place of its value
}

// Format returns the format as [Decode] takes it, and an error for a place that
// cannot be.
func (f *Fields) Format() (string, error) {
	if _, err := f.decoder(); err != nil {
		return "", err
	}
	data, err := json.Marshal(f)
	return FormatFields + ":" + string(data), err
}

func (f *Fields) decoder() (decoder, error) {
	places := map[string]string{"address": f.Address, "port": f.Port, "weight": f.Weight, "status": f.Status, "id": f.ID}
	for label, place := range f.Labels {
		places["label "+label] = place
	}
	for what, place := range places {
		path, isPath := strings.CutPrefix(place, "$.")
		switch {
		case place == "name", place == "data", isPath && !slices.Contains(strings.Split(path, "."), ""), fieldNumbers.MatchString(place):
		case place == "" && what != "address" && !strings.HasPrefix(what, "label "):
		default:
			return nil, fmt.Errorf("%s: %q is not name, data, a path such as $.node.host, or numbers of protobuf fields such as #1.2", what, place)
		}
	}
	only, err := regexp.Compile(f.Only)
	if err != nil {
		return nil, fmt.Errorf("only: %w", err)
	}
	match, err := regexp.Compile(f.Match)
	if err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	ofAddress := func(group string) bool { return group != "id" && group != "name" }
	if f.Match != "" && !slices.ContainsFunc(match.SubexpNames()[1:], ofAddress) {
		return nil, errors.New("match: the expression has no group for the address")
	}
	return func(m *view.Member, name string, data []byte) error {
		if !only.MatchString(name) {
			return ErrIgnore
		}
		return f.read(m, match, &reading{name: name, data: data})
	}, nil
}

// read reads the values of a member.
func (f *Fields) read(m *view.Member, match *regexp.Regexp, r *reading) error {
	m.ID = r.text(f.ID)
	address, port := r.text(f.Address), r.text(f.Port)
	if f.Match != "" && r.err == nil {
		groups := match.FindStringSubmatch(address)
		if groups == nil {
			return errors.New("the address does not match the expression")
		}
		var parts []string
		for i, name := range match.SubexpNames()[1:] {
			switch name {
			case "id":
				m.ID = groups[i+1]
			case "name":
				m.Name = groups[i+1]
			default:
				parts = append(parts, groups[i+1])
			}
		}
		address = strings.Join(parts, ":")
	}
	weight, status := r.text(f.Weight), r.text(f.Status)
	for _, label := range slices.Sorted(maps.Keys(f.Labels)) {
		labelled := reading{name: r.name, data: r.data} // a member never fails for its labels
		setLabel(m, label, labelled.text(f.Labels[label]))
		if labelled.err != nil && m.LabelsLeftOut == "" {
			m.LabelsLeftOut = view.RawText(fmt.Sprintf("label %s: %v", label, labelled.err))
		}
	}
	switch {
	case r.err != nil:
		return r.err
	case address == "":
		return errors.New("the address is missing")
	}
	var err error
	if m.Host, m.Port, err = splitText(address); err == nil && port != "" {
		m.Port, err = parsePort(port)
	}
	if err == nil && weight != "" {
		if m.Weight, err = strconv.Atoi(weight); err != nil {
			err = errors.New("weight is not an integer")
		}
	}
	m.Status = f.status(status)
	return err
}

func (f *Fields) status(word string) string {
	status := readStatus(word)
	switch {
	case len(f.Up) == 0 || word == "":
		return status
	case slices.Contains(f.Up, word):
		return view.StatusUp
	case status == view.StatusUp:
		return view.StatusDown
	}
	return status
}

// reading reads the values of one member. It keeps the first error.
type reading struct {
	name   string
	data   []byte
	object object // of the data, once a path was asked for
	err    error
}

// text returns the value at a place; "" when there is none.
func (r *reading) text(place string) string {
	path, isPath := strings.CutPrefix(place, "$.")
	switch {
	case r.err != nil:
		return ""
	case place == "name":
		return r.name
	case place == "data":
		return strings.TrimRight(string(r.data), "\r\n")
	case strings.HasPrefix(place, "#"):
		var value string
		value, r.err = messageText(withoutHBaseHead(r.data), place[1:])
		return value
	case !isPath:
		return ""
	}
	if r.object.err == nil {
		r.object = parseObject(r.data)
	}
	o := r.object
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		o = o.object(key)
	}
	value := o.text(keys[len(keys)-1])
	r.err = *o.err
	return value
}

// fieldNumbers are the numbers of fields of protobuf messages, from the outermost one.
var fieldNumbers = regexp.MustCompile(`^#[1-9][0-9]{0,8}(\.[1-9][0-9]{0,8}){0,7}$`)

// messageText returns the text or the integer at the numbers of a protobuf message; ""
// when it has no such field.
func messageText(message []byte, numbers string) (string, error) {
	switch value, kind, err := messageField(message, numbers); {
	case err != nil:
		return "", err
	case kind == protowire.BytesType:
		return string(value), nil
	case kind == protowire.VarintType:
		n, _ := protowire.ConsumeVarint(value)
		return strconv.FormatInt(int64(n), 10), nil //nolint:gosec // negative numbers are written as large ones
	}
	return "", fmt.Errorf("the protobuf field #%s is not a text or an integer", numbers)
}

// messageField returns the field at the numbers of a protobuf message and its kind; nil
// when it has no such field.
func messageField(value []byte, numbers string) ([]byte, protowire.Type, error) {
	kind := protowire.BytesType
	for number := range strings.SplitSeq(numbers, ".") {
		if kind != protowire.BytesType {
			return nil, 0, fmt.Errorf("the protobuf field before %s is not a message", number)
		}
		message := value
		value = nil
		for len(message) > 0 {
			n, k, tag := protowire.ConsumeTag(message)
			size := protowire.ConsumeFieldValue(n, k, message[max(tag, 0):])
			if tag < 0 || size < 0 {
				return nil, 0, errors.New("data is not a protobuf message")
			}
			if strconv.Itoa(int(n)) == number {
				value, kind = message[tag:tag+size], k
			}
			message = message[tag+size:]
		}
		if value == nil {
			return nil, protowire.BytesType, nil
		}
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
	}
	return value, kind, nil
}

// withoutHBaseHead returns data without what HBase writes before a message: 0xFF, a
// length, an identity of that length, and PBUF. No message begins with 0xFF.
func withoutHBaseHead(data []byte) []byte {
	if len(data) < 5 || data[0] != 0xff {
		return data
	}
	rest := data[5:]
	size := binary.BigEndian.Uint32(data[1:])
	if uint64(size) > uint64(len(rest)) {
		return data
	}
	return bytes.TrimPrefix(rest[size:], []byte("PBUF"))
}

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
