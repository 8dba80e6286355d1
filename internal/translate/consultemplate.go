package translate

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
)

// ConsulTemplate translates settings of consul-template, in HCL or JSON.
// Several files are translated into one result by calling it again.
func ConsulTemplate(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	var m map[string]any
	if err := hcl.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if r == nil {
		r = newResult("consul-template's " + filepath.Base(name))
	}
	c := ctFile{r: r, read: read, left: "{{", right: "}}"}
	if d := first(m["default_delimiters"]); d != nil {
		c.left, c.right = orText(d["left"], c.left), orText(d["right"], c.right)
	}
	c.min, c.max = wait(m["wait"])
	for _, b := range blocks(m["template"]) {
		c.template(b)
	}
	if e := first(m["exec"]); e != nil {
		c.exec(e)
	}
	for _, key := range sorted(m) {
		switch key {
		case "template", "exec", "wait", "default_delimiters":
		case "consul":
			r.note("keys and services were in Consul: they have to be in ZooKeeper, at the paths below")
		case "vault", "nomad":
			r.note("%s is not supported", key)
		case "deduplicate":
			r.note("deduplicate is not needed: a watch costs ZooKeeper little")
		case "log_level":
			r.logLevel = ctLevels[strings.ToLower(text(m[key]))]
		default:
			if !slices.Contains(ctOwn, key) {
				r.miss("%s has no counterpart here", key)
			}
		}
	}
	return r, nil
}

// ctOwn are settings of the process of consul-template, for which there is
// nothing to do here: what they arrange, zkagent does by itself, or its unit.
var ctOwn = []string{
	"reload_signal", "kill_signal", "pid_file", "max_stale", "block_query_wait", "syslog", "log_file", "once", "retry",
	"template_error_fatal", "err_on_failed_lookup",
}

// ctLevels are its levels of logging.
var ctLevels = map[string]string{"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "err": "error", "error": "error"}

// ctFile is a file of consul-template that is being translated.
type ctFile struct {
	r           *Result
	read        ReadFunc
	left, right string
	min, max    string
}

func (c *ctFile) template(m map[string]any) {
	t := &Template{dest: text(m["destination"]), owner: text(m["user"]), group: text(m["group"]), source: text(m["source"])}
	t.missingOK = text(m["error_on_missing_key"]) != "true"
	t.backup = text(m["backup"]) == "true"
	if p, ok := m["perms"].(int); ok {
		t.mode = fmt.Sprintf("%04o", p)
	} else {
		t.mode = text(m["perms"])
	}
	t.waitMin, t.waitMax = c.min, c.max
	if m["wait"] != nil {
		t.waitMin, t.waitMax = wait(m["wait"])
	}
	t.reload, t.reloadTimeout = ctCommand(m["command"]), text(m["command_timeout"])
	if e := first(m["exec"]); e != nil {
		t.reload, t.reloadTimeout = ctCommand(e["command"]), orText(e["timeout"], t.reloadTimeout)
		for _, key := range sorted(e) {
			if key != "command" && key != "timeout" {
				t.miss("%s of exec has no counterpart in a reload block", key)
			}
		}
	}
	c.r.add(t)
	for _, key := range []string{"function_denylist", "function_blacklist", "sandbox_path", "create_dest_dirs", "uid", "gid"} {
		if m[key] != nil {
			t.miss("%s has no counterpart: %v", key, m[key])
		}
	}
	source := text(m["contents"])
	if t.source != "" {
		data, err := c.read(t.source)
		if err != nil {
			t.miss("the template could not be read and is not translated: %v", err)
			return
		}
		source = string(data)
	}
	d := dialect{left: orText(m["left_delimiter"], c.left), right: orText(m["right_delimiter"], c.right), call: ctCall}
	c.r.translateText(t, source, d)
}

func (c *ctFile) exec(m map[string]any) {
	p := &program{command: ctCommand(m["command"]), signal: text(m["reload_signal"]), splay: text(m["splay"]), kill: text(m["kill_timeout"])}
	if p.command == nil {
		return
	}
	for _, key := range sorted(m) {
		if !slices.Contains([]string{"command", "reload_signal", "splay", "kill_timeout", "enabled"}, key) {
			c.r.miss("%s of exec has no counterpart", key)
		}
	}
	c.r.program = p
}

// ctCommand is a command: a list is arguments, a text of several words is for
// a shell.
func ctCommand(v any) []string {
	if l, ok := v.([]any); ok && len(l) > 1 {
		var args []string
		for _, a := range l {
			args = append(args, text(a))
		}
		return list(args)
	} else if ok && len(l) == 1 {
		v = l[0]
	}
	return command(text(v), nil)
}

// ctCall translates consul-template's calls.
func ctCall(w *rewriter, list []token, i int) ([]token, string) {
	name := list[i].text
	arg := next(list, i)
	s, ok := literal(list, arg)
	switch name {
	case "key", "keyExists", "keyOrDefault", "ls", "tree", "safeLs", "safeTree":
		if !ok {
			w.tmpl.miss("%s of a name that is computed: its first element must be the name of a config block", name)
			return list, ""
		}
		list[arg].text = quoteGo(w.result.configOf(w.prefix, s, strings.HasPrefix(name, "key")))
	case "service":
		if !ok {
			w.tmpl.miss("service of a name that is computed: each group needs a block, or use groups")
			return list, ""
		}
		list[arg].text = quoteGo(w.service(s))
		if more := next(list, arg); more < len(list) && list[more].kind == 's' {
			if filter, _ := literal(list, more); filter != "passing" { // That is what members are.
				w.tmpl.miss("the filter %s of service is left out: members are those that are up", list[more].text)
			}
			list = slices.Delete(list, more, more+1)
		}
	}
	return list, ""
}

// service translates "tag.name?query@dc~near|filter".
func (w *rewriter) service(s string) string {
	name, _, cut := strings.Cut(s, "|")
	for _, sep := range []string{"~", "@", "?"} {
		before, _, found := strings.Cut(name, sep)
		name, cut = before, cut || found
	}
	if tag, rest, found := strings.Cut(name, "."); found {
		name = rest
		w.tmpl.miss("tag %q of service %q is left out: use a label, as in byLabel", tag, rest)
	}
	if cut {
		w.tmpl.miss("what follows the name in service %q is left out", s)
	}
	l := label(name)
	w.result.groups[l] = "/services/" + name
	return l
}
