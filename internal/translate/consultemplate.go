package translate

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"

	"github.com/zkagent/zkagent/internal/lists"
)

// ConsulTemplate translates settings of consul-template, in HCL or JSON.
// Several files are translated into one result by calling it again.
func ConsulTemplate(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	r, m, err := r.open("consul-template", layoutPlain, name, data, hcl.Unmarshal)
	if err != nil {
		return nil, err
	}
	c := ctFile{r: r, read: read, left: "{{", right: "}}"}
	if d := first(m["default_delimiters"]); d != nil {
		c.left, c.right = cmp.Or(text(d["left"]), c.left), cmp.Or(text(d["right"]), c.right)
	}
	c.min, c.max = wait(m["wait"])
	for _, b := range blocks(m["template"]) {
		c.template(b)
	}
	if e := first(m["exec"]); e != nil {
		c.exec(e)
	}
	if len(r.services)+len(r.computed) > 0 {
		r.note("a service without members keeps the last good file; consul-template writes the file without servers, as on_empty = \"render\" in the group does here")
	}
	if text(m["once"]) == "true" {
		r.miss("once = true: consul-template ends after one pass; zkagent render renders once, and the agent keeps running")
	}
	if level, ok := m["log_level"]; ok {
		r.logLevel = ctLevels[strings.ToLower(text(level))]
	}
	r.keys(m, " has no counterpart here", map[string]string{
		"consul":      "keys and services were in Consul: they have to be in ZooKeeper, at the paths below",
		"vault":       "vault has no counterpart: credentials are files of systemd, see docs/secrets.md",
		"nomad":       "nomad has no counterpart: credentials are files of systemd, see docs/secrets.md",
		"deduplicate": "deduplicate is not needed: a watch costs ZooKeeper little",
	}, ctOwn...)
	return r, nil
}

// ConsulTemplateFlag translates a flag of the command line:
// SOURCE:DESTINATION:COMMAND.
func ConsulTemplateFlag(r *Result, flag string, read ReadFunc) (*Result, error) {
	parts := strings.SplitN(flag, ":", 3)
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return nil, fmt.Errorf("the template %q is not SOURCE:DESTINATION or SOURCE:DESTINATION:COMMAND", flag)
	}
	if r == nil {
		r = newResult("consul-template's flags")
	}
	m := map[string]any{"source": parts[0], "destination": parts[1]}
	if len(parts) == 3 {
		m["command"] = parts[2]
	}
	c := ctFile{r: r, read: read, left: "{{", right: "}}"}
	c.template(m)
	return r, nil
}

// ctOwn are settings that are translated, and those of the process of consul-template, for
// which there is nothing to do: what they arrange, zkagent does by itself, or its unit.
var ctOwn = []string{
	"template", "exec", "wait", "default_delimiters", "once", "log_level",
	"reload_signal", "kill_signal", "pid_file", "max_stale", "block_query_wait", "syslog", "log_file", "retry",
	"template_error_fatal", "err_on_failed_lookup",
}

var ctTemplate = []string{
	"source", "contents", "destination", "perms", "user", "group", "uid", "gid", "backup", "wait", "command", "command_timeout", "exec",
	"create_dest_dirs", "error_on_missing_key", "error_fatal", "left_delimiter", "right_delimiter",
}

// id is the number of a user or a group; a negative one means that none is set.
func id(v any) string {
	if s := text(v); !strings.HasPrefix(s, "-") {
		return s
	}
	return ""
}

