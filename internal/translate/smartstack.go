package translate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"
)

// Synapse translates synapse.conf.json: each watcher becomes a group, and the
// sections for HAProxy one template. A file of service_conf_dir has one watcher;
// the watchers of all files are in the template of the main file.
func Synapse(r *Result, name string, data []byte) (*Result, error) {
	f := settingsFile{name: name, order: map[string][]string{}}
	next, m, err := (*Result)(nil).open("Synapse", layoutPlain, name, data, f.unmarshal)
	if err != nil {
		return nil, err
	}
	if f.settings = m; r != nil {
		next.from, next.files = r.from, r.files
	}
	next.files = append(next.files, f)
	s := synapse{r: next}
	if main := slices.IndexFunc(next.files, func(f settingsFile) bool { return f.settings["discovery"] == nil }); main >= 0 {
		s.settingsFile = next.files[main]
	} else {
		next.miss("no file has the section haproxy: name the main file of Synapse, too, or the directory of both")
	}
	s.translate()
	return next, nil
}

// translate translates the main file, with the watchers of the others.
func (s *synapse) translate() {
	m := s.settings
	s.r.keys(m, " has no counterpart here", map[string]string{"statsd": "statsd is not needed: the agent has its counters at /metrics", "service_conf_dir": confDir},
		"services", "haproxy")
	s.top = first(m["haproxy"])
	s.base(s.top)
	s.r.note("Synapse remembers the id of each server; here an id is the place of the server in the order of their addresses, and an id in haproxy_server_options is left out")
	s.r.note("Synapse reads settings of HAProxy also from the znode at the path of a group; what stands there is not in the template")
	list := first(m["services"])
	for _, name := range s.order["/services"] {
		s.service(name, first(list[name]))
	}
	for _, f := range s.r.files {
		switch base := filepath.Base(f.name); {
		case f.settings["discovery"] != nil:
			s.service(strings.TrimSuffix(base, filepath.Ext(base)), f.settings)
		case f.name != s.name:
			s.r.miss("%s and %s have the sections of two HAProxies: import them one by one", s.name, f.name)
		}
	}
	if _, ok := s.top["shared_frontend"]; ok {
		s.text.WriteString("\n")
		s.section("frontend shared-frontend", s.shared)
	} else if len(s.shared) > 0 {
		s.r.note("Synapse leaves shared_frontend of services out where haproxy has none, and so does the template")
	}
	if s.top != nil && text(s.top["do_writes"]) != "false" {
		t := &Template{Destination: cmp.Or(text(s.top["config_file_path"]), "/etc/haproxy/haproxy.cfg"), Text: s.text.String()}
		if text(s.top["do_reloads"]) != "false" {
			t.reload = command(text(s.top["reload_command"]), nil)
		}
		s.r.add(t)
	}
}

type synapse struct {
	settingsFile
	r    *Result
	text strings.Builder
	top  map[string]any // the section haproxy of the file

	shared []string // the lines of shared_frontend

	defaults []string // the lines of the section of that name
}

type settingsFile struct {
	name     string
	settings map[string]any
	order    map[string][]string // the keys of each map by its path, in the order of the file
}

// unmarshal reads YAML, as both programs do, and so JSON with comments.
func (f *settingsFile) unmarshal(data []byte, m any) error {
	var list yaml.MapSlice
	err := yaml.Unmarshal(data, &list)
	if _, ok := errors.AsType[*yaml.TypeError](err); ok {
		err = errors.New("the file is not a JSON object")
	}
	*m.(*map[string]any) = f.texted("", list).(map[string]any)
	return err
}

