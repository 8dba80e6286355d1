package registry

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// Formats that can only be read.
const (
	FormatAuto         = "auto"
	FormatKafka        = "kafka-broker"
	FormatPatroni      = "patroni"
	FormatDubboURL     = "dubbo-url"
	FormatHostPortName = "host-port-name"
	FormatJSON         = "json"
	FormatText         = "text"
	// FormatRegexpName is followed by a colon and a regular expression over
	// the znode's name with the groups host, and port, id or name.
	FormatRegexpName = "regexp-name"
)

// decoder reads a child of a group into a member, whose weight is 1 and whose status is up.
type decoder func(m *view.Member, name string, data []byte) error

var decoders = map[string]decoder{
	FormatAuto:         decodeAuto,
	FormatNerve:        decodeNerve,
	FormatServerSet:    decodeServerSet,
	FormatCurator:      decodeObject(decodeCurator),
	FormatKafka:        decodeObject(decodeKafka),
	FormatPatroni:      decodeObject(decodePatroni),
	FormatDubboURL:     decodeDubboURL,
	FormatHostPortName: decodeHostPortName,
	FormatJSON:         decodeObject(decodeJSON),
	FormatText:         decodeText,
}

// decodeObject returns the decoder of a format whose data is a JSON object. fields reads
// them into a member.
func decodeObject(fields func(m *view.Member, name string, o object)) decoder {
	return func(m *view.Member, name string, data []byte) error {
		o := parseObject(data)
		fields(m, name, o)
		return *o.err
	}
}

// decoderOf returns the decoder of a format; empty means auto.
func decoderOf(format string) (decoder, error) {
	if d, ok := decoders[cmp.Or(format, FormatAuto)]; ok {
		return d, nil
	}
	if expr, ok := strings.CutPrefix(format, FormatRegexpName+":"); ok {
		return regexpDecoder(expr)
	}
	if fields, ok := strings.CutPrefix(format, FormatFields+":"); ok {
		return fieldsDecoder(fields)
	}
	return nil, fmt.Errorf("format %q is not one of auto, nerve, serverset, curator, kafka-broker, patroni, dubbo-url, host-port-name, json, text, regexp-name:EXPR", format)
}

// Decode decodes one child of a group from its name and data. The returned member
// holds only validated values. The caller fills in the fields that come from the
// znode's stat. An error that matches [ErrIgnore] means that the child is not meant
// to be a member. Decode is pure and never panics on any input.
func Decode(format, name string, data []byte) (view.Member, error) {
	d, err := decoderOf(format)
	if err != nil {
		return view.Member{}, err
	}
	return decodeWith(d, name, data)
}

func decodeWith(d decoder, name string, data []byte) (view.Member, error) {
	if len(data) > maxData {
		return view.Member{}, fmt.Errorf("data has %d bytes, more than %d", len(data), maxData)
	}
	m := view.Member{Znode: name, Weight: 1, Status: view.StatusUp}
	err := d(&m, name, data)
	if err == nil {
		err = validate(&m)
	}
	if err != nil {
		return view.Member{}, err
	}
	return m, nil
}

// kazooParty matches the members of kazoo's Party and ShallowParty.
var kazooParty = regexp.MustCompile(`^[0-9a-f]{32}(?:__party__|-(.+))$`)

// decodeAuto finds out the format of one child from its name and its data.
func decodeAuto(m *view.Member, name string, data []byte) error {
	if strings.Contains(name, "%3A%2F%2F") || strings.Contains(name, "%3a%2f%2f") {
		return decodeDubboURL(m, name, data)
	}
	text := strings.TrimSpace(string(data))
	if party := kazooParty.FindStringSubmatch(name); party != nil {
		if party[1] != "" { // ShallowParty: the identifier is in the name
			data = []byte(party[1])
		}
		return decodeText(m, name, data)
	}
	if text == "" {
		if nerveEncoded.MatchString(name) {
			return decodeNerve(m, name, nil)
		}
		return decodeHostPortName(m, name, data)
	}
	if text[0] == '{' {
		return decodeAutoObject(m, name, data)
	}
	// A single word may be anything: accept only a clear address, or what is the name,
	// too, as Curator's GroupMember may have it.
	if err := decodeText(m, name, data); err == nil && (m.Port != 0 || text == name || strings.ContainsAny(m.Host, ".:")) {
		return nil
	}
	// Programs that use only names put their own address or meaningless data into
	// the znode.
	if err := decodeHostPortName(m, name, data); err == nil && m.Port != 0 {
		return nil
	}
	return errors.New("data is neither JSON nor host:port (format \"text\" also takes one word as a host)")
}

func decodeAutoObject(m *view.Member, name string, data []byte) error {
	decode := decodeObject(decodeJSON)
	switch o := parseObject(data); {
	case o.has("serviceEndpoint"), o.has("vector"):
		decode = decodeServerSet
	case o.has("conn_url"):
		decode = decodeObject(decodePatroni)
	case o.has("jmx_port"), o.has("listener_security_protocol_map"):
		decode = decodeObject(decodeKafka)
	case o.has("serviceType"), o.has("registrationTimeUTC"), o.has("address") && o.has("id") && o.has("name"):
		decode = decodeObject(decodeCurator)
	case o.has("host") && o.has("port"):
		decode = decodeNerve
	}
	return decode(m, name, data)
}

// regexpDecoder decodes members from names only.
func regexpDecoder(expr string) (decoder, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("format %s: %w", FormatRegexpName, err)
	}
	if re.SubexpIndex("host") < 0 {
		return nil, fmt.Errorf("format %s: the expression has no group (?P<host>...)", FormatRegexpName)
	}
	return func(m *view.Member, name string, _ []byte) error {
		match := re.FindStringSubmatch(name)
		if match == nil {
			return errors.New("name does not match the expression")
		}
		for i, group := range re.SubexpNames() {
			switch group {
			case "host":
				m.Host = match[i]
			case "port":
				var err error
				if m.Port, err = parsePort(match[i]); err != nil {
					return err
				}
			case "id":
				m.ID = match[i]
			case "name":
				m.Name = match[i]
			}
		}
		return nil
	}, nil
}
