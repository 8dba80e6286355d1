package registry

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Registration is the input of an encoder: the facts to write about a member. In the
// format template it is also the data of the template.
type Registration struct {
	Service    string // last element of the group's path
	ID         string // member id
	Host       string // name or address, without a port
	Port       int
	Ports      map[string]int
	Weight     *int              // nil: not given
	Status     string            // up (also when empty), draining, maintenance or down
	Labels     map[string]string // free pairs; formats without them drop them
	Registered time.Time         // when the znode was created

	HAProxyServerOptions string         // nerve
	Shard                *int           // serverset
	Curator              CuratorOptions // curator
	Template             string         // template
}

func (r Registration) status() string { return cmp.Or(r.Status, view.StatusUp) }

// Address is host and port joined.
func (r Registration) Address() string { return r.member().Address() }

func (r Registration) member() *view.Member {
	m := &view.Member{
		Znode: "probe", ID: r.ID, Name: r.ID, Host: r.Host, Port: r.Port, Ports: r.Ports, Labels: r.Labels, Weight: 1, Status: r.Status,
	}
	if r.Weight != nil {
		m.Weight = *r.Weight
	}
	return m
}

// encode is Encode for a registration that our own readers accept.
func (r Registration) encode(format string) ([]byte, error) {
	if r.Port == 0 {
		return nil, errors.New("port is missing")
	}
	if !printable(r.HAProxyServerOptions) {
		return nil, errors.New("haproxy server options have characters that cannot be printed")
	}
	if p := r.Curator.SSLPort; p < 0 || p > 65535 {
		return nil, fmt.Errorf("ssl port %d is not within 1 to 65535", p)
	}
	if r.Curator.NoPort && r.Curator.SSLPort == 0 {
		return nil, errors.New("without a port, the ssl port is needed")
	}
	m := r.member()
	m.Labels, m.Ports = maps.Clone(m.Labels), maps.Clone(m.Ports)
	if err := validate(m); err != nil {
		return nil, err
	}
	if m.LabelsLeftOut != "" {
		return nil, errors.New(string(m.LabelsLeftOut))
	}
	return Encode(format, r)
}

// Encode makes the data of a member's znode in the format. It is pure: the
// same registration gives the same bytes.
func Encode(format string, r Registration) ([]byte, error) {
	var data []byte
	var err error
	switch format {
	case "", FormatNerve:
		data, err = encodeNerve(r)
	case FormatServerSet:
		data, err = encodeServerSet(r)
	case FormatCurator:
		data, err = encodeCurator(r)
	case FormatTemplate:
		data, err = encodeTemplate(r)
	default:
		return nil, fmt.Errorf("format %q cannot be written", format)
	}
	if err == nil && len(data) > maxData {
		err = fmt.Errorf("data of the member would have %d bytes, more than %d", len(data), maxData)
	}
	return data, err
}

// marshal encodes JSON without HTML escapes and without a final newline.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode member: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func encodeTemplate(r Registration) ([]byte, error) {
	if strings.TrimSpace(r.Template) == "" {
		return nil, errors.New("template of the member's data is empty")
	}
	t, err := template.New("member").Option("missingkey=error").Funcs(template.FuncMap{
		"toJSON": func(v any) (string, error) {
			data, err := marshal(v)
			return string(data), err
		},
		"upper": strings.ToUpper, "lower": strings.ToLower, "replace": strings.ReplaceAll,
	}).Parse(r.Template)
	if err != nil {
		return nil, fmt.Errorf("parse template of the member's data: %w", err)
	}
	r.Status = r.status()
	var b bytes.Buffer
	if err := t.Execute(&b, r); err != nil {
		return nil, fmt.Errorf("run template of the member's data: %w", err)
	}
	return b.Bytes(), nil
}

// Airbnb Nerve (SmartStack). Znodes: <group>/<instance id>_<sequence>
// (ephemeral sequential). Data: a JSON object with the keys below in this
// order. Two keys come from the Go variant of nerve and are written only while
// a member is not up: "available" and "unavailable_reason".