// texted is a value with maps whose keys are texts.
func (f *settingsFile) texted(path string, v any) any {
	switch v := v.(type) {
	case yaml.MapSlice:
		m := map[string]any{}
		for _, item := range v {
			key := fmt.Sprint(item.Key)
			if _, again := m[key]; !again {
				f.order[path] = append(f.order[path], key)
			}
			m[key] = f.texted(path+"/"+key, item.Value)
		}
		return m
	case []any:
		for i := range v {
			v[i] = f.texted(path, v[i])
		}
	}
	return v
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

// Only an import compiles these: it takes milliseconds.
var sectionFields = map[string]string{
	"frontend": `^(?:` + inBoth + `|backlog|bind|capture (?:cookie|request header|response header)|clitimeout|declare capture|` +
		`default_backend|maxconn|monitor fail|monitor-net|monitor-uri|(?:no )?option (?:` + optionsOfBoth + `|accept-invalid-http-request|clitcpka|contstats|` +
		`dontlog-normal|dontlognull|http-ignore-probes|http-use-proxy-header|log-separate-errors|logasap|socket-stats|tcp-smart-accept)|` +
		`rate-limit sessions|tcp-request connection|timeout client|timeout clitimeout|unique-id-format|unique-id-header|use_backend)`,
	"backend": `^(?:` + inBoth + `|appsession|balance|contimeout|cookie|default-server|dispatch|fullconn|hash-type|` +
		`http-check (?:disable-on-404|expect|send-state)|http-send-name-header|http-reuse|load-server-state-from-file|max-keep-alive-queue|` +
		`(?:no )?option (?:` + optionsOfBoth + `|abortonclose|accept-invalid-http-response|allbackups|allredisp|checkcache|httpchk|lb-agent-chk|ldap-check|` +
		`external-check|log-health-checks|mysql-check|pgsql-check|persist|prefer-last-server|redispatch|redis-check|smtpchk|srvtcpka|ssl-hello-chk|` +
		`tcp-check|tcp-smart-connect|transparent)|external-check (?:command|path)|persist rdp-cookie|redisp|retries|server|source|srvtimeout|` +
		`stick match|stick on|stick store-re(?:quest|sponse)|stick-table|tcp-check (?:connect|expect|send)|tcp-response (?:content|inspect-delay)|` +
		`timeout (?:check|connect|contimeout|queue|server|srvtimeout|tunnel)|transparent|use-server)`,
}

// lines are the lines of a section of a service: its own, and those of "listen" that
// the section may have.
func (s *synapse) lines(name, section string, h map[string]any) []string {
	field := regexp.MustCompile(sectionFields[section])
	fits := func(line string) bool {
		return field.MatchString(strings.ToLower(strings.Join(strings.Fields(line), " ")))
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
	for _, title := range s.order["/haproxy/extra_sections"] {
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

func (s *synapse) service(name string, m map[string]any) {
	d, h := first(m["discovery"]), first(m["haproxy"])
	miss := s.r.miss
	s.r.keys(m, " of service "+name+" has no counterpart here", nil, "discovery", "haproxy", "default_servers", "use_previous_backends", "keep_default_servers", "backend_port_override")
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
		miss("hash-type consistent of %s: it places servers by their ids, which Synapse remembers: here they change when a server comes or goes; take hash-type consistent out", name)
	}
	s.servers(servers{
		group: l, options: text(h["server_options"]), override: cmp.Or(text(m["backend_port_override"]), text(h["server_port_override"])), order: text(h["backend_order"]),
		keep: text(m["keep_default_servers"]) == "true", cookie: !slices.Contains(lines, "mode tcp"), hash: text(h["cookie_value_method"]) == "hash",
	}, defaults)
}

// ownOptions prints what a member wants at its line, without what the line has already.
// What HAProxy would take for more than words of the line is left out.
func ownOptions(has string) string {
	return `{{ with rawLabel "haproxy_server_options" . }}{{ if regexMatch "^[!-$&-~ ]*$" . }}` +
		"{{ range regexReplaceAll `(^| )(" + has + ") +[0-9]+` \"\" . | splitList \" \" }}{{ with . }} {{ haproxyToken . }}{{ end }}{{ end }}{{ end }}{{ end }}"
}

// servers are the lines of the servers of a backend.
type servers struct {
	group           string // the label of its group; empty for a stub
	options         string // of each server
	override, order string
	keep            bool // the default servers stay beside the members
	cookie, hash    bool
}

// cookieOf is the cookie of a server, by its name as text and as an expression.
func (v servers) cookieOf(name, expr string) string {
	switch {
	case !v.cookie:
		return ""
	case v.hash:
		return " cookie {{ " + expr + " | sha1sum }}"
	}
	return " cookie " + name
}

// filled are the options of a server; a blank for none.
func (v servers) filled(host, port, name string) string {
	return " " + strings.NewReplacer("%{host}", host, "%{port}", port, "%{name}", name).Replace(plain(v.options))
}

// fixed are the lines of the default servers. Their ids follow those of the members.
func (v servers) fixed(defaults []map[string]any) string {
	lines := map[string]string{}
	var labels []string
	for i, d := range defaults {
		host, port, name := text(d["host"]), text(d["port"]), text(d["name"])
		id := strconv.Itoa(i + 1)
		if v.keep && v.group != "" {
			port = cmp.Or(v.override, port)
			id = fmt.Sprintf("{{ len (members %s) | add %d }}", quoteGo(v.group), i+1)
		}
		label := strings.TrimPrefix(name+"_"+host+":"+port, "_")
		labels = append(labels, label)
		lines[label] = fmt.Sprintf("\tserver %s %s:%s id %s%s%s\n", plain(label), host, port, id, v.cookieOf(plain(label), quoteGo(label)), v.filled(host, port, name))
	}
	if strings.HasSuffix(v.order, "sc") {
		slices.Sort(labels)
	}
	if v.order == "desc" {
		slices.Reverse(labels)
	}
	var b strings.Builder
	for _, label := range labels {
		b.WriteString(lines[label])
	}
	return b.String()
}

// servers are the lines of the members; without members those of default_servers.
func (s *synapse) servers(v servers, defaults []map[string]any) {
	fixed := v.fixed(defaults)
	if v.group == "" {
		s.text.WriteString(fixed)
		return
	}
	if v.keep && fixed != "" && strings.HasSuffix(v.order, "sc") {
		s.r.miss("backend_order of group %s with keep_default_servers: the servers of the group come first", v.group)
	}
	port := cmp.Or(v.override, "{{ .Port }}")
	end := v.filled("{{ .Host }}", port, "{{ haproxyToken .Name }}")
	if text(s.top["use_nerve_weights"]) == "true" {
		if regexp.MustCompile(`\bweight\b`).MatchString(end) {
			s.r.miss("use_nerve_weights with a weight in server_options of group %s: take one of them out", v.group)
		}
		squeezed := strings.Join(append([]string{""}, strings.Fields(end)...), " ")
		end = "{{ if eq .Weight 1 }}" + end + ownOptions("id") + "{{ else }}" + squeezed + ownOptions("id|weight") + " weight {{ .Weight }}{{ end }}"
	} else {
		end += ownOptions("id")
	}
	name := "{{ haproxyToken .Name }}_{{ .Address }}"
	line := "\tserver " + name + " {{ .Address }} id {{ $id }}" + v.cookieOf(name, `print (haproxyToken .Name) "_" .Address`) + end + "\n"
	if v.override != "" {
		line = strings.NewReplacer("{{ .Address }}", "{{ .Host }}:"+port, `"_" .Address`, `"_" .Host ":`+port+`"`).Replace(line)
	}
	none, after := "", ""
	switch {
	case fixed == "":
	case v.keep:
		none, after = "{{ else }}", fixed
	default:
		none = "{{ else }}" + fixed
	}
	s.text.WriteString(v.loop(line, none) + none + "{{ end }}" + after)
}

// loop prints a line for each member, in the order of backend_order.
func (v servers) loop(line, none string) string {
	group := quoteGo(v.group)
	loop := "{{ range $i, $_ := members " + group + " }}{{ $id := add $i 1 }}"
	sorted, known := map[string]string{"asc": "", "desc": "sprig_reverse "}[v.order]
	if !known {
		return loop + line
	}
	put := "{{ scratch.MapSet " + group + ` (print .Name "_" .Address) (dict "id" $id "member" .) }}`
	if none != "" {
		put += "{{ else }}"
	}
	return loop + put + "{{ end }}{{ range " + sorted + "(scratch.MapValues " + group + ") }}{{ $id := .id }}{{ with .member }}" + line + "{{ end }}"
}

// Nerve translates nerve.conf.json: each service becomes a service block that
// writes what Nerve writes.
func Nerve(r *Result, name string, data []byte) (*Result, error) {
	r, m, err := r.open("Nerve", layoutPlain, name, data, (&settingsFile{order: map[string][]string{}}).unmarshal)
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
	instance := text(m["instance_id"])
	for _, name := range sorted(list) {
		m := first(list[name])
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
	return r, nil
}

const confDir = "services in VALUE are imported one by one, or by naming the directory"

var nerveKeys = []string{"host", "port", "reporter_type", "zk_hosts", "zk_path", "check_interval", "checks", "weight", "haproxy_server_options", "labels"}

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
