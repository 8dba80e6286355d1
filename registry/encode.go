package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"text/template"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Registration is the input of an encoder: what to write about a member. It is also
// the data of the template of format template.
type Registration struct {
	Service    string // last element of the group's path
	ID         string // member id
	Host       string // name or address, without a port
	Port       int
	Ports      map[string]int
	Weight     *int              // nil: not given
	Status     string            // up (also when empty), draining, maintenance or down
	Labels     map[string]string // free pairs; formats without them drop them
	Registered time.Time         // when the znode was made

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

// validate rejects a registration that our own readers would reject.
func (r Registration) validate() error {
	if r.Port == 0 {
		return errors.New("port is missing")
	}
	if !printable(r.HAProxyServerOptions) {
		return errors.New("haproxy server options have characters that cannot be printed")
	}
	if p := r.Curator.SSLPort; p < 0 || p > 65535 {
		return fmt.Errorf("ssl port %d is not within 1 to 65535", p)
	}
	m := r.member()
	m.Labels, m.Ports = maps.Clone(m.Labels), maps.Clone(m.Ports)
	if err := validate(m); err != nil {
		return err
	}
	if m.LabelsLeftOut != "" {
		return errors.New(string(m.LabelsLeftOut))
	}
	return nil
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