type nerveRecord struct {
	Host    string            `json:"host"`
	Port    int               `json:"port"`
	Name    string            `json:"name"`
	Weight  *int              `json:"weight,omitempty"`
	Options string            `json:"haproxy_server_options,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`

	Available *bool  `json:"available,omitempty"`
	Reason    string `json:"unavailable_reason,omitempty"`
}

func encodeNerve(r Registration) ([]byte, error) {
	n := nerveRecord{
		Host: r.Host, Port: r.Port, Name: r.ID, Weight: r.Weight, Options: r.HAProxyServerOptions, Labels: r.Labels,
	}
	if r.Status != "" && r.Status != view.StatusUp {
		n.Available, n.Weight, n.Reason = new(false), new(0), r.Status
	}
	return marshal(n)
}

// nerveEncoded is a name that holds the data too: base64_<length>_<data>_<sequence>.
var nerveEncoded = regexp.MustCompile(`^base64_\d+_([A-Za-z0-9_=-]+)_-?\d{9,10}$`)

// optionsLabel is the label that has what a member wants at its line of HAProxy.
const optionsLabel = "haproxy_server_options"

func decodeNerve(m *view.Member, name string, data []byte) error {
	if match := nerveEncoded.FindStringSubmatch(name); match != nil && len(data) == 0 {
		decoded, err := base64.URLEncoding.DecodeString(match[1])
		if err != nil {
			return errors.New("name is not valid base64")
		}
		data = decoded
	}
	return decodeObject(nerveFields)(m, name, data)
}

func nerveFields(m *view.Member, _ string, o object) {
	m.Host, m.Port, m.Name = o.str("host"), o.port("port"), o.str("name")
	m.Node = m.Name // Nerve calls an instance by the name of its host
	m.Weight = o.integer("weight", 1)
	m.Labels, m.LabelsLeftOut = o.labels("labels")
	own := o
	own.err = new(error) // A value that is not a text is no option; the member stays.
	if m.Labels[optionsLabel] == "" {
		setLabel(m, optionsLabel, own.str(optionsLabel))
	}
	available, reason := o.boolean("available", true), o.str("unavailable_reason")
	if !available {
		m.Status, m.Weight = view.StatusDown, 0
		if s := readStatus(strings.TrimSpace(reason)); s == view.StatusDraining || s == view.StatusMaintenance {
			m.Status = s
		}
	}
}

// Twitter ServerSet (Finagle, Aurora). Znodes: <group>/member_<sequence>
// (ephemeral sequential); siblings called vector_<sequence> hold weights and
// are no members. Data: a JSON object with the keys below in this order.
// additionalEndpoints is always written, for readers that expect it.

type endpoint struct {
	Host string `json:"host"`
	Port int    `json:"port"`
}

type serverSetRecord struct {
	ServiceEndpoint     endpoint            `json:"serviceEndpoint"`
	AdditionalEndpoints map[string]endpoint `json:"additionalEndpoints"`
	Status              string              `json:"status"`
	Shard               *int                `json:"shard,omitempty"`
	Metadata            map[string]string   `json:"metadata,omitempty"`
}

// serverSetPrefix is what readers require names to begin with.
const serverSetPrefix = "member_"

var serverSetStatus = map[string]string{
	view.StatusUp: "ALIVE", view.StatusDown: "DEAD", view.StatusDraining: "STOPPING", view.StatusMaintenance: "STOPPED",
}

func encodeServerSet(r Registration) ([]byte, error) {
	s := serverSetRecord{
		ServiceEndpoint: endpoint{r.Host, r.Port}, AdditionalEndpoints: map[string]endpoint{},
		Status: serverSetStatus[r.status()], Shard: r.Shard, Metadata: r.Labels,
	}
	for name, port := range r.Ports {
		s.AdditionalEndpoints[name] = endpoint{r.Host, port}
	}
	return marshal(s)
}

