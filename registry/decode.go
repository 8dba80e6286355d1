package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
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
	// FormatRegexpName is followed by a colon and a regular expression over the znode's name,
	// as [Fields] has it in Match.
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
	if match, ok := strings.CutPrefix(format, FormatRegexpName+":"); ok {
		f := Fields{Address: "name", Match: match}
		return f.decoder()
	}
	if fields, ok := strings.CutPrefix(format, FormatFields+":"); ok {
		var f Fields
		if err := json.Unmarshal([]byte(fields), &f); err != nil {
			return nil, fmt.Errorf("format %s: %w", FormatFields, err)
		}
		return f.decoder()
	}
	return nil, fmt.Errorf("format %q is not one of auto, nerve, serverset, curator, kafka-broker, patroni, dubbo-url, host-port-name, json, text, regexp-name:EXPR, fields:JSON", format)
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

// Formats of other systems, read only.

// decodeKafka reads /brokers/ids/<id> of Kafka up to 3.9 (record versions 1
// to 5). A broker without a PLAINTEXT listener has host null and port -1.
func decodeKafka(m *view.Member, name string, o object) {
	m.ID, m.Name = name, name
	m.Host, m.Port = o.str("host"), o.integer("port", 0)
	var endpoints []string
	o.read("endpoints", &endpoints, "a list of strings")
	for i, e := range endpoints {
		listener, address, _ := strings.Cut(e, "://")
		host, port, err := splitHostPort(address)
		if err != nil {
			o.fail("%w", err)
		}
		if i == 0 && (m.Host == "" || m.Port <= 0) {
			m.Host, m.Port = host, port
		}
		setPort(m, listener, port)
	}
	if m.Port <= 0 {
		o.fail("port is missing")
	}
	setPort(m, "jmx", o.integer("jmx_port", 0))
	setLabel(m, "rack", o.str("rack"))
}

// decodePatroni reads members/<name> of a Patroni cluster. Only what changes
// rarely is taken: the record also has a position that moves all the time.
func decodePatroni(m *view.Member, name string, o object) {
	m.ID, m.Name, m.Status = name, name, view.StatusDown
	var err error
	if m.Host, m.Port, err = splitURL(o.str("conn_url"), 5432); err != nil {
		o.fail("%w", err)
	}
	if _, port, err := splitURL(o.str("api_url"), 8008); err == nil {
		setPort(m, "api", port)
	}
	m.Labels, m.LabelsLeftOut = o.labels("tags")
	maps.DeleteFunc(m.Labels, func(_, v string) bool { return v == "" })
	for _, k := range []string{"role", "state", "version"} {
		setLabel(m, k, o.str(k))
	}
	if state := m.Labels["state"]; state == "running" || state == "streaming" || state == "in archive recovery" {
		m.Status = view.StatusUp
	}
}

// decodeDubboURL reads a provider of Dubbo 2.7 and of Dubbo 3 at the level of
// interfaces: the name of the znode is a whole URL, escaped.
func decodeDubboURL(m *view.Member, name string, _ []byte) error {
	text, err := url.QueryUnescape(name)
	if err != nil {
		return errors.New("name is not an escaped URL")
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return errors.New("name is not an escaped URL")
	}
	m.Host = u.Hostname()
	if m.Port, err = parsePort(u.Port()); err != nil {
		return err
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errors.New("parameters of the URL are not valid")
	}
	if w := query.Get("weight"); w != "" {
		if m.Weight, err = strconv.Atoi(w); err != nil {
			return errors.New("weight is not an integer")
		}
	}
	if query.Get("disabled") == "true" || query.Get("enabled") == "false" {
		m.Status = view.StatusDown
	}
	setLabel(m, "protocol", u.Scheme)
	setLabel(m, "path", strings.TrimPrefix(u.Path, "/"))
	for _, k := range slices.Sorted(maps.Keys(query)) {
		if _, taken := m.Labels[k]; !taken {
			setLabel(m, k, query.Get(k))
		}
	}
	return nil
}

