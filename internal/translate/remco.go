package translate

import (
	"cmp"
	"path/filepath"

	"github.com/BurntSushi/toml"
)

// Remco translates settings of remco: the main file, or one resource.
func Remco(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	if r == nil {
		r = newResult("remco's " + filepath.Base(name))
		r.layout = layoutLeaves
	}
	m, err := parseConfig(name, data, toml.Unmarshal)
	if err != nil {
		return nil, err
	}
	if b := first(m["default_backends"]); b != nil {
		r.backends = b
	}
	list := blocks(m["resource"])
	if len(list) == 0 && m["template"] != nil {
		list = []map[string]any{m} // a file of the directory of resources
	}
	for _, res := range list {
		r.resource(res, read)
	}
	for _, key := range sorted(m) {
		switch key {
		case "resource", "template", "backend", "backends", "exec", "log_level", "log_format", "pid_file", "name", "start_cmd", "reload_cmd", "default_backends", "retries":
		case "include_dir":
			r.note("resources in %s are imported one by one, or by naming the directory", text(m[key]))
		default:
			r.miss("%s has no counterpart here", key)
		}
	}
	return r, nil
}

// resource translates one resource.
func (r *Result) resource(m map[string]any, read ReadFunc) {
	prefix, keys, name := "", []string(nil), text(m["name"])
	backends := first(cmp.Or(m["backend"], m["backends"], any(r.backends)))
	for i, kind := range sorted(backends) {
		b := first(backends[kind])
		if kind == "zookeeper" {
			r.ensemble("resource "+name, texts(b["nodes"]))
		} else {
			r.stored(kind)
		}
		if i > 0 && cleanPrefix(prefix) != cleanPrefix(text(b["prefix"])) {
			r.miss("the backends of resource %s have two prefixes: write them into one, and put the keys of both below it", name)
		}
		prefix, keys = text(b["prefix"]), append(keys, texts(b["keys"])...)
	}
	if m["reload_cmd"] != nil {
		r.miss("reload_cmd of resource %s runs once for all of its templates: write it as reload of one template, or as a hook", name)
	}
	for _, t := range blocks(m["template"]) {
		r.file(t, prefix, keys, read, func(src string) string { return src }, remcoText)
	}
	if m["start_cmd"] != nil {
		r.miss("start_cmd has no counterpart: use a hook or a unit of the service manager")
	}
	if e := first(m["exec"]); e != nil && text(e["command"]) != "" {
		splay, kill := seconds(e["splay"]), cmp.Or(seconds(e["kill_timeout"]), "10s")
		r.program = &program{command: command(text(e["command"]), nil), signal: text(e["reload_signal"]), splay: splay, kill: kill, killSignal: text(e["kill_signal"])}
	}
}