var serverSetVector = regexp.MustCompile(`^vector_-?\d{9,10}$`)

func decodeServerSet(m *view.Member, name string, data []byte) error {
	if serverSetVector.MatchString(name) {
		return ErrIgnore
	}
	return decodeObject(serverSetFields)(m, name, data)
}

func serverSetFields(m *view.Member, _ string, o object) {
	m.Host, m.Port = readEndpoint(o, "serviceEndpoint", "serviceEndpoint")
	// A member has one host: endpoints of others are left out.
	more := o.object("additionalEndpoints")
	for _, name := range more.keys() {
		if host, port := readEndpoint(more, name, fmt.Sprintf("endpoint %q", name)); host == m.Host {
			setPort(m, name, port)
		}
	}
	m.Labels, m.LabelsLeftOut = o.labels("metadata")
	if o.has("shard") {
		setLabel(m, "shard", strconv.Itoa(o.integer("shard", 0)))
	}
	// Readers of server sets send requests only to ALIVE members. Writers must set the
	// status, so a missing one means not alive.
	m.Status = view.StatusDown
	for status, word := range serverSetStatus {
		if word == o.str("status") {
			m.Status = status
		}
	}
}

func readEndpoint(o object, key, what string) (string, int) {
	e := o.object(key)
	e.err = new(error)
	host, port := e.str("host"), e.port("port")
	if *e.err != nil {
		o.fail("%s: %w", what, *e.err)
	}
	return host, port
}

// Apache Curator ServiceDiscovery. Znodes: <base>/<service>/<id> (ephemeral).
// Data: what its JsonInstanceSerializer writes, byte for byte. The payload is
// null unless a class is named, because a reader that expects a class fails on
// an object without one, and then for the whole service. "enabled" is written
// only when it is false, as the serializer's compatible mode leaves it out.

// Presets of the curator format.
const (
	PresetSpring = "spring" // Spring Cloud Zookeeper
	PresetDubbo3 = "dubbo3" // Apache Dubbo 3, application level
)

const (
	springClass  = "org.springframework.cloud.zookeeper.discovery.ZookeeperInstance"
	dubboClass   = "org.apache.dubbo.registry.zookeeper.ZookeeperInstance"
	springURI    = "{scheme}://{address}:{port}"
	springStatus = "instance_status"
)

// CuratorOptions are the options of the curator format.
type CuratorOptions struct {
	Preset       string // spring, dubbo3 or empty
	PayloadClass string // "@class" of the payload; empty: by the preset, else no payload
	PayloadID    string // "id" within the payload; empty: the member's id
	Payload      any    // written as JSON instead of a payload with the labels; nil: that. Readers in Java expect "@class" in it
	URISpec      string // such as "{scheme}://{address}:{port}"; empty: by the preset, else null
	SSLPort      int    // 0: null
	NoPort       bool   // port is null: only SSLPort is served
}

type curatorRecord struct {
	Name        string   `json:"name"`
	ID          string   `json:"id"`
	Address     string   `json:"address"`
	Port        *int     `json:"port"`
	SSLPort     *int     `json:"sslPort"`
	Payload     any      `json:"payload"`
	Registered  int64    `json:"registrationTimeUTC"`
	ServiceType string   `json:"serviceType"`
	URISpec     *uriSpec `json:"uriSpec"`
	Enabled     *bool    `json:"enabled,omitempty"`
}

type curatorPayload struct {
	Class    string            `json:"@class"`
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata"`
}

type uriSpec struct {
	Parts []uriPart `json:"parts"`
}

type uriPart struct {
	Value    string `json:"value"`
	Variable bool   `json:"variable"`
}

