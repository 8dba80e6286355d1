// Package translate turns the settings and templates of consul-template, confd,
// remco, Nerve and Synapse into those of zkagent.
//
// What cannot be translated never becomes an empty value: it is a comment that
// begins with "import:" in the settings, and an action that fails in the
// template. Validate refuses both.
//
// Not here: reading directories of the host, and checking the result.
package translate

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/template"
)

// Result is what became of some settings.
type Result struct {
	from      string
	servers   []string
	chroot    string
	configs   map[string]string // path by name
	groups    map[string]string // path by name
	services  []named           // the services of the groups
	computed  map[string]string // names of services that are computed, by what they are here
	layout    string            // of the configs
	prefixed  bool              // a resource has a prefix of its own
	backends  map[string]any    // remco's, of the resources that name none
	set       bool              // there is a set of groups: all services
	onEmpty   map[string]string // of groups, by name
	others    []other           // blocks that are neither groups nor templates
	Templates []*Template
	program   *program
	files     []settingsFile // Synapse's
	logLevel  string         // empty: the default
	notes
}

// Template is one translated template.
type Template struct {
	Name        string
	Text        string // translated; empty when its source could not be read
	Destination string // the file that it writes

	source, mode, owner, group, syntax    string
	backup, missingOK, createDirs, byNode bool
	waitMin, waitMax, minInterval         string
	check, reload                         []string // HCL expressions of the arguments
	reloadEnv                             *environment
	checkTimeout, reloadTimeout           string
	allow                                 []string
	original                              Original
	notes
}

// Original is a template as the other program has it, with what decides what it renders.
type Original struct {
	Text, Left, Right string   // the delimiters may be empty
	Prefix            string   // of the keys
	Keys              []string // below the prefix
	Strict            bool     // a field that is absent is an error
}

