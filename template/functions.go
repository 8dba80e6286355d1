package template

import (
	_ "embed"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// function is one template function: a plain Go function, or one that is made
// for the state of each executor.
type function struct {
	fn    any
	make  func(*state) any
	allow string // what the allow setting must name; empty: nothing
	pure  bool   // it gives the same for the same arguments, and does nothing else
}

// impure are functions whose result is a matter of the time, of the network, or of
// places in memory, among groups that are pure otherwise.
var impure = []string{"ago", "spew_sdump", "spew_sprintf", "unixEpoch", "toDate", "mustToDate", "uuidv4", "getHostByName"}

func (f function) bind(st *state) any {
	if f.make != nil {
		return f.make(st)
	}
	return f.fn
}

// functionTable returns every function by name. It is made once.
var functionTable = sync.OnceValue(func() map[string]function {
	table := map[string]function{}
	for name, fn := range sprigFunctions() {
		f := function{make: bounded(fn), pure: !slices.Contains(impure, name)}
		table["sprig_"+name] = f
		if builtins[name] == "" {
			table[name] = f
		}
	}
	own := map[string]any{}
	for _, group := range []map[string]any{
		textFunctions, parseFunctions, encodeFunctions, mathFunctions(), mapFunctions, listFunctions, quoteFunctions,
	} {
		maps.Copy(own, group)
	}
	for name, fn := range own {
		table[name] = function{make: bounded(fn), pure: !slices.Contains(impure, name)}
	}
	maps.Copy(table, viewFunctions())
	maps.Copy(table, outsideFunctions())
	return table
})

// Function describes one template function, for the reference.
type Function struct {
	Name      string
	Group     string
	Signature string // "keyOrDefault(string, string) string"
	Summary   string
	Example   string // a template
	Result    string // what it gives with the view of [ExampleView]; empty with Varies
	Varies    bool   // the result depends on the time
	Alias     string // a second name: "sprig_" + Name, for functions of sprig
	Allow     string // what the allow setting must name
}

// catalog holds a line for each function: name, summary, example, result.
//
//go:embed catalog.txt
var catalog string

// functionList is made once; functions of sprig that are also there under the
// sprig_ prefix are listed once, with that as their alias.
var functionList = sync.OnceValue(parseCatalog)

// Functions returns every template function, in the order of the reference.
func Functions() []Function { return append([]Function(nil), functionList()...) }

func parseCatalog() []Function {
	var list []Function
	table, group := functionTable(), ""
	for line := range strings.Lines(catalog) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "# "); ok {
			group = name
			continue
		}
		part := strings.SplitN(line, " :: ", 4)
		if len(part) < 4 {
			panic("template: line of the catalog: " + line)
		}
		f := Function{Name: part[0], Group: group, Summary: part[1], Example: part[2], Varies: part[3] == "*"}
		if !f.Varies {
			f.Result = unescape.Replace(part[3])
		}
		f.Signature = signature(f.Name, table)
		f.Allow = table[f.Name].allow
		if _, ok := table["sprig_"+f.Name]; ok && strings.HasPrefix(group, "Sprig") {
			f.Alias = "sprig_" + f.Name
		}
		list = append(list, f)
	}
	return list
}

var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\x20`, " ")

func signature(name string, table map[string]function) string {
	f, ok := table[name]
	if !ok {
		return builtins[name]
	}
	t := reflect.TypeOf(f.bind(&state{t: &Template{}}))
	var args []string
	for i := range t.NumIn() {
		if in := t.In(i); t.IsVariadic() && i == t.NumIn()-1 {
			args = append(args, "..."+typeName(in.Elem()))
		} else {
			args = append(args, typeName(in))
		}
	}
	return fmt.Sprintf("%s(%s) %s", name, strings.Join(args, ", "), typeName(t.Out(0)))
}

var typeNames = strings.NewReplacer("interface {}", "any", "view.", "", "template.", "", "sprig.", "", "*", "")

func typeName(t reflect.Type) string { return typeNames.Replace(t.String()) }

// builtins are the functions of text/template itself, and their signatures.
var builtins = map[string]string{
	"and": "and(any, ...any) any", "or": "or(any, ...any) any", "not": "not(any) bool", "len": "len(any) int",
	"index": "index(any, ...any) any", "slice": "slice(any, ...int) any", "print": "print(...any) string",
	"printf": "printf(string, ...any) string", "println": "println(...any) string", "html": "html(...any) string",
	"js": "js(...any) string", "urlquery": "urlquery(...any) string", "call": "call(func, ...any) any",
	"eq": "eq(any, ...any) bool", "ne": "ne(any, any) bool", "lt": "lt(any, any) bool", "le": "le(any, any) bool",
	"gt": "gt(any, any) bool", "ge": "ge(any, any) bool",
}
