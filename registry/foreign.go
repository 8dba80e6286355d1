package registry

import (
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// Formats of other systems, read only.

// decodeKafka reads /brokers/ids/<id> of Kafka up to 3.9 (record versions 1
// to 5). A broker without a PLAINTEXT listener has host null and port -1.
func decodeKafka(m *view.Member, name string, o object) {
	m.ID, m.Name, m.Status = name, name, view.StatusUp
	m.Host, m.Port = o.str("host"), o.integer("port", 0)
	for i, e := range o.list("endpoints") {
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
func decodeDubboURL(name string, _ []byte) (view.Member, error) {
	m := view.Member{Weight: 1, Status: view.StatusUp}
	text, err := url.QueryUnescape(name)
	if err != nil {
		return m, errors.New("name is not an escaped URL")
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return m, errors.New("name is not an escaped URL")
	}
	m.Host = u.Hostname()
	if m.Port, err = parsePort(u.Port()); err != nil {
		return m, err
	}
	m.Name = m.Address()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return m, errors.New("parameters of the URL are not valid")
	}
	if w := query.Get("weight"); w != "" {
		if m.Weight, err = strconv.Atoi(w); err != nil {
			return m, errors.New("weight is not an integer")
		}
	}
	if query.Get("disabled") == "true" || query.Get("enabled") == "false" {
		m.Status = view.StatusDown
	}
	setLabel(&m, "protocol", u.Scheme)
	setLabel(&m, "path", strings.TrimPrefix(u.Path, "/"))
	for _, k := range slices.Sorted(maps.Keys(query)) {
		if _, taken := m.Labels[k]; !taken {
			setLabel(&m, k, query.Get(k))
		}
	}
	return m, nil
}

// decodeHostPortName reads members that are names alone: host:port,
// host:port_context (Solr live nodes), host,port,startcode (HBase region
// servers), or a host.
func decodeHostPortName(name string, _ []byte) (view.Member, error) {
	m := view.Member{Weight: 1, Status: view.StatusUp}
	if host, rest, ok := strings.Cut(name, ","); ok {
		port, _, _ := strings.Cut(rest, ",")
		n, err := parsePort(port)
		m.Host, m.Port, m.Name = host, n, net.JoinHostPort(host, port)
		return m, err
	}
	address := name
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		if port, context, ok := strings.Cut(name[i:], "_"); ok {
			address = name[:i] + port
			if c, err := url.QueryUnescape(context); err == nil {
				setLabel(&m, "context", c)
			}
		}
	}
	var err error
	if m.Host, m.Port, err = splitHostMaybePort(address); err != nil {
		return m, err
	}
	m.Name = m.Address()
	return m, nil
}
