package registry

import (
	"encoding/base64"
	"errors"
	"regexp"
	"strings"

	"github.com/zkagent/zkagent/view"
)

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

func decodeNerve(name string, data []byte) (view.Member, error) {
	if match := nerveEncoded.FindStringSubmatch(name); match != nil && len(data) == 0 {
		decoded, err := base64.URLEncoding.DecodeString(match[1])
		if err != nil {
			return view.Member{}, errors.New("name is not valid base64")
		}
		data = decoded
	}
	return decodeObject(nerveFields)(name, data)
}

func nerveFields(m *view.Member, _ string, o object) {
	m.Host, m.Port, m.Name = o.str("host"), o.port("port"), o.str("name")
	m.Node = m.Name // Nerve calls an instance by the name of its host
	m.Weight = o.integer("weight", 1)
	m.Labels, m.LabelsLeftOut = o.labels("labels")
	own := o
	own.err = new(error) // What is no text is no option; the member stays.
	if options := own.str(optionsLabel); options != "" && m.Labels[optionsLabel] == "" {
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		m.Labels[optionsLabel] = options
	}
	m.Status = view.StatusUp
	available, reason := o.boolean("available", true), o.str("unavailable_reason")
	if !available {
		m.Status, m.Weight = view.StatusDown, 0
		if s := readStatus(strings.TrimSpace(reason)); s == view.StatusDraining || s == view.StatusMaintenance {
			m.Status = s
		}
	}
}
