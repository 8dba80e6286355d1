package translate

import (
	"bytes"
	"cmp"
	"crypto/sha1" //nolint:gosec // as Synapse has it
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Synapse translates synapse.conf.json: each watcher becomes a group, and the
// sections for HAProxy one template.
func Synapse(r *Result, name string, data []byte) (*Result, error) {
	r, m, err := r.open("Synapse", layoutPlain, name, data, json.Unmarshal)
	if err != nil {
		return nil, err
	}
	s := synapse{r: r, data: data}
	r.keys(m, " has no counterpart here", map[string]string{"statsd": "statsd is not needed: the agent has its counters at /metrics", "service_conf_dir": confDir},
		"services", "haproxy")
	top := first(m["haproxy"])
	s.top = top
	s.base(top)
	r.note("Synapse writes an id at each server and remembers it; here HAProxy numbers the servers in their order")
	list := first(m["services"])
	for _, name := range s.inOrder(list, "services") {
		s.service(name, first(list[name]))
	}
	if _, ok := top["shared_frontend"]; ok {
		s.text.WriteString("\n")
		s.section("frontend shared-frontend", s.shared)
	} else if len(s.shared) > 0 {
		r.note("Synapse leaves shared_frontend of services out where haproxy has none, and so does the template")
	}
	if top != nil && text(top["do_writes"]) != "false" {
		t := &Template{Destination: cmp.Or(text(top["config_file_path"]), "/etc/haproxy/haproxy.cfg"), Text: s.text.String()}
		if text(top["do_reloads"]) != "false" {
			t.reload = command(text(top["reload_command"]), nil)
		}
		r.add(t)
	}
	return r, nil
}

type synapse struct {
	r    *Result
	data []byte // the file
	text strings.Builder
	top  map[string]any // the section haproxy of the file

	shared []string // the lines of shared_frontend

	defaults []string // the lines of the section of that name
}

// inOrder returns the keys of an object of the file in the order of the file, which is
// the order of the sections.
func (s *synapse) inOrder(m map[string]any, path ...string) []string {
	raw := json.RawMessage(s.data)
	for _, key := range path {
		var inner map[string]json.RawMessage
		if json.Unmarshal(raw, &inner) != nil {
			return sorted(m)
		}
		raw = inner[key]
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	var keys []string
	if _, err := dec.Token(); err != nil {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return sorted(m)
		}
		keys = append(slices.DeleteFunc(keys, func(k string) bool { return k == key }), fmt.Sprint(key))
	}
	return keys
}

// What a line of HAProxy may begin with in a frontend and in a backend. Synapse puts
// each line of "listen" where it may be, and leaves other lines out.
const (
	inBoth = `acl|bind-process|block|compression|description|disabled|email-alert (?:from|level|mailers|myhostname|to)|enabled|errorfile|errorloc|` +
		`force-persist|grace|http-request|http-response|id|ignore-persist|log|mode|no log|redirect|` +
		`req(?:add|i?(?:allow|del|deny|pass|rep|setbe|tarpit))|rsp(?:add|i?(?:del|deny|rep))|` +
		`stats (?:admin|auth|enable|hide-version|http-request|realm|refresh|scope|show-desc|show-legends|show-node|uri)|` +
		`tcp-request (?:content|inspect-delay)|timeout (?:http-keep-alive|http-request|tarpit)`
	optionsOfBoth = `forceclose|forwardfor|http-(?:buffer-request|keep-alive|no-delay|pretend-keepalive|server-close|tunnel)|httpclose|httplog|http_proxy|` +
		`independent-streams|nolinger|originalto|splice-(?:auto|request|response)|tcpka|tcplog`
)

var sectionFields = map[string]*regexp.Regexp{
	"frontend": regexp.MustCompile(`^(?:` + inBoth + `|backlog|bind|capture (?:cookie|request header|response header)|clitimeout|declare capture|` +
		`default_backend|maxconn|monitor fail|monitor-net|monitor-uri|(?:no )?option (?:` + optionsOfBoth + `|accept-invalid-http-request|clitcpka|contstats|` +
		`dontlog-normal|dontlognull|http-ignore-probes|http-use-proxy-header|log-separate-errors|logasap|socket-stats|tcp-smart-accept)|` +
		`rate-limit sessions|tcp-request connection|timeout client|timeout clitimeout|unique-id-format|unique-id-header|use_backend)`),
	"backend": regexp.MustCompile(`^(?:` + inBoth + `|appsession|balance|contimeout|cookie|default-server|dispatch|fullconn|hash-type|` +
		`http-check (?:disable-on-404|expect|send-state)|http-send-name-header|http-reuse|load-server-state-from-file|max-keep-alive-queue|` +
		`(?:no )?option (?:` + optionsOfBoth + `|abortonclose|accept-invalid-http-response|allbackups|allredisp|checkcache|httpchk|lb-agent-chk|ldap-check|` +
		`external-check|log-health-checks|mysql-check|pgsql-check|persist|prefer-last-server|redispatch|redis-check|smtpchk|srvtcpka|ssl-hello-chk|` +
		`tcp-check|tcp-smart-connect|transparent)|external-check (?:command|path)|persist rdp-cookie|redisp|retries|server|source|srvtimeout|` +
		`stick match|stick on|stick store-re(?:quest|sponse)|stick-table|tcp-check (?:connect|expect|send)|tcp-response (?:content|inspect-delay)|` +
		`timeout (?:check|connect|contimeout|queue|server|srvtimeout|tunnel)|transparent|use-server)`),
}

// lines are the lines of a section of a service: its own, and those of "listen" that
// the section may have.
func (s *synapse) lines(name, section string, h map[string]any) []string {
	fits := func(line string) bool {
		return sectionFields[section].MatchString(strings.ToLower(strings.Join(strings.Fields(line), " ")))
	}
	var list []string
	for _, own := range []string{section, "shared_" + section} {
		to := &list
		if own == "shared_frontend" {
			to = &s.shared
		}
		for _, line := range s.texts(name, own, h) {
			if fits(line) {
				*to = append(*to, line)
			} else {
				s.r.note("service %s: Synapse leaves %q out of a %s, and so does the template", name, line, own)
			}
		}
	}
	for _, line := range s.texts(name, "listen", h) {
		if fits(line) {
			list = append(list, line)
		}
	}
	return list
}

// texts is a list of lines.
func (s *synapse) texts(name, key string, h map[string]any) []string {
	if h[key] != nil && texts(h[key]) == nil && text(h[key]) != "" {
		s.r.miss("%s of %s is a text: Synapse takes only lists of lines", key, name)
	}
	return texts(h[key])
}

// plain is text that a template prints as it is.
func plain(s string) string { return strings.ReplaceAll(s, "{{", `{{ "{{" }}`) }

func (s *synapse) section(title string, lines []string) {
	s.text.WriteString(plain(title) + "\n")
	for _, l := range lines {
		s.text.WriteString("\t" + plain(l) + "\n")
	}
}

// base are the sections that are not about services.
func (s *synapse) base(m map[string]any) {
	s.section("global", texts(m["global"]))
	s.defaults = texts(m["defaults"])
	s.section("defaults", s.defaults)
	extra := first(m["extra_sections"])
	for _, title := range s.inOrder(extra, "haproxy", "extra_sections") {
		s.text.WriteString("\n")
		s.section(title, texts(extra[title]))
	}
	if shared, ok := m["shared_frontend"]; ok {
		s.shared = append(s.shared, s.lines("haproxy", "frontend", map[string]any{"frontend": shared})...)
	}
	needless := map[string]string{}
	for _, key := range []string{"do_socket", "socket_file_path", "restart_interval", "restart_jitter", "server_order_seed", "state_file_path", "state_file_ttl", "max_server_id"} {
		needless[key] = key + " is not needed: each change is written and reloaded once; zkagent haproxy changes servers through the runtime API"
	}
	s.r.keys(m, " of haproxy has no counterpart here", needless,
		"shared_frontend", "bind_address", "use_nerve_weights", "global", "defaults", "extra_sections", "reload_command", "config_file_path", "do_writes", "do_reloads")
}

// service is one watcher with its sections.
func (s *synapse) service(name string, m map[string]any) {
	d, h := first(m["discovery"]), first(m["haproxy"])
	miss := s.r.miss
	s.r.keys(m, " of service "+name+" has no counterpart here", nil, "discovery", "haproxy", "default_servers", "use_previous_backends", "keep_default_servers")
	s.r.keys(d, " of the discovery of "+name+" has no counterpart here", nil, "method", "hosts", "path", "discovery_jitter")
	stub := text(d["method"]) == "stub" || text(d["method"]) == "base"
	if method := text(d["method"]); method != "zookeeper" && !stub {
		miss("service %s is found by %s, not by ZooKeeper", name, cmp.Or(method, "nothing"))
	}
	s.r.ensemble("service "+name, texts(d["hosts"]))
	l := ""
	defaults := blocks(m["default_servers"])
	if !stub {
		l = s.r.group(name, cmp.Or(text(d["path"]), "/services/"+name))
	}
	if l != "" && len(defaults) == 0 && text(m["use_previous_backends"]) == "false" {
		s.r.onEmpty[l] = "render"
	}
	if h == nil || text(h["disabled"]) == "true" {
		return
	}
	s.r.keys(h, " of the haproxy section of "+name+" has no counterpart here", nil, "port", "bind_address", "bind_options", "server_options", "listen",
		"frontend", "backend", "backend_name", "disabled", "backend_order", "cookie_value_method", "shared_frontend", "server_port_override")
	backend := cmp.Or(text(h["backend_name"]), name)
	s.text.WriteString("\n")
	frontend := s.lines(name, "frontend", h)
	if port, ok := h["port"]; ok {
		at := cmp.Or(text(h["bind_address"]), text(s.top["bind_address"]), "localhost")
		if port != nil { // a socket has none
			at += ":" + text(port)
		}
		bind := strings.TrimSpace("bind " + at + " " + text(h["bind_options"]))
		s.section("frontend "+name, append(frontend, bind, "default_backend "+backend))
		s.text.WriteString("\n")
	}
	lines := s.lines(name, "backend", h)
	s.section("backend "+backend, lines)
	if slices.ContainsFunc(slices.Concat(lines, s.defaults), func(l string) bool { return strings.Join(strings.Fields(l), " ") == "hash-type consistent" }) {
		miss("hash-type consistent of %s: it places servers by their ids, which Synapse writes and remembers: write an id at each server, or take hash-type consistent out", name)
	}
	s.servers(l, h, defaults, text(m["keep_default_servers"]) == "true", !slices.Contains(lines, "mode tcp"), text(h["cookie_value_method"]) == "hash")
}

var weightOption = regexp.MustCompile(`\bweight\b`)

// ownOptions prints what a member wants at its line. What HAProxy would take for more
// than words of the line is left out.
const ownOptions = `{{ with rawLabel "haproxy_server_options" . }}{{ if regexMatch "^[!-$&-~ ]*$" . }}` +
	`{{ range splitList " " . }}{{ with . }} {{ haproxyToken . }}{{ end }}{{ end }}{{ end }}{{ end }}`

// servers are the lines of the members; without members those of default_servers.
func (s *synapse) servers(l string, h map[string]any, defaults []map[string]any, keep, cookie, hash bool) {
	cookieOf := func(name string) string {
		expr, member := strings.CutPrefix(name, "{{ haproxyToken .Name }}")
		switch {
		case !cookie:
			return ""
		case !hash:
			return " cookie " + name
		case member && expr != "":
			return ` cookie {{ print (haproxyToken .Name) "_" .Address | sha1sum }}`
		}
		return fmt.Sprintf(" cookie %x", sha1.Sum([]byte(name))) //nolint:gosec // not for secrets: a name in a cookie
	}
	options := func(host, port, name string) string {
		o := strings.NewReplacer("%{host}", host, "%{port}", port, "%{name}", name).Replace(plain(text(h["server_options"])))
		return " " + o // also of none
	}
	var fixed strings.Builder
	for _, d := range defaults {
		host, port, name := text(d["host"]), text(d["port"]), text(d["name"])
		fmt.Fprintf(&fixed, "\tserver %s %s:%s%s%s\n", plain(strings.TrimPrefix(name+"_"+host+":"+port, "_")), host, port,
			cookieOf(plain(strings.TrimPrefix(name+"_"+host+":"+port, "_"))), options(host, port, name))
	}
	if l == "" {
		s.text.WriteString(fixed.String())
		return
	}
	own, order := ownOptions, text(h["backend_order"])
	if keep && len(defaults) > 0 && strings.HasSuffix(order, "sc") {
		s.r.miss("backend_order of group %s with keep_default_servers: the servers of the group come first", l)
	}
	if text(s.top["use_nerve_weights"]) == "true" {
		if weightOption.MatchString(text(h["server_options"])) {
			s.r.miss("use_nerve_weights with a weight in server_options of group %s: take one of them out", l)
		}
		stripped := strings.Replace(own, `splitList " " .`, "regexReplaceAll `\\bweight +[0-9]+` \"\" . | splitList \" \"", 1)
		own = "{{ if eq .Weight 1 }}" + own + "{{ else }}" + stripped + " weight {{ .Weight }}{{ end }}"
	}
	port := cmp.Or(text(h["server_port_override"]), "{{ .Port }}")
	line := fmt.Sprintf("\tserver {{ haproxyToken .Name }}_{{ .Address }} {{ .Address }}%s%s%s\n",
		cookieOf("{{ haproxyToken .Name }}_{{ .Address }}"), options("{{ .Host }}", port, "{{ haproxyToken .Name }}"), own)
	if port != "{{ .Port }}" {
		line = strings.NewReplacer("{{ .Address }}", "{{ .Host }}:"+port, `"_" .Address`, `"_" .Host ":`+port+`"`).Replace(line)
	}
	s.text.WriteString("{{ range " + s.ordered(l, order, !keep && fixed.Len() > 0) + " }}" + line)
	if !keep && fixed.Len() > 0 {
		s.text.WriteString("{{ else }}" + fixed.String())
	}
	s.text.WriteString("{{ end }}")
	if keep {
		s.text.WriteString(fixed.String())
	}
}

// ordered is the list of the members in the order of backend_order: by address, or by the
// names of their servers.
func (s *synapse) ordered(l, order string, hasElse bool) string {
	group := quoteGo(l)
	if order != "asc" && order != "desc" {
		return "members " + group
	}
	otherwise := map[bool]string{true: "{{ else }}"}[hasElse]
	s.text.WriteString("{{ range members " + group + " }}{{ scratch.MapSet " + group + ` (print .Name "_" .Address) . }}` + otherwise + "{{ end }}")
	return map[string]string{"asc": "", "desc": "sprig_reverse "}[order] + "(scratch.MapValues " + group + ")"
}

// Nerve translates nerve.conf.json: each service becomes a service block that
// writes what Nerve writes.
func Nerve(r *Result, name string, data []byte) (*Result, error) {
	r, m, err := r.open("Nerve", layoutPlain, name, data, json.Unmarshal)
	if err != nil {
		return nil, err
	}
	list := first(m["services"])
	if list == nil && m["host"] != nil { // a file of service_conf_dir: one service
		base := filepath.Base(name)
		list = map[string]any{strings.TrimSuffix(base, filepath.Ext(base)): m}
		m = nil
	}
	r.keys(m, " has no counterpart here",
		map[string]string{"heartbeat_path": "there is no heartbeat file: use /readyz of the agent, or systemd's watchdog", "service_conf_dir": confDir},
		"services", "instance_id", "listen_port")
	for _, name := range sorted(list) {
		r.nerveService(name, first(list[name]), text(m["instance_id"]))
	}
	return r, nil
}

// confDir is the note on a directory of services.
const confDir = "services in VALUE are imported one by one, or by naming the directory"

// nerveKeys are what a service of Nerve may hold that is translated.
var nerveKeys = []string{"host", "port", "reporter_type", "zk_hosts", "zk_path", "check_interval", "checks", "weight", "haproxy_server_options", "labels"}

func (r *Result) nerveService(name string, m map[string]any, instance string) {
	var b strings.Builder
	var notes notes
	notes.keys(m, " has no counterpart here", nil, nerveKeys...)
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
		nerveCheck(&b, c, host, port, seconds(m["check_interval"]), &notes)
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
func nerveCheck(b *strings.Builder, c map[string]any, host, port, interval string, notes *notes) {
	known := []string{"type", "host", "port", "timeout", "rise", "fall", "name"}
	if text(c["type"]) == "http" {
		known = append(known, "uri", "ssl", "headers", "expect", "open_timeout", "read_timeout", "ssl_timeout")
	} else if text(c["type"]) == "tcp" {
		known = append(known, "uri") // Nerve does not look at it
	}
	notes.keys(c, " of a check has no counterpart here", nil, known...)
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
		notes.miss("a check of the type %s: write it as check \"exec\"", kind)
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
