package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Nerve translates nerve.conf.json: each service becomes a service block that
// writes what Nerve writes.
func Nerve(r *Result, name string, data []byte) (*Result, error) {
	m, err := parseConfig(name, data, json.Unmarshal)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = newResult("Nerve's " + filepath.Base(name))
	}
	list := first(m["services"])
	if list == nil && m["host"] != nil { // a file of service_conf_dir: one service
		base := filepath.Base(name)
		list = map[string]any{strings.TrimSuffix(base, filepath.Ext(base)): m}
		m = nil
	}
	for _, key := range sorted(m) {
		switch key {
		case "services", "instance_id", "listen_port":
		case "heartbeat_path":
			r.note("there is no heartbeat file: use /readyz of the agent, or systemd's watchdog")
		case "service_conf_dir":
			r.note("services in %s are imported one by one, or by naming the directory", text(m[key]))
		default:
			r.miss("%s has no counterpart here", key)
		}
	}
	for _, name := range sorted(list) {
		r.nerveService(name, first(list[name]), text(m["instance_id"]))
	}
	return r, nil
}

// nerveKeys are what a service of Nerve may hold that is translated.
var nerveKeys = []string{"host", "port", "reporter_type", "zk_hosts", "zk_path", "check_interval", "checks", "weight", "haproxy_server_options", "labels"}

func (r *Result) nerveService(name string, m map[string]any, instance string) {
	var b strings.Builder
	var notes notes
	for _, key := range unknown(m, nerveKeys...) {
		notes.miss("%s has no counterpart here", key)
	}
	if kind := text(m["reporter_type"]); kind != "" && kind != "zookeeper" {
		notes.miss("the reporter %s is not ZooKeeper", kind)
	}
	r.ensemble("service "+name, texts(m["zk_hosts"]))
	fmt.Fprintf(&b, "group = %s\n", quote(cmp.Or(text(m["zk_path"]), "/services/"+name)))
	host, port := text(m["host"]), text(m["port"])
	line(&b, "address", host)
	fmt.Fprintf(&b, "port = %s\n", cmp.Or(port, "0"))
	line(&b, "member_id", instance)
	if v := text(m["weight"]); v != "" {
		fmt.Fprintf(&b, "weight = %s\n", v)
	}
	line(&b, "haproxy_server_options", text(m["haproxy_server_options"]))
	pairs(&b, "labels", first(m["labels"]))
	for _, c := range blocks(m["checks"]) {
		nerveCheck(&b, c, host, port, seconds(m["check_interval"]), notes.miss)
	}
	r.others = append(r.others, other{"service", name, b.String(), notes})
}

// pairs is a map of texts in the settings.
func pairs(b *strings.Builder, name string, m map[string]any) {
	if len(m) == 0 {
		return
	}
	b.WriteString(name + " = {\n")
	for _, k := range sorted(m) {
		fmt.Fprintf(b, "%s = %s\n", quote(k), quote(text(m[k])))
	}
	b.WriteString("}\n")
}

// nerveCheck is one check.
func nerveCheck(b *strings.Builder, c map[string]any, host, port, interval string, miss func(string, ...any)) {
	known := []string{"type", "host", "port", "timeout", "rise", "fall", "name"}
	if text(c["type"]) == "http" {
		known = append(known, "uri", "ssl", "headers", "expect", "open_timeout", "read_timeout", "ssl_timeout")
	} else if text(c["type"]) == "tcp" {
		known = append(known, "uri") // Nerve does not look at it
	}
	for _, key := range unknown(c, known...) {
		miss("%s of a check has no counterpart here", key)
	}
	at := net.JoinHostPort(cmp.Or(text(c["host"]), host, "127.0.0.1"), cmp.Or(text(c["port"]), port))
	kind, tls := text(c["type"]), ""
	switch kind {
	case "http":
		scheme := "http://"
		if text(c["ssl"]) == "true" {
			scheme = "https://"
		}
		uri := text(c["uri"])
		if !strings.HasPrefix(uri, "/") {
			uri = "/" + uri
		}
		fmt.Fprintf(b, "check \"http\" {\nurl = %s\nstatus = \"200-299\"\n", quote(scheme+at+uri))
		line(b, "body", regexp.QuoteMeta(text(c["expect"])))
		pairs(b, "headers", first(c["headers"]))
		if scheme == "https://" { // Nerve does not verify the certificate
			tls = "tls {\ninsecure = true\n}\n"
		}
	case "tcp":
		fmt.Fprintf(b, "check \"tcp\" {\naddress = %s\n", quote(at))
	case "redis":
		host, port, _ := net.SplitHostPort(at)
		fmt.Fprintf(b, "check \"exec\" {\ncommand = [\"sh\", \"-c\", %s, \"redis\", %s, %s]\n",
			quote(`redis-cli -h "$1" -p "$2" ping | grep -q PONG`), quote(host), quote(port))
	default:
		miss("a check of the type %s: write it as check \"exec\"", kind)
		return
	}
	// Nerve waits for the interval after each check; here it is from one to the next.
	every, timeout := cmp.Or(interval, "500ms"), cmp.Or(seconds(c["timeout"]), "100ms")
	if e, err := time.ParseDuration(every); err == nil {
		if t, err := time.ParseDuration(timeout); err == nil && t > e {
			every = timeout
		}
	}
	line(b, "interval", every)
	line(b, "timeout", timeout)
	fmt.Fprintf(b, "rise = %s\nfall = %s\n%s}\n", cmp.Or(text(c["rise"]), "1"), cmp.Or(text(c["fall"]), "1"), tls)
}
