package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// FormatFields is followed by a colon and [Fields] as JSON.
const FormatFields = "fields"

// Fields is a member format of one's own: where each value of a member is. Each is
// "name" (the name of the znode), "data" (all of its data), or a path into the JSON
// object that is the data, such as "$.node.host". Only Address is required.
type Fields struct {
	Address string            `json:"address"`          // a host, host:port or a URL
	Match   string            `json:"match,omitempty"`  // regular expression over the address, whose groups are joined by a colon
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

func fieldsDecoder(text string) (decoder, error) {
	var f Fields
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, fmt.Errorf("format %s: %w", FormatFields, err)
	}
	return f.decoder()
}

func (f *Fields) decoder() (decoder, error) {
	places := map[string]string{"address": f.Address, "port": f.Port, "weight": f.Weight, "status": f.Status, "id": f.ID}
	for label, place := range f.Labels {
		places["label "+label] = place
	}
	for what, place := range places {
		path, isPath := strings.CutPrefix(place, "$.")
		switch {
		case place == "name", place == "data", isPath && !slices.Contains(strings.Split(path, "."), ""):
		case place == "" && what != "address" && !strings.HasPrefix(what, "label "):
		default:
			return nil, fmt.Errorf("%s: %q is not name, data, or a path such as $.node.host", what, place)
		}
	}
	match, err := regexp.Compile(f.Match)
	if err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	if f.Match != "" && match.NumSubexp() == 0 {
		return nil, errors.New("match: the expression has no group")
	}
	return func(name string, data []byte) (view.Member, error) {
		r := reading{name: name, data: data}
		m := view.Member{Weight: 1, Status: view.StatusUp, ID: r.text(f.ID)}
		address := r.text(f.Address)
		if f.Match != "" {
			groups := match.FindStringSubmatch(address)
			if r.err == nil && groups == nil {
				return m, errors.New("the address does not match the expression")
			}
			address = strings.Join(groups[min(1, len(groups)):], ":")
		}
		port, weight, status := r.text(f.Port), r.text(f.Weight), r.text(f.Status)
		for label, place := range f.Labels {
			if value := r.text(place); value != "" {
				if m.Labels == nil {
					m.Labels = map[string]string{}
				}
				m.Labels[label] = value
			}
		}
		switch {
		case r.err != nil:
			return m, r.err
		case address == "":
			return m, errors.New("the address is missing")
		}
		var err error
		if m.Host, m.Port, err = splitText(address); err == nil && port != "" {
			m.Port, err = parsePort(port)
		}
		if err == nil && weight != "" {
			m.Weight, err = strconv.Atoi(weight)
		}
		m.Status = f.status(status)
		return m, err
	}, nil
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
