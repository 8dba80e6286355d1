package translate

import (
	"cmp"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// paths of a command of confd and remco.
var stagedWords = map[string]string{"src": "staged", "dest": "destination"}

// Confd translates one template resource of confd, or its main settings;
// several are translated into one result by calling it again.
func Confd(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	r, m, err := r.open("confd", layoutLeaves, name, data, toml.Unmarshal)
	if err != nil {
		return nil, err
	}
	t := first(m["template"])
	if t == nil {
		backend := text(m["backend"])
		if backend == "zookeeper" || backend == "" {
			r.ensemble("confd.toml", texts(m["nodes"]))
		} else {
			r.stored(backend)
		}
		for _, mode := range [][2]string{{"noop", "writes no file"}, {"onetime", "ends after one pass"}, {"sync-only", "runs no command"}} {
			if text(m[mode[0]]) == "true" {
				r.miss("%s = true: confd %s, and the agent does not; \"zkagent render --stdout\" only prints the files", mode[0], mode[1])
			}
		}
		if p := strings.Trim(text(m["prefix"]), "/"); p != "" {
			r.chroot = "/" + p
			r.twoPrefixes()
		}
		r.keys(m, " has no counterpart here", nil, "backend", "nodes", "watch", "interval", "confdir", "log-level", "noop", "onetime", "sync-only", "prefix")
		return r, nil
	}
	r.prefixed = r.prefixed || cleanPrefix(text(t["prefix"])) != ""
	r.twoPrefixes()
	r.file(t, text(t["prefix"]), texts(t["keys"]), read, func(src string) string { return filepath.Join("..", "templates", src) }, confdText)
	return r, nil
}

// twoPrefixes notes a prefix of confd.toml beside one of a resource: versions of confd
// differ on what they mean together.
func (r *Result) twoPrefixes() {
	if r.chroot != "" && r.prefixed && !slices.Contains(r.list, note{bothPrefixes, true}) {
		r.miss("%s", bothPrefixes)
	}
}

const bothPrefixes = "confd.toml has a prefix and a resource has one: confd 0.16 takes only the first, forks join them; keep one of them"

func (r *Result) file(m map[string]any, prefix string, keys []string, read ReadFunc, at func(string) string, translate func(*Result, *Template, string, dialect, ReadFunc)) {
	t := &Template{Destination: cmp.Or(text(m["dest"]), text(m["dst"])), mode: text(m["mode"]), source: at(text(m["src"]))}
	t.owner, t.group = cmp.Or(text(m["owner"]), id(m["uid"]), id(m["UID"])), cmp.Or(text(m["group"]), id(m["gid"]), id(m["GID"]))
	t.check, t.reload = command(text(m["check_cmd"]), stagedWords), command(text(m["reload_cmd"]), map[string]string{"src": "destination", "dest": "destination"})
	t.checkTimeout, t.reloadTimeout = seconds(m["check_cmd_timeout"]), seconds(m["reload_cmd_timeout"])
	t.minInterval, t.syntax = seconds(m["min_reload_interval"]), text(m["output_format"])
	t.waitMin, t.createDirs = seconds(m["debounce"]), text(m["make_directories"]) == "true"
	r.add(t)
	t.keys(m, " has no counterpart: VALUE", nil, "src", "dest", "dst", "mode", "owner", "group", "uid", "gid", "UID", "GID", "keys", "prefix", "check_cmd",
		"reload_cmd", "check_cmd_timeout", "reload_cmd_timeout", "min_reload_interval", "output_format", "debounce", "make_directories")
	data, err := read(t.source)
	if err != nil {
		t.miss("the template could not be read and is not translated: %v", err)
		return
	}
	t.original = Original{Text: string(data), Prefix: prefix, Keys: keys}
	t.missingOK = true // a field that a parsed document does not have is no error there
	translate(r, t, string(data), confdDialect(prefix, keys), read)
}

func confdDialect(prefix string, keys []string) dialect {
	return dialect{left: "{{", right: "}}", prefix: prefix, keys: keys, keyIsPath: true, lists: pairLists, call: confdCall, mapField: confdFields}
}

func confdText(r *Result, t *Template, source string, d dialect, _ ReadFunc) {
	r.translateText(t, source, d)
}

var pairLists = regexp.MustCompile(`\bgets\b`)

// below reports whether the original reads everything at and below a path.
func below(keys []string, path string) bool {
	path = strings.Trim(path, "/") + "/"
	return len(keys) == 0 || slices.ContainsFunc(keys, func(key string) bool {
		key = strings.Trim(key, "/")
		return key == "" || strings.HasPrefix(path, key+"/")
	})
}

// swapped are functions of two arguments that stand the other way round here.
var swapped = map[string]string{
	"join": "sprig_join", "split": "splitList", "contains": "sprig_contains", "trimSuffix": "trimSuffix", "trimPrefix": "trimPrefix", "trim": "trimAll",
}

// differs are functions that do something else here, or that ask the host.
var differs = []string{"lookupIP", "lookupIPV4", "lookupIPV6", "lookupSRV", "lookupIfaceIPV4", "fileExists", "cget", "cgets", "cgetv", "cgetvs"}

var renamed = map[string]string{"json": "parseJSON", "jsonArray": "parseJSON", "map": "dict", "sortKVByLength": "sortByLength"}

// direct is the parent of a pattern whose only star is its last element: the keys below it.
func direct(s string) (string, bool) {
	s, ok := strings.CutSuffix(s, "/*")
	return s, ok && !strings.ContainsAny(s, "*?[")
}

func patternOf(arg []token) string {
	for i := range arg {
		if s, ok := literal(arg, i); ok {
			return s
		}
	}
	return ""
}

// keyCall is how a call that names keys is written.
type keyCall struct {
	before, fn, after string
	single            bool                        // it names one key
	change            func(string) (string, bool) // its pattern
}

func anyPattern(s string) (string, bool) { return s, true }

func noPattern(s string) (string, bool) { return s, !strings.ContainsAny(s, "*?[") }

// keyCalls are confd's, with "/*" where the only star of the pattern is its last element.
var keyCalls = map[string]keyCall{
	"getv": {"", "key", "", true, noPattern}, "getv with default": {"", "keyOrAbsent", "", true, noPattern}, "exists": {"", "keyExists", "", true, noPattern},
	"gets": {"", "pathMatch", ` (tree "CONFIG")`, false, anyPattern}, "gets/*": {"", "ls", "", false, direct},
	"getvs": {"(sortAlpha (values (", "pathMatch", ` (tree "CONFIG"))))`, false, anyPattern}, "getvs/*": {"(sortAlpha (values (", "ls", ")))", false, direct},
	"lsdir": {"(keys (byKey (", "tree", ")))", false, noPattern}, "ls": {"(keys (explode (", "tree", ")))", false, noPattern},
}

func (w *rewriter) keyed(list []token, i, arg int, name string, c keyCall) []token {
	out := w.rename(slices.Clone(list), arg, name, c.single, c.change)
	end := argument(out, arg)
	before := strings.ReplaceAll(c.before, "REF", joined(out[arg:end]))
	head := append(slices.Clone(out[:i]), token{before + c.fn + " ", 'o'})
	if c.before == "" {
		head[i] = token{c.fn, 'w'}
		head = append(head, token{" ", 'b'})
	}
	head = append(head, out[arg:end]...)
	config, _, _ := strings.Cut(patternOf(out[arg:end]), "/")
	if c.after != "" {
		if config == "" {
			panic(problem(name + " of a pattern whose first element is computed"))
		}
		head = append(head, token{strings.ReplaceAll(c.after, "CONFIG", config), 'o'})
	}
	return append(head, out[end:]...)
}

func confdCall(w *rewriter, list []token, i int) []token {
	name := list[i].text
	arg := next(list, i)
	if arg < len(list) && (name == "gets" || name == "getvs") {
		if def, ok := w.now().defs[list[arg].text]; ok {
			list = slices.Concat(list[:arg], []token{{"(", 'o'}}, def, []token{{")", 'o'}}, list[arg+1:])
		}
		list = folded(list, arg)
	}
	call := name
	pattern := list[min(arg, len(list)):argument(list, arg)]
	if below, ok := direct(patternOf(pattern)); ok && (below != "" || len(pattern) == 1) && (name == "gets" || name == "getvs") {
		call += "/*"
	} else if args, _ := callAt(list, i); name == "getv" && len(args) > 1 {
		call += " with default"
	}
	if s, ok := literal(list, arg); ok && call == "getv with default" && s != path.Clean("/"+s) { // there is no such key
		second := next(list, arg)
		return slices.Concat(list[:i], list[second:])
	}
	if special, ok := confdSpecial[name]; ok {
		if out := special(w, list, i, arg); out != nil {
			return out
		}
	}
	if c, ok := keyCalls[call]; ok {
		return w.keyed(list, i, arg, name, c)
	}
	if to, ok := renamed[name]; ok {
		list[i].text = to
	} else if to, ok := swapped[name]; ok {
		args, _ := callAt(list, i)
		if len(args) != 2 {
			panic(problem(name + " takes its arguments in another order"))
		}
		return rewritten(list, i, to, args[1], args[0])
	} else if slices.Contains(differs, name) {
		panic(problem("zkagent has no " + name + ", which asks the host or a name server at each render: publish the answer as a key, and read that"))
	}
	return list
}

// folded writes the texts that a printf gets into its format: "%s%s" "/a/" $b is "/a/%s" $b.
func folded(list []token, arg int) []token {
	end := argument(list, arg)
	if list[arg].text != "(" {
		return list
	}
	words := arguments(list[arg+1 : end-1])
	if len(words) < 2 || words[0][0].text != "printf" {
		return list
	}
	format, _ := literal(words[1], 0)
	verbs := strings.Split(format, "%s")
	if len(verbs) != len(words)-1 || strings.Count(format, "%") != len(verbs)-1 {
		return list
	}
	kept := words[:2]
	for i, word := range words[2:] {
		if s, ok := literal(word, 0); ok && len(word) == 1 && !strings.Contains(s, "%") {
			verbs[i] += s
		} else {
			verbs[i] += "%s"
			kept = append(kept, word)
		}
	}
	kept[1] = []token{{quoteGo(strings.Join(verbs, "")), 's'}}
	return slices.Concat(list[:arg+1], slices.Concat(spaced(kept)...), list[end-1:])
}

// confdSpecial are the calls that no table describes. One that returns nothing leaves the
// call to the tables.
var confdSpecial = map[string]func(w *rewriter, list []token, i, arg int) []token{
	"get": func(w *rewriter, list []token, i, arg int) []token {
		s, ok := literal(list, arg)
		if !ok {
			panic(problem("get of a name that is computed: use getv"))
		}
		pair, value := quoteGo("/"+strings.Trim(s, "/")), keyCall{"", "key", "))", true, noPattern}
		if w.remco {
			pair, value.fn, value.after = "(ternary "+pair+` "" (keyExists REF))`, "keyOrAbsent", ` ""))`
		}
		value.before = `(dict "Key" ` + pair + ` "Value" (`
		return w.keyed(list, i, arg, "get", value)
	},
	"ls": func(w *rewriter, list []token, i, arg int) []token {
		s, ok := literal(list, arg)
		if ok && s == "/" { // which does not list directories there
			return w.keyed(list, i, arg, "ls", keyCall{"(keys (explode (", "ls", ")))", false, noPattern})
		}
		out := w.rename(slices.Clone(list), arg, "ls", false, noPattern)
		if w.remco || ok && cleanPrefix(w.prefix) == "" && !strings.Contains(strings.Trim(s, "/"), "/") { // the root of a config
			return nil
		}
		end := argument(out, arg)
		ref := joined(out[arg:end])
		// The list of a key that is no directory is its own name.
		call := tokens("(ternary (list (base " + ref + ")) (keys (explode (tree " + ref + "))) (keyExists " + ref + "))")
		return slices.Concat(out[:i], call, out[end:])
	},
	"datetime": func(w *rewriter, list []token, _, _ int) []token {
		if len(list) > 1 {
			panic(problem("datetime in another expression: write timestamp LAYOUT"))
		}
		w.tmpl.note("datetime is the time of the rendering, in UTC: each rendering changes the file, as each pass of confd does")
		return tokens("timestamp `2006-01-02 15:04:05.999999999 -0700 MST`")
	},
	"getenv": func(w *rewriter, list []token, i, _ int) []token {
		w.allow("env")
		list[i].text = "env"
		if args, end := callAt(list, i); len(args) == 2 {
			list = slices.Concat(list[:i], tokens("(or (env "+joined(args[0])+") "+joined(args[1])+")"), list[end:])
		}
		return list
	},
	"hostname": func(_ *rewriter, list []token, i, _ int) []token {
		list[i] = token{"(agent).Host", 'o'}
		return list
	},
	"replace": func(_ *rewriter, list []token, i, _ int) []token {
		args, _ := callAt(list, i)
		if len(args) != 4 || joined(args[3]) != "-1" {
			panic(problem("replace that does not replace all"))
		}
		return rewritten(list, i, "replaceAll", args[1], args[2], args[0])
	},
	"reverse": func(_ *rewriter, list []token, i, arg int) []token {
		// confd knows the list of gets under another name than its own.
		if strings.HasPrefix(joined(list[min(arg, len(list)):argument(list, arg)]), "(gets ") {
			return slices.Concat(list[:i], list[arg:])
		}
		return nil
	},
	"seq": func(_ *rewriter, list []token, i, _ int) []token {
		args, _ := callAt(list, i)
		if len(args) != 2 {
			panic(problem("seq of a piped value"))
		}
		return rewritten(list, i, "loop", args[0], tokens("(add 1 "+joined(args[1])+")"))
	},
	"atoi": func(_ *rewriter, list []token, i, arg int) []token {
		end := argument(list, arg)
		if s, ok := literal(list, arg); ok && s != "" {
			list[i].text = "parseInt"
			return list
		} else if end == arg {
			panic(problem("atoi of a piped value: write atoi (VALUE)"))
		}
		// atoi of an empty text fails; parseInt gives 0.
		value := joined(list[arg:end])
		number := tokens("(or (and (ne " + value + " \"\") (parseInt " + value + ")) (and (eq " + value + " \"\") (fail \"atoi of an empty text\")) 0)")
		return slices.Concat(list[:i], number, list[end:])
	},
}

// confdFields translates the fields of pairs: the key of one is its whole path.
func confdFields(w *rewriter, of shape, base, path string, _ []token) string {
	if of.kind == passed && w.listed && (path == "Key" || path == "Value") {
		panic(problem("whether ." + path + " in a defined template is of a pair cannot be seen"))
	}
	if of.kind != pair {
		return ""
	}
	switch path {
	case "Key":
		if key := w.result.pairKey(w.prefix, base+".Path"); key != "" {
			return key
		}
		panic(problem("the key of a pair, whose config has another name than its znode: use getv of the key"))
	case "Value":
		return ""
	}
	panic(problem("pairs have no field " + path))
}

// callAt are the arguments of the call at list[i], and its end.
func callAt(list []token, i int) ([][]token, int) {
	end, depth := i, 0
	for ; end < len(list); end++ {
		switch list[end].text {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth < 0 || depth == 0 && list[end].text == "|" {
			break
		}
	}
	return arguments(list[i:end])[1:], end
}

// rewritten is the call at list[i] with another function and other arguments.
func rewritten(list []token, i int, fn string, args ...[]token) []token {
	_, end := callAt(list, i)
	call := slices.Concat(spaced(append([][]token{{{fn, 'w'}}}, args...))...)
	if end < len(list) && list[end].text == "|" {
		call = append(call, token{" ", 'b'})
	}
	return slices.Concat(list[:i], call, list[end:])
}

// spaced are words with a blank before each but the first.
func spaced(words [][]token) [][]token {
	for i := 1; i < len(words); i++ {
		words[i] = append([]token{{" ", 'b'}}, words[i]...)
	}
	return words
}

// argument is the end of the argument that begins at a token: a word, a
// string, or what is in parentheses. It is start if there is none.
func argument(list []token, start int) int {
	switch {
	case start >= len(list):
		return start
	case list[start].text == "(":
		return closing(list, start) + 1
	case list[start].kind == 's' || list[start].kind == 'w':
		return start + 1
	}
	return start
}

// Remco translates settings of remco: the main file, or one resource.
func Remco(r *Result, name string, data []byte, read ReadFunc) (*Result, error) {
	r, m, err := r.open("remco", layoutLeaves, name, data, toml.Unmarshal)
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
	r.keys(m, " has no counterpart here", map[string]string{"include_dir": "resources in VALUE are imported one by one, or by naming the directory"},
		"resource", "template", "backend", "backends", "exec", "log_level", "log_format", "pid_file", "name", "start_cmd", "reload_cmd", "default_backends", "retries")
	return r, nil
}

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