var ctLevels = map[string]string{"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "err": "error", "error": "error"}

type ctFile struct {
	r           *Result
	read        ReadFunc
	left, right string
	min, max    string
}

func (c *ctFile) template(m map[string]any) {
	t := &Template{Destination: text(m["destination"]), owner: cmp.Or(text(m["user"]), id(m["uid"])), group: cmp.Or(text(m["group"]), id(m["gid"])), source: text(m["source"])}
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
	if e := first(m["exec"]); e != nil && text(e["enabled"]) != "false" {
		t.reload, t.reloadTimeout = ctCommand(e["command"]), cmp.Or(text(e["timeout"]), t.reloadTimeout)
		t.reloadEnv = ctEnv(first(e["env"]), t.miss)
		t.keys(e, " of exec has no counterpart in a reload block", nil, "command", "timeout", "env", "enabled")
	}
	t.createDirs = text(m["create_dest_dirs"]) != "false" // the default there
	c.r.add(t)
	t.keys(m, " has no counterpart: VALUE", nil, ctTemplate...)
	source := text(m["contents"])
	if t.source != "" {
		data, err := c.read(t.source)
		if err != nil {
			t.miss("the template could not be read and is not translated: %v", err)
			return
		}
		source = string(data)
	}
	d := ctDialect
	d.left, d.right = cmp.Or(text(m["left_delimiter"]), c.left), cmp.Or(text(m["right_delimiter"]), c.right)
	t.original = Original{Text: source, Left: d.left, Right: d.right, Strict: !t.missingOK}
	c.r.translateText(t, source, d)
}

func (c *ctFile) exec(m map[string]any) {
	p := &program{command: ctCommand(m["command"]), signal: text(m["reload_signal"]), splay: text(m["splay"]), kill: text(m["kill_timeout"]), killSignal: cmp.Or(text(m["kill_signal"]), "SIGINT")}
	if p.command == nil || text(m["enabled"]) == "false" {
		return
	}
	p.env = ctEnv(first(m["env"]), c.r.miss)
	c.r.keys(m, " of exec has no counterpart", nil, "command", "reload_signal", "splay", "kill_timeout", "kill_signal", "enabled", "env")
	c.r.program = p
}

type environment struct {
	pass []string // names and globs of what is passed on
	set  []string // NAME=VALUE
}

// ctEnv is the env block of an exec block; nil without one.
func ctEnv(m map[string]any, miss func(string, ...any)) *environment {
	if m == nil {
		return nil
	}
	e := &environment{set: texts(m["custom"])}
	for _, key := range []string{"allowlist", "whitelist"} {
		e.pass = append(e.pass, texts(m[key])...)
	}
	switch {
	case text(m["pristine"]) == "true":
		e.pass = nil
	case len(e.pass) == 0:
		e.pass = []string{"*"}
	}
	for _, key := range sorted(m) {
		if !slices.Contains([]string{"pristine", "custom", "allowlist", "whitelist"}, key) && len(texts(m[key])) > 0 {
			miss("%s of env has no counterpart: pass_env names the variables that a command gets", key)
		}
	}
	return e
}

// ConsulTemplateEnv takes what consul-template reads from the environment of its
// process, after all files and flags.
func ConsulTemplateEnv(r *Result, lookup func(string) (string, bool)) {
	for _, name := range []string{"CT_LOG", "CONSUL_TEMPLATE_LOG"} {
		if v, ok := lookup(name); ok && r.logLevel == "" {
			r.logLevel = ctLevels[strings.ToLower(v)]
		}
	}
	for _, name := range []string{"CONSUL_HTTP_ADDR", "VAULT_ADDR", "NOMAD_ADDR"} {
		if _, ok := lookup(name); ok {
			r.note("the environment names a server by %s: keys and services have to be in ZooKeeper, secrets in files (docs/secrets.md)", name)
		}
	}
}

// ctCommand is a command: a list is arguments, and a text of several words is for a shell.
func ctCommand(v any) []string {
	if l, ok := v.([]any); ok && len(l) > 1 {
		return lists.Map(l, func(a any) string { return quote(text(a)) })
	} else if ok && len(l) == 1 {
		v = l[0]
	}
	return command(text(v), nil)
}

var ctDialect = dialect{left: "{{", right: "}}", lists: memberLists, call: ctCall, mapField: ctFields}

func ctCall(w *rewriter, list []token, i int) []token {
	name := list[i].text
	arg := next(list, i)
	switch name {
	case "key", "keyExists", "keyOrDefault", "ls", "tree", "safeLs", "safeTree":
		if s, ok := literal(list, arg); ok && strings.ContainsAny(s, "@?") {
			panic(problem(name + " of another data centre"))
		}
		// The first element becomes the name of a config block.
		return w.rename(list, arg, name, strings.HasPrefix(name, "key"), func(s string) (string, bool) { return s, true })
	case "service":
		w.tmpl.byNode = true
		return w.serviceName(list, i, arg)
	case "services", "catalogServices":
		if arg < len(list) && list[arg].kind == 's' {
			panic(problem(name + " of a data centre"))
		}
		w.result.set = true
		// A service of Consul has instances, whatever their status.
		return slices.Concat(list[:i], []token{{"groups", 'w'}, {" ", 'b'}, {`"services" "any"`, 's'}}, list[i+1:])
	case "file":
		if s, ok := literal(list, arg); !ok || filepath.IsAbs(s) || strings.HasPrefix(filepath.Clean(s), "..") {
			panic(problem("a file outside of the directory of the template: file reads below it"))
		}
	}
	return list
}

// serviceName translates "tag.name?query@dc~near|filter", and a filter of its own.
func (w *rewriter) serviceName(list []token, i, arg int) []token {
	s, ok := literal(list, arg)
	if !ok {
		end := argument(list, arg)
		name := list[min(arg, end):end]
		tag, of := w.taggedName(name)
		if s, ok := literal(of, 0); ok && next(list, end-1) == len(list) {
			return slices.Concat(list[:i], tokens("(index (service "+quoteGo(w.result.service(s))+" | byTag) "+joined(tag)+")"), list[end:])
		} else if tag != nil {
			name = of
		}
		return w.computedService(list, i, end, name, tag)
	}
	name, filter, _ := strings.Cut(s, "|")
	if at := strings.IndexAny(name, "@~?"); at >= 0 {
		w.result.service(name[strings.LastIndexByte(name[:at], '.')+1 : at])
		panic(problem("a data centre, a near node or a query of a service: ZooKeeper has none; leave it out, or follow another group"))
	}
	tag := ""
	dot := strings.LastIndexByte(name, '.')
	if dot > 0 {
		tag, name = name[:dot], name[dot+1:]
	}
	end := arg + 1
	if more := next(list, arg); more < len(list) && list[more].kind == 's' {
		if filter != "" {
			panic(problem("two filters"))
		}
		filter, _ = literal(list, more)
		end = more + 1
	}
	w.result.service(name)
	status := ctFilter(filter)
	text := "service " + quoteGo(w.result.service(name)) + status
	list[arg].text = quoteGo(w.result.service(name))
	if tag == "" {
		out := slices.Clone(list[:arg+1])
		if status != "" {
			out = append(out, token{" ", 'b'}, token{strings.TrimSpace(status), 's'})
		}
		return append(out, list[end:]...)
	}
	w.tmpl.note("the tag %q is a label of that name, whose value is empty or true", tag)
	return slices.Concat(list[:i], tokens("(index ("+text+" | byTag) "+quoteGo(tag)+")"), list[end:])
}

// ctFilter is the status that a filter of consul-template asks for.
func ctFilter(filter string) string {
	switch strings.TrimPrefix(strings.TrimSuffix(strings.ReplaceAll(filter, " ", ""), ",warning"), "warning,") { // no member is in a state between
	case "", "passing":
		return ""
	case "any":
		return ` "any"`
	case "critical":
		return ` "down"`
	}
	panic(problem("the filter " + quoteGo(filter) + " of a service: members are up, draining, maintenance or down"))
}

// taggedName are the tag and the name of a service that a printf puts together, as in
// printf "%s.web" TAG or printf "blue.%s" NAME; nil for anything else.
func (w *rewriter) taggedName(expr []token) ([]token, []token) {
	if len(expr) == 1 && w.now().defs[expr[0].text] != nil {
		expr = slices.Concat([]token{{"(", 'o'}}, w.now().defs[expr[0].text], []token{{")", 'o'}})
	}
	if len(expr) == 0 || expr[0].text != "(" {
		return nil, nil
	}
	expr = folded(expr, 0)
	words := arguments(expr[1 : len(expr)-1])
	if len(words) < 3 || words[0][0].text != "printf" {
		return nil, nil
	}
	format, _ := literal(words[1], 0)
	dot := strings.LastIndexByte(format, '.')
	if dot < 1 || strings.ContainsAny(format, "|@~?") || strings.Count(format, "%") != len(words)-2 {
		return nil, nil
	}
	part := func(format string, args [][]token) []token {
		if len(args) == 0 {
			return []token{{quoteGo(format), 's'}}
		}
		call := append([][]token{words[0], {{quoteGo(format), 's'}}}, args...)
		return slices.Concat([]token{{"(", 'o'}}, slices.Concat(spaced(call)...), []token{{")", 'o'}})
	}
	n := 2 + strings.Count(format[:dot], "%")
	return part(format[:dot], words[2:n]), part(format[dot+1:], words[n:])
}

// computedService is a service whose name is computed: one of a set of groups. Its name
// becomes a variable, which stays the same inside of blocks.
func (w *rewriter) computedService(list []token, i, end int, of, tag []token) []token {
	if len(of) == 0 || list[0].text == "else" {
		panic(problem("service without a name, or of a name that is computed after an else"))
	}
	expr := w.translated(slices.Clone(of), "")
	if w.tagged(of) {
		panic(problem("service of a name that is computed, with a tag or filter: write the tag as {{ range index (service NAME | byTag) TAG }}"))
	}
	w.result.set = true
	status := ""
	if more := next(list, end-1); more < len(list) && list[more].kind == 's' {
		filter, _ := literal(list, more)
		status = ctFilter(filter)
		end = more + 1
	}
	w.count++
	name := fmt.Sprintf("$service_%d", w.count)
	w.before = append(w.before, name+" := "+joined(expr))
	if !strings.HasSuffix(joined(expr), ".Name") {
		w.before = append(w.before, "if regexMatch `[.|@~?]` "+name, `fail "the name of a service has a tag, a filter or a data centre"`, "end")
	}
	ref := `(print "services/" ` + name + ")"
	w.result.computed[ref] = name
	if tag != nil {
		call := []token{{"(", 'o'}, {"index (service " + ref + status + " | byTag)", 'o'}, {" ", 'b'}}
		return slices.Concat(list[:i], call, tag, []token{{")", 'o'}}, list[end:])
	}
	return slices.Concat(list[:i+1], []token{{" ", 'b'}}, tokens(ref+status), list[end:])
}

// tagged reports whether a text of an expression, or of its variables, is more than the
// name of a service.
func (w *rewriter) tagged(list []token) bool {
	return slices.ContainsFunc(list, func(t token) bool {
		s, _ := literal([]token{t}, 0)
		return strings.ContainsAny(s, ".|@~?") || w.tagged(w.now().defs[t.text])
	})
}

// ctMember are the fields of a member that have another name here.
var ctMember = map[string]string{
	"Address": ".Host", "NodeAddress": ".Host", "Weights.Passing": ".Weight", "Port": ".Port", "ID": ".ID", "Node": ".Node",
}

// ctStatus is the status in Consul's words.
const ctStatus = `(get (dict "up" "passing" "down" "critical" "draining" "maintenance" "maintenance" "maintenance") MEMBER.Status)`

func ctFields(w *rewriter, of shape, base, path string, list []token) string {
	name, rest, deep := strings.Cut(path, ".")
	switch {
	case of.kind == pair && path == "Path" && w.prefix != "":
		return "(trimPrefix " + quoteGo(w.result.rootKeys()+"/") + " " + base + ".Path)"
	case of.kind == passed && w.listed && slices.Contains([]string{"Address", "NodeAddress", "Name", "Tags", "Status", "ServiceMeta", "NodeMeta", "Node"}, name):
		panic(problem("whether ." + name + " in a defined template is of a member cannot be seen"))
	case !of.structure(), of.kind == pair && slices.Contains([]string{"Path", "Key", "Value"}, path), of.kind == service && path == "Name":
		return ""
	case of.kind != pair && path == "Tags", of.kind != pair && path == "Tags.Contains":
		w.tmpl.note("a tag is a label of that name, whose value is empty or true")
		return map[bool]string{true: "in "}[deep] + base + ".Tags"
	case of.kind != member:
	case path == "Name" && of.name == "":
		panic(problem("the name of a service that is not known here"))
	case path == "Name":
		return of.name
	case path == "Status":
		return strings.ReplaceAll(ctStatus, "MEMBER", base)
	case name == "ServiceMeta" || name == "NodeMeta":
		if !deep && !slices.ContainsFunc(list, func(t token) bool { return t.kind == 'w' && (t.text == "index" || t.text == "hasKey") }) {
			return base + ".Meta"
		}
		return strings.TrimSuffix(base+".Labels."+rest, ".")
	case ctMember[path] != "":
		if w.fields[path] = true; w.fields["ID"] && w.fields["Node"] {
			panic(problem(".ID and .Node in one template: a member in Nerve's format has one name, which is both; give it a label for one of them, as .Labels.node"))
		}
		return base + ctMember[path]
	}
	panic(problem(of.kind.String() + " have no field " + path))
}
