package registry

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/zkagent/zkagent/view"
)

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

func decodeServerSet(name string, data []byte) (view.Member, error) {
	if serverSetVector.MatchString(name) {
		return view.Member{}, ErrIgnore
	}
	return decodeObject(serverSetFields)(name, data)
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
	m.Status = readServerSetStatus(o.str("status"))
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

// readServerSetStatus maps a status: readers of server sets send requests only to
// ALIVE members. Writers must set the status, so a missing one means not alive.
func readServerSetStatus(s string) string {
	for status, word := range serverSetStatus {
		if word == s {
			return status
		}
	}
	return view.StatusDown
}
