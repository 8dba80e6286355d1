package translate

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// paths of a command of confd and remco.
var stagedWords = map[string]string{"src": "staged", "dest": "destination"}

// Confd translates one template resource of confd, or its main settings;
// several are translated into one result by calling it again.
func Confd(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	if r == nil {
		r = newResult("confd's " + filepath.Base(name))
	}
	var m map[string]any
	if err := toml.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	t := first(m["template"])
	if t == nil {
		r.confdMain(m)
		return r, nil
	}
	r.file(t, text(t["prefix"]), read, func(src string) string { return filepath.Join("..", "templates", src) }, confdText)
	return r, nil
}

// confdMain is confd.toml.
func (r *Result) confdMain(m map[string]any) {
	backend := text(m["backend"])
	if backend == "zookeeper" || backend == "" {
		r.servers = append(r.servers, texts(m["nodes"])...)
	} else {
		r.note("keys were in %s: they have to be in ZooKeeper, at the paths below", backend)
	}
	for _, key := range sorted(m) {
		switch key {
		case "backend", "nodes", "watch", "interval", "confdir", "log-level", "noop":
		case "prefix":
			if p := strings.Trim(text(m[key]), "/"); p != "" {
				r.note("the prefix /%s stands before all paths: make it the chroot of the zookeeper block", p)
			}
		default:
			r.miss("%s has no counterpart here", key)
		}
	}
}

// file translates a template table of confd or remco.
func (r *Result) file(m map[string]any, prefix string, read ReadFunc, at func(string) string, translate func(*Result, *Template, string, string)) {
	t := &Template{dest: text(m["dest"]), mode: text(m["mode"]), owner: text(m["owner"]), group: text(m["group"]), source: at(text(m["src"]))}
	if t.dest == "" {
		t.dest = text(m["dst"])
	}
	for _, id := range []struct {
		key string
		to  *string
	}{{"uid", &t.owner}, {"UID", &t.owner}, {"gid", &t.group}, {"GID", &t.group}} {
		if v := text(m[id.key]); v != "" && v != "-1" && *id.to == "" {
			*id.to = v
		}
	}
	t.check, t.reload = command(text(m["check_cmd"]), stagedWords), command(text(m["reload_cmd"]), map[string]string{"src": "destination", "dest": "destination"})
	t.checkTimeout, t.reloadTimeout = seconds(m["check_cmd_timeout"]), seconds(m["reload_cmd_timeout"])
	t.minInterval, t.syntax = seconds(m["min_reload_interval"]), text(m["output_format"])
	t.waitMin = seconds(m["debounce"])
	r.add(t)
	for _, key := range sorted(m) {
		known := []string{
			"src", "dest", "dst", "mode", "owner", "group", "uid", "gid", "UID", "GID", "keys", "prefix", "check_cmd", "reload_cmd",
			"check_cmd_timeout", "reload_cmd_timeout", "min_reload_interval", "output_format", "debounce",
		}
		if !slices.Contains(known, key) {
			t.miss("%s has no counterpart: %v", key, m[key])
		}
	}
	data, err := read(t.source)
	if err != nil {
		t.miss("the template could not be read and is not translated: %v", err)
		return
	}
	translate(r, t, string(data), prefix)
}

func confdText(r *Result, t *Template, source, prefix string) {
	r.translateText(t, source, dialect{left: "{{", right: "}}", prefix: prefix, call: confdCall})
}

// swapped are functions of two arguments that stand the other way round here.
var swapped = map[string]string{"join": "join", "split": "split", "contains": "sprig_contains", "trimSuffix": "trimSuffix"}

// differs are functions of the same name that do something else here.
var differs = []string{"base", "dir", "seq", "reverse", "map", "lookupIP", "fileExists", "cget", "cgets", "cgetv", "cgetvs", "get", "lsdir", "replace", "datetime"}

// confdCall translates confd's calls.
func confdCall(w *rewriter, list []token, i int) ([]token, string) {
	name := list[i].text
	arg := next(list, i)
	s, ok := literal(list, arg)
	path := func(to string, single bool) ([]token, string) {
		if !ok {
			return list, name + " of a name that is computed"
		}
		list[i].text, list[arg].text = to, quoteGo(w.result.configOf(w.prefix, s, single))
		return list, ""
	}
	second := next(list, arg)
	two := second < len(list) && (list[second].kind == 's' || list[second].kind == 'w')
	switch name {
	case "getv":
		if two {
			return path("keyOrDefault", true)
		}
		return path("key", true)
	case "exists":
		return path("keyExists", true)
	case "gets":
		w.tmpl.note(".Key of the pairs of tree is below the prefix, and has no leading slash")
		return path("tree", false)
	case "getvs":
		return path("tree\x00values", false)
	case "ls":
		return path("ls\x00names", false)
	case "getenv":
		if list[i].text = "env"; two {
			list[i].text = "envOrDefault"
		}
		return list, ""
	case "json", "jsonArray":
		list[i].text = "parseJSON"
		return list, ""
	case "atoi":
		list[i].text = "parseInt"
		return list, ""
	case "hostname":
		list[i].text = "(agent).Host"
		list[i].kind = 'o'
		return list, ""
	}
	if to, ok := swapped[name]; ok {
		return swap(list, i, to)
	}
	if slices.Contains(differs, name) {
		return list, "no counterpart of " + name
	}
	return list, ""
}

// swap exchanges the two arguments of a call.
func swap(list []token, i int, to string) ([]token, string) {
	a := next(list, i)
	endA := argument(list, a)
	b := next(list, endA-1)
	endB := argument(list, b)
	if after := next(list, endB-1); endA == a || endB == b || after < len(list) && list[after].text != ")" && list[after].text != "|" {
		return list, list[i].text + " takes its arguments in another order"
	}
	swapped := append(slices.Clone(list[:i]), token{to, 'w'})
	swapped = append(swapped, list[i+1:a]...)
	swapped = append(swapped, list[b:endB]...)
	swapped = append(swapped, list[endA:b]...)
	swapped = append(swapped, list[a:endA]...)
	return append(swapped, list[endB:]...), ""
}

// argument is the end of the argument that begins at a token: a word, a
// string, or what is in parentheses. It is start where there is none.
func argument(list []token, start int) int {
	if start >= len(list) {
		return start
	}
	if list[start].kind == 's' || list[start].kind == 'w' {
		return start + 1
	}
	depth := 0
	for i := start; i < len(list); i++ {
		switch list[i].text {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth == 0 {
			if i == start {
				return start
			}
			return i + 1
		}
	}
	return start
}