func encodeCurator(r Registration) ([]byte, error) {
	o := r.Curator
	if o.Preset != "" && o.Preset != PresetSpring && o.Preset != PresetDubbo3 {
		return nil, fmt.Errorf("curator preset %q is not one of spring, dubbo3", o.Preset)
	}
	c := curatorRecord{
		Name: r.Service, ID: r.ID, Address: r.Host, Port: &r.Port, ServiceType: "DYNAMIC",
		Payload: curatorPayloadOf(r), Registered: r.Registered.UnixMilli(),
	}
	if o.NoPort {
		c.Port = nil
	}
	if o.SSLPort != 0 {
		c.SSLPort = &o.SSLPort
	}
	var err error
	if c.URISpec, err = parseURISpec(cmp.Or(o.URISpec, map[string]string{PresetSpring: springURI}[o.Preset])); err != nil {
		return nil, err
	}
	// Spring and Dubbo readers take the status from the payload. All other readers
	// take it from "enabled".
	if r.status() != view.StatusUp {
		c.Enabled = new(false)
	}
	return marshal(c)
}

func curatorPayloadOf(r Registration) any {
	class := cmp.Or(r.Curator.PayloadClass, map[string]string{PresetSpring: springClass, PresetDubbo3: dubboClass}[r.Curator.Preset])
	if r.Curator.Payload != nil || class == "" {
		return r.Curator.Payload
	}
	p := &curatorPayload{Class: class, ID: cmp.Or(r.Curator.PayloadID, r.ID), Name: r.Service, Metadata: map[string]string{}}
	maps.Copy(p.Metadata, r.Labels)
	switch r.Curator.Preset {
	case PresetSpring:
		p.Metadata[springStatus] = "UP"
		if r.status() != view.StatusUp {
			p.Metadata[springStatus] = "OUT_OF_SERVICE"
		}
	case PresetDubbo3:
		if _, ok := p.Metadata["dubbo.endpoints"]; !ok {
			p.Metadata["dubbo.endpoints"] = fmt.Sprintf(`[{"port":%d,"protocol":"dubbo"}]`, r.Port)
		}
	}
	return p
}

// curatorVariables are the variables of a uriSpec.
const curatorVariables = " scheme name id address port ssl-port registration-time-utc service-type [ ] "

// parseURISpec splits "{scheme}://{address}" into its parts; nil for an empty text.
func parseURISpec(s string) (*uriSpec, error) {
	if s == "" {
		return nil, nil
	}
	spec := &uriSpec{}
	for s != "" {
		text, rest, found := strings.Cut(s, "{")
		if text != "" {
			spec.Parts = append(spec.Parts, uriPart{Value: text})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || name == "" || !strings.Contains(curatorVariables, " "+name+" ") {
			return nil, fmt.Errorf("uri spec: {%s is not one of%s", rest, curatorVariables)
		}
		spec.Parts = append(spec.Parts, uriPart{Value: name, Variable: true})
		s = after
	}
	return spec, nil
}

func decodeCurator(m *view.Member, _ string, o object) {
	m.Host, m.ID = o.str("address"), o.text("id")
	m.Name = m.ID
	ssl := o.integer("sslPort", 0)
	setPort(m, "ssl", ssl)
	if m.Port = o.integer("port", 0); m.Port <= 0 {
		m.Port = ssl
	}
	if m.Port <= 0 {
		o.fail("port is missing")
	}
	if !o.boolean("enabled", true) {
		m.Status = view.StatusDown
	}
	o.err = new(error) // a payload of any other shape is ignored
	meta, _ := o.object("payload").labels("metadata")
	for k, v := range meta {
		if k != springStatus {
			setLabel(m, k, v)
		} else if v != "UP" && m.Status == view.StatusUp {
			m.Status = view.StatusDraining
		}
	}
}

// curatorRegistered reads the registration time of a record, so that an update in place
// keeps it; a record without one is registered now.
func curatorRegistered(data []byte) time.Time {
	var ms int64
	if parseObject(data).read("registrationTimeUTC", &ms, "a time"); ms > 0 {
		return time.UnixMilli(ms)
	}
	return time.Now()
}
