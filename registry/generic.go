package registry

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/view"
)

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
func decodeText(_ string, data []byte) (view.Member, error) {
	m := view.Member{Weight: 1, Status: view.StatusUp}
	var err error
	m.Host, m.Port, err = splitText(strings.TrimRight(string(data), "\r\n"))
	return m, err
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
