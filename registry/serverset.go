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
	m := view.Member{Weight: 1}
	o, err := parseObject(data)
	if err != nil {
		return m, err
	}
	main, err := o.object("serviceEndpoint")
	if err != nil {
		return m, err
	}
	if m.Host, m.Port, err = readEndpoint(main); err != nil {
		return m, fmt.Errorf("serviceEndpoint: %w", err)
	}
	if err = addEndpoints(&m, o); err != nil {
		return m, err
	}
	m.Labels, m.LabelsLeftOut = o.labels("metadata")
	if o.has("shard") {
		shard, bad := o.integer("shard", 0)
		if bad != nil {
			return m, bad
		}
		setLabel(&m, "shard", strconv.Itoa(shard))
	}
	status, err := o.str("status")
	if err != nil {
		return m, err
	}
	m.Status = readServerSetStatus(status)
	return m, nil
}

func readEndpoint(o object) (string, int, error) {
	host, err := o.str("host")
	if err != nil {
		return "", 0, err
	}
	port, err := o.port("port")
	return host, port, err
}

// addEndpoints keeps the further endpoints that are on the same host: a
// member has one host.
func addEndpoints(m *view.Member, o object) error {
	more, err := o.object("additionalEndpoints")
	if err != nil {
		return err
	}
	for _, name := range more.keys() {
		e, err := more.object(name)
		if err != nil {
			return err
		}
		host, port, err := readEndpoint(e)
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", name, err)
		}
		if host == m.Host {
			setPort(m, name, port)
		}
	}
	return nil
}

// readServerSetStatus maps a status: readers of server sets send requests only to
// ALIVE members. Writers must set the status, so a missing one means not alive.
func readServerSetStatus(s string) string {
	switch s {
	case "ALIVE":
		return view.StatusUp
	case "STOPPING":
		return view.StatusDraining
	case "STOPPED":
		return view.StatusMaintenance
	}
	return view.StatusDown
}