// decodeHostPortName reads members that are names alone: host:port,
// host:port_context (Solr live nodes), host,port,startcode (HBase region
// servers), or a host.
func decodeHostPortName(m *view.Member, name string, _ []byte) error {
	var err error
	if host, rest, ok := strings.Cut(name, ","); ok {
		port, _, _ := strings.Cut(rest, ",")
		m.Host = host
		m.Port, err = parsePort(port)
		m.Name = asName(m.Address())
		return err
	}
	address := name
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		if port, context, ok := strings.Cut(name[i:], "_"); ok {
			address = name[:i] + port
			if c, err := url.QueryUnescape(context); err == nil {
				setLabel(m, "context", c)
			}
		}
	}
	m.Host, m.Port, err = splitHostMaybePort(address)
	m.Name = asName(m.Address())
	return err
}

// decodeJSON reads any JSON object that has an address under one of the usual
// names.
func decodeJSON(m *view.Member, _ string, o object) {
	text := o.str(o.first("host", "address", "ip", "hostname", "url"))
	switch {
	case text == "":
		o.fail("host is missing")
	case o.has("port"):
		m.Host, m.Port = text, o.port("port")
	default:
		var err error
		if m.Host, m.Port, err = splitText(text); err != nil {
			o.fail("%w", err)
		}
	}
	m.ID, m.Name, m.Weight = o.text("id"), o.text("name"), o.integer("weight", 1)
	m.Labels, m.LabelsLeftOut = o.labels(o.first("labels", "metadata", "meta"))
	ports := o.object("ports")
	for _, name := range ports.keys() {
		setPort(m, name, ports.port(name))
	}
	m.Status = readStatus(o.str("status"))
}

// first returns the first of the keys that exists in the object, else the first
// key.
func (o object) first(keys ...string) string {
	return keys[max(slices.IndexFunc(keys, o.has), 0)]
}

// readStatus maps the usual status words to ours.
func readStatus(s string) string {
	switch strings.ToLower(s) {
	case "", "up", "alive", "passing", "ok", "running", "healthy":
		return view.StatusUp
	case "drain", "draining", "stopping":
		return view.StatusDraining
	case "maint", "maintenance":
		return view.StatusMaintenance
	}
	return view.StatusDown
}

// decodeText reads host, host:port or a URL; the name of the znode names the
// member.
func decodeText(m *view.Member, _ string, data []byte) error {
	var err error
	m.Host, m.Port, err = splitText(strings.TrimRight(string(data), "\r\n"))
	return err
}

// splitText splits host, host:port or scheme://host:port/path.
func splitText(s string) (string, int, error) {
	if strings.Contains(s, "://") {
		return splitURL(s, 0)
	}
	return splitHostMaybePort(s)
}

// splitHostMaybePort splits host:port, [v6]:port, or a host alone.
func splitHostMaybePort(s string) (string, int, error) {
	if host, err := ParseHost(s); err == nil {
		return host, 0, nil
	}
	return splitHostPort(s)
}

func splitHostPort(s string) (string, int, error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, errors.New("not host:port")
	}
	port, err := parsePort(text)
	if err != nil {
		return "", 0, err
	}
	host, err = ParseHost(host)
	return host, port, err
}

// splitURL returns host and port of a URL. Without a port it uses the scheme's
// default, else def.
func splitURL(s string, def int) (string, int, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return "", 0, errors.New("not a URL with a host")
	}
	if text := u.Port(); text != "" {
		if def, err = parsePort(text); err != nil {
			return "", 0, err
		}
	} else if n, ok := map[string]int{"http": 80, "https": 443}[u.Scheme]; ok && def == 0 {
		def = n
	}
	host, err := ParseHost(u.Hostname())
	return host, def, err
}

// parsePort reads a port: digits only.
func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("port is not a number within 1 to 65535")
	}
	return int(n), nil
}
