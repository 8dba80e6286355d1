package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Synapse translates synapse.conf.json: each watcher becomes a group, and the
// sections for HAProxy one template.
func Synapse(r *Result, name string, data []byte) (*Result, error) {
	m, err := parseConfig(name, data, json.Unmarshal)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = newResult("Synapse's " + filepath.Base(name))
	}
	s := synapse{r: r}
	for _, key := range sorted(m) {
		switch key {
		case "services", "haproxy":
		case "service_conf_dir":
			r.note("services in %s are imported one by one, or by naming the directory", text(m[key]))
		default:
			r.miss("%s has no counterpart here", key)
		}
	}
	top := first(m["haproxy"])
	s.base(top)
	list := first(m["services"])
	for _, name := range sorted(list) {
		s.service(name, first(list[name]))
	}
	if top != nil && text(top["do_writes"]) != "false" {
		t := &Template{dest: orText(top["config_file_path"], "/etc/haproxy/haproxy.cfg"), Text: s.text.String()}
		if text(top["do_reloads"]) != "false" {
			t.reload = command(text(top["reload_command"]), nil)
		}
		r.add(t)
	}
	return r, nil
}

type synapse struct {
	r    *Result
	text strings.Builder
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
	s.text.WriteString("\n")
	s.section("defaults", texts(m["defaults"]))
	extra := first(m["extra_sections"])
	for _, title := range sorted(extra) {
		s.text.WriteString("\n")
		s.section(title, texts(extra[title]))
	}
	for _, key := range sorted(m) {
		switch key {
		case "global", "defaults", "extra_sections", "reload_command", "config_file_path", "do_writes", "do_reloads":
		case "do_socket", "socket_file_path", "restart_interval", "restart_jitter", "server_order_seed", "state_file_path", "state_file_ttl", "max_server_id":
			s.r.note("%s is not needed: each change is written and reloaded once; zkagent haproxy changes servers through the runtime API", key)
		default:
			s.r.miss("%s of haproxy has no counterpart here", key)
		}
	}
}

// service is one watcher with its sections.
func (s *synapse) service(name string, m map[string]any) {
	d, h := first(m["discovery"]), first(m["haproxy"])
	miss := s.r.miss
	for _, key := range sorted(m) {
		if !slices.Contains([]string{"discovery", "haproxy", "default_servers", "use_previous_backends", "keep_default_servers"}, key) {
			miss("%s of service %s has no counterpart here", key, name)
		}
	}
	for _, key := range sorted(d) {
		if !slices.Contains([]string{"method", "hosts", "path", "discovery_jitter"}, key) {
			miss("%s of the discovery of %s has no counterpart here", key, name)
		}
	}
	if method := text(d["method"]); method != "zookeeper" {
		miss("service %s is found by %s, not by ZooKeeper", name, cmp.Or(method, "nothing"))
	}
	s.r.server(texts(d["hosts"]))
	l := label(name)
	s.r.groups[l] = cmp.Or(text(d["path"]), "/services/"+name)
	defaults := blocks(m["default_servers"])
	if len(defaults) == 0 && text(m["use_previous_backends"]) == "false" {
		s.r.onEmpty[l] = "render"
	}
	if h == nil || text(h["disabled"]) == "true" {
		return
	}
	for _, key := range sorted(h) {
		if !slices.Contains([]string{"port", "bind_address", "bind_options", "server_options", "listen", "frontend", "backend", "backend_name", "disabled", "backend_order"}, key) {
			miss("%s of the haproxy section of %s has no counterpart here", key, name)
		}
	}
	servers := func() { s.servers(l, h, defaults, text(m["keep_default_servers"]) == "true") }
	bind := ""
	if port := text(h["port"]); port != "" {
		bind = strings.TrimSpace("bind " + orText(h["bind_address"], "localhost") + ":" + port + " " + text(h["bind_options"]))
	}
	backend := orText(h["backend_name"], name)
	s.text.WriteString("\n")
	if lines := texts(h["listen"]); len(lines) > 0 && bind != "" {
		s.section("listen "+name, append([]string{bind}, lines...))
		servers()
		return
	}
	if bind != "" {
		s.section("frontend "+name, append(append(texts(h["frontend"]), bind), "default_backend "+backend))
		s.text.WriteString("\n")
	}
	s.section("backend "+backend, texts(h["backend"]))
	servers()
}

// servers are the lines of the members; without members those of default_servers.
func (s *synapse) servers(l string, h map[string]any, defaults []map[string]any, keep bool) {
	options := func(host, port, name string) string {
		o := strings.NewReplacer("%{host}", host, "%{port}", port, "%{name}", name).Replace(plain(text(h["server_options"])))
		return strings.TrimSuffix(" "+o, " ")
	}
	var fixed strings.Builder
	for _, d := range defaults {
		host, port, name := text(d["host"]), text(d["port"]), text(d["name"])
		fmt.Fprintf(&fixed, "\tserver %s %s:%s%s\n", plain(strings.TrimPrefix(name+"_"+host+":"+port, "_")), host, port, options(host, port, name))
	}
	fmt.Fprintf(&s.text, "{{ range members %s }}\tserver {{ haproxyToken .Name }}_{{ .Address }} {{ .Address }}%s\n", quoteGo(l),
		options("{{ .Host }}", "{{ .Port }}", "{{ haproxyToken .Name }}"))
	if !keep && fixed.Len() > 0 {
		s.text.WriteString("{{ else }}" + fixed.String())
	}
	s.text.WriteString("{{ end }}")
	if keep {
		s.text.WriteString(fixed.String())
	}
}