// open reads the settings of another program into a result, which may be there from
// files before. The parsers take memory and time by the square of the nesting.
func (r *Result) open(program, layout, name string, data []byte, unmarshal func([]byte, any) error) (*Result, map[string]any, error) {
	if r == nil {
		r = newResult(program + "'s " + filepath.Base(name))
		r.layout = layout
	}
	var m map[string]any
	err := template.CheckNesting(string(data))
	if err == nil {
		err = unmarshal(data, &m)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return r, m, nil
}

const layoutPlain, layoutLeaves = "plain", "leaves"

// named is a service and the label of its group.
type named struct{ name, label string }

// other is a block that is printed as it is.
type other struct {
	kind, name string
	body       string
	notes
}

type program struct {
	command             []string
	signal, splay, kill string
	killSignal          string
	env                 *environment
}

// ReadFunc reads a template that the settings name.
type ReadFunc func(path string) ([]byte, error)

func newResult(from string) *Result {
	return &Result{from: from, layout: layoutPlain, configs: map[string]string{}, groups: map[string]string{}, computed: map[string]string{}, onEmpty: map[string]string{}}
}

// stored says that the keys of confd and remco were not in ZooKeeper. There a key may have
// keys below it.
func (r *Result) stored(backend string) {
	r.layout = layoutPlain
	r.note("keys were in %s: they have to be in ZooKeeper, at the paths below", backend)
}

// note is what somebody should know; lost is what could not be translated.
type note struct {
	text string
	lost bool
}

// notes are those about the whole, a block or a template.
type notes struct {
	list []note
	lost int // what could not be translated
}

func (n *notes) note(format string, args ...any) { n.add(note{fmt.Sprintf(format, args...), false}) }

func (n *notes) miss(format string, args ...any) {
	n.lost++
	n.add(note{fmt.Sprintf(format, args...), true})
}

func (n *notes) add(one note) {
	if !slices.Contains(n.list, one) {
		n.list = append(n.list, one)
	}
}

// Lost is how many constructs could not be translated. Each is among the
// notes; the other notes only say what zkagent does in another way.
func (r *Result) Lost() int {
	n := 0
	r.EachNote(func(_ string, lost bool) {
		if lost {
			n++
		}
	})
	return n
}

// EachNote calls fn for each note, in order. Lost says that it is about something that
// could not be translated.
func (r *Result) EachNote(fn func(text string, lost bool)) {
	each := func(prefix string, notes notes) {
		for _, n := range notes.list {
			fn(prefix+n.text, n.lost)
		}
	}
	each("", r.notes)
	for _, o := range r.others {
		each(o.kind+" "+o.name+": ", o.notes)
	}
	for _, t := range r.Templates {
		each("template "+t.Name+": ", t.notes)
	}
}

// Flagged is how many templates hold something that could not be translated.
func (r *Result) Flagged() int {
	n := 0
	for _, t := range r.Templates {
		if t.Flagged() {
			n++
		}
	}
	return n
}

// Original is the template as the other program has it.
func (r *Result) Original(t *Template) Original {
	o := t.original
	o.Prefix = cmp.Or(r.chroot, o.Prefix)
	return o
}

// OriginalPaths are where the other program has the keys of the configs, by their names.
func (r *Result) OriginalPaths() map[string]string {
	paths := map[string]string{}
	for name, at := range r.configs {
		if at == rootPath {
			at = ""
		}
		paths[name] = r.chroot + at
	}
	return paths
}

// OriginalServices are the labels of the groups by the names of the services.
func (r *Result) OriginalServices() map[string]string {
	labels := map[string]string{}
	for _, s := range r.services {
		labels[s.name] = s.label
	}
	return labels
}

// Flagged reports whether something in the template could not be translated.
func (t *Template) Flagged() bool { return t.lost > 0 }

var notLabel = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// label makes a name that can be a label.
func label(s string) string {
	s = strings.Trim(notLabel.ReplaceAllString(s, "-"), "-")
	if s == "" || s[0] >= '0' && s[0] <= '9' || s[0] == '-' {
		s = "x" + s
	}
	return s
}

// numbered is a name that is not taken.
func numbered(name string, taken func(string) bool) string {
	free := name
	for n := 2; taken(free); n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	return free
}

func (r *Result) add(t *Template) {
	t.Name = numbered(label(filepath.Base(t.Destination)), func(name string) bool {
		return slices.ContainsFunc(r.Templates, func(o *Template) bool { return o.Name == name })
	})
	r.Templates = append(r.Templates, t)
}

func (r *Result) group(name, path string) string {
	l := numbered(label(name), func(l string) bool { return r.groups[l] != "" && r.groups[l] != path })
	r.groups[l] = path
	return l
}

func (r *Result) service(name string) string {
	for _, s := range r.services {
		if s.name == name || s.label == name {
			return s.label
		}
	}
	l := r.group(name, "/services/"+name)
	r.services = append(r.services, named{name, l})
	return l
}

// plainName is an element of a path that can be the name of a config.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// config is the name of the config at a path. Configs at other paths keep their
// names: /prod/app and /staging/app are app and staging-app.
func (r *Result) config(path string) (string, bool) {
	for name, at := range r.configs {
		if at == path {
			return name, true
		}
	}
	elements := strings.Split(strings.Trim(path, "/"), "/")
	name := ""
	for _, element := range slices.Backward(elements) {
		if !plainName.MatchString(element) {
			break
		}
		name = strings.TrimSuffix(element+"-"+name, "-")
		if r.configs[name] == "" {
			r.configs[name] = path
			return name, true
		}
	}
	if name != "" {
		name = numbered(name, func(name string) bool { return r.configs[name] != "" })
		r.configs[name] = path
	}
	return name, name != ""
}

// cleanPrefix is a prefix of keys as the path of a znode; empty for the root.
func cleanPrefix(prefix string) string { return strings.TrimSuffix(path.Clean("/"+prefix), "/") }

// configOf splits the path of a key into the config that it is in and the
// reference that templates use: "/web/a/b" is "web/a/b" of config "web", which
// is at "/web". Below a prefix everything is one config.
func (r *Result) configOf(prefix, key string, single bool) string {
	key = strings.Trim(path.Clean("/"+strings.TrimSpace(key)), "/")
	if p := cleanPrefix(prefix); p != "" {
		name, ok := r.config(p)
		if !ok {
			panic(problem("the prefix " + prefix + " cannot be the name of a config"))
		}
		return strings.TrimSuffix(name+"/"+key, "/")
	}
	first, rest, deep := strings.Cut(key, "/")
	switch {
	case first == "":
		panic(problem("the whole tree: a config needs its own path"))
	case !deep && single:
		return r.rootKeys() + "/" + key
	}
	name, ok := r.config("/" + first)
	if !ok {
		panic(problem(quoteGo(first) + " cannot be the name of a config"))
	}
	return strings.TrimSuffix(name+"/"+rest, "/")
}

// rootPath is where the keys go that are at the root: there can be no config.
const rootPath = "/root-keys"

// rootKeys is the name of the config of the keys at the root.
func (r *Result) rootKeys() string {
	r.note("keys at the root of the tree are those of a config here: put them below %s", rootPath)
	name, _ := r.config(rootPath)
	return name
}

// pairKey is the key of a pair as the original has it, from its path here, which
// begins with the name of the config.
func (r *Result) pairKey(prefix, expr string) string {
	if p := cleanPrefix(prefix); p != "" {
		if name, ok := r.config(p); ok {
			return "(trimPrefix " + quoteGo(name) + " " + expr + ")"
		}
	}
	for name, at := range r.configs {
		if at != "/"+name {
			return "" // the path does not begin as the key does
		}
	}
	if r.configs[rootPath[1:]] != "" {
		expr = "(trimPrefix " + quoteGo(rootPath[1:]+"/") + " " + expr + ")"
	}
	return "(print \"/\" " + expr + ")"
}

// ensemble adds the servers of one more setting. Two ensembles are never one list.
func (r *Result) ensemble(who string, servers []string) {
	servers = strings.FieldsFunc(strings.Join(servers, ","), func(c rune) bool { return c == ',' || c == ' ' })
	for i, s := range servers {
		host, chroot, found := strings.Cut(s, "/")
		if found && chroot != "" {
			r.miss("the chroot of %s of %s: write it as chroot of the zookeeper block", s, who)
		}
		servers[i] = host
	}
	slices.Sort(servers)
	servers = slices.Compact(servers)
	switch {
	case len(servers) == 0:
	case len(r.servers) == 0:
		r.servers = servers
	case !slices.Equal(r.servers, servers):
		r.miss("%s uses another ensemble (%s) than the rest (%s): an agent has one; import it on its own, for a second agent",
			who, strings.Join(servers, ", "), strings.Join(r.servers, ", "))
	}
}

// Settings prints the settings. Where inline is false, the templates are
// files below "templates", named NAME.tmpl.
func (r *Result) Settings(inline bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Translated by zkagent import from %s. Do what each line with \"import:\" asks before you use it.\n", r.from)
	comment(&b, r.list)
	if r.logLevel != "" {
		b.WriteString("log {\nlevel = " + quote(r.logLevel) + "\n}\n")
	}
	inherit := r.inherits()
	if inherit == inAgent {
		b.WriteString("agent {\npass_env = [\"*\"]\n}\n")
	}
	if len(r.configs)+len(r.groups)+len(r.others) > 0 || r.set {
		servers := r.servers
		if len(servers) == 0 {
			comment(&b, []note{{text: "the source had no ZooKeeper: name its servers here"}})
			servers = []string{"127.0.0.1:2181"}
		}
		b.WriteString("zookeeper {\nservers = [" + quoteAll(servers) + "]\n")
		line(&b, "chroot", r.chroot)
		b.WriteString("}\n")
	}
	for _, name := range slices.Sorted(maps.Keys(r.configs)) {
		fmt.Fprintf(&b, "\nconfig %q {\npath = %s\nlayout = %q\n}\n", name, quote(r.configs[name]), r.layout)
	}
	for _, name := range slices.Sorted(maps.Keys(r.groups)) {
		fmt.Fprintf(&b, "\ngroup %q {\npath = %s\n", name, quote(r.groups[name]))
		line(&b, "on_empty", r.onEmpty[name])
		b.WriteString("}\n")
	}
	if r.set {
		b.WriteString("\ngroups \"services\" {\npath = \"/services\"\n}\n")
	}
	for _, o := range r.others {
		fmt.Fprintf(&b, "\n%s %q {\n", o.kind, o.name)
		comment(&b, o.list)
		b.WriteString(o.body + "}\n")
	}
	for _, t := range r.Templates {
		t.print(&b, inline, inherit)
	}
	r.program.write(&b, inherit)
	return b.String()
}

