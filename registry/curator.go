package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/zkagent/zkagent/view"
)

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
	URISpec      string // such as "{scheme}://{address}:{port}"; empty: by the preset, else null
	SSLPort      int    // 0: null
	NoPort       bool   // port is null: only SSLPort is served
}

type curatorRecord struct {
	Name        string          `json:"name"`
	ID          string          `json:"id"`
	Address     string          `json:"address"`
	Port        *int            `json:"port"`
	SSLPort     *int            `json:"sslPort"`
	Payload     *curatorPayload `json:"payload"`
	Registered  int64           `json:"registrationTimeUTC"`
	ServiceType string          `json:"serviceType"`
	URISpec     *uriSpec        `json:"uriSpec"`
	Enabled     *bool           `json:"enabled,omitempty"`
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

func (o CuratorOptions) class() string {
	return cmp.Or(o.PayloadClass, map[string]string{PresetSpring: springClass, PresetDubbo3: dubboClass}[o.Preset])
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

func curatorPayloadOf(r Registration) *curatorPayload {
	class := r.Curator.class()
	if class == "" {
		return nil
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
	m.Status = view.StatusUp
	if !o.boolean("enabled", true) {
		m.Status = view.StatusDown
	}
	curatorMetadata(m, o)
}

// curatorMetadata copies the metadata of a payload. It ignores a payload of any
// other shape.
func curatorMetadata(m *view.Member, o object) {
	o.err = new(error)
	meta, _ := o.object("payload").labels("metadata")
	for k, v := range meta {
		if k != springStatus {
			setLabel(m, k, v)
		} else if v != "UP" && m.Status == view.StatusUp {
			m.Status = view.StatusDraining
		}
	}
}

// curatorRegistered reads the registration time of a record, so that an update in
// place keeps it; 0 if it is missing.
func curatorRegistered(data []byte) int64 {
	var c struct {
		Registered int64 `json:"registrationTimeUTC"`
	}
	if json.Unmarshal(data, &c) != nil {
		return 0
	}
	return c.Registered
}