func (p *program) write(b *strings.Builder, inherit inheritance) {
	if p == nil {
		return
	}
	fmt.Fprintf(b, "\nexec \"main\" {\ncommand = [%s]\n", strings.Join(p.command, ", "))
	if p.signal != "" {
		fmt.Fprintf(b, "on_change = \"signal\"\nsignal = %s\n", quote(p.signal))
	}
	line(b, "splay", p.splay)
	line(b, "kill_timeout", p.kill)
	line(b, "kill_signal", p.killSignal)
	inherit.environment(p.env).write(b)
	b.WriteString("}\n")
}

// inheritance is where the settings say that commands get the whole environment,
// as those of the other programs do.
type inheritance int

const (
	nowhere  inheritance = iota // there are no commands
	inAgent                     // once, for all commands
	inBlocks                    // in each block: some commands get less
)

func (r *Result) inherits() inheritance {
	where := nowhere
	if r.program != nil {
		if where = inAgent; r.program.env != nil {
			return inBlocks
		}
	}
	for _, t := range r.Templates {
		switch {
		case t.reloadEnv != nil:
			return inBlocks
		case len(t.check)+len(t.reload) > 0:
			where = inAgent
		}
	}
	return where
}

// environment is what a block says of the environment; nil for nothing.
func (i inheritance) environment(own *environment) *environment {
	if own == nil && i == inBlocks {
		return &environment{pass: []string{"*"}}
	}
	return own
}

func (e *environment) write(b *strings.Builder) {
	if e == nil {
		return
	}
	if len(e.pass) > 0 {
		b.WriteString("pass_env = [" + quoteAll(e.pass) + "]\n")
	}
	set := map[string]any{}
	for _, pair := range e.set {
		name, value, _ := strings.Cut(pair, "=")
		set[name] = value
	}
	pairs(b, "env", set)
}

func line(b *strings.Builder, name, value string) {
	if value != "" {
		fmt.Fprintf(b, "%s = %s\n", name, quote(value))
	}
}

// comment prints notes: what could not be translated with a mark that validate
// refuses.
func comment(b *strings.Builder, notes []note) {
	for _, n := range notes {
		mark := "note:"
		if n.lost {
			mark = "import:"
		}
		fmt.Fprintf(b, "# %s %s\n", mark, strings.Join(strings.Fields(n.text), " "))
	}
}

func (t *Template) print(b *strings.Builder, inline bool, inherit inheritance) {
	fmt.Fprintf(b, "\ntemplate %q {\n", t.Name)
	comment(b, t.list)
	switch {
	case t.Text == "" && t.source != "":
		line(b, "source", t.source)
	case !inline:
		line(b, "source", "templates/"+t.Name+".tmpl")
	default:
		b.WriteString("contents = " + heredoc(t.Text) + "\n")
	}
	for _, pair := range [][2]string{{"destination", t.Destination}, {"mode", t.mode}, {"owner", t.owner}, {"group", t.group}, {"syntax", t.syntax}} {
		line(b, pair[0], pair[1])
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{t.backup, "backup = 1"}, {t.createDirs, "create_dirs = true"}, {t.missingOK, "error_on_missing_key = false"}, {t.byNode, `member_order = "node"`}} {
		if flag.set {
			b.WriteString(flag.text + "\n")
		}
	}
	if len(t.allow) > 0 {
		allow := slices.Compact(slices.Sorted(slices.Values(t.allow)))
		b.WriteString("allow = [" + quoteAll(allow) + "]\n")
	}
	if t.waitMin != "" {
		b.WriteString("wait {\n")
		line(b, "min", t.waitMin)
		line(b, "max", t.waitMax)
		b.WriteString("}\n")
	}
	block(b, "check", t.check, inherit.environment(nil), "timeout", t.checkTimeout)
	block(b, "reload", t.reload, inherit.environment(t.reloadEnv), "timeout", t.reloadTimeout, "min_interval", t.minInterval)
	b.WriteString("}\n")
}

func block(b *strings.Builder, name string, command []string, env *environment, more ...string) {
	if len(command) == 0 {
		return
	}
	fmt.Fprintf(b, "%s {\ncommand = [%s]\n", name, strings.Join(command, ", "))
	for i := 0; i+1 < len(more); i += 2 {
		line(b, more[i], more[i+1])
	}
	env.write(b)
	b.WriteString("}\n")
}

var hclEscape = strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n", "\r", "\\r", "\t", "\\t", "${", "$${", "%{", "%%{")

// quote is a string of HCL.
func quote(s string) string { return "\"" + hclEscape.Replace(s) + "\"" }

func quoteAll(list []string) string {
	words := lists.Map(list, quote)
	return strings.Join(words, ", ")
}

// heredoc is a text of HCL, readable where that is possible.
func heredoc(s string) string {
	if !strings.HasSuffix(s, "\n") || strings.ContainsAny(s, "\r") || strings.Contains(s, "EOT") {
		return quote(s)
	}
	return "<<EOT\n" + strings.NewReplacer("${", "$${", "%{", "%%{").Replace(s) + "EOT"
}
