package template

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/sprig/v3"
)

type function struct {
	make  func(*state) any // the Go function of an executor
	allow string           // what the allow setting must name; empty: nothing
	pure  bool             // it gives the same for the same arguments, and does nothing else
}

// impure are functions whose result is a matter of the time, of the network, or of
// places in memory, among groups that are pure otherwise.
var impure = []string{"ago", "spew_sdump", "spew_sprintf", "unixEpoch", "toDate", "mustToDate", "uuidv4", "getHostByName"}

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
	for _, group := range []map[string]any{
		textFunctions, parseFunctions, encodeFunctions, mathFunctions(), mapFunctions, listFunctions, quoteFunctions,
	} {
		for name, fn := range group {
			table[name] = function{make: bounded(fn), pure: !slices.Contains(impure, name)}
		}
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
	Result    string // what it gives with the view of example.yaml; empty with Varies
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
	t := reflect.TypeOf(f.make(&state{t: &Template{}}))
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

// randomFunctions give another result at each call: they would rewrite the
// file at every render.
var randomFunctions = []string{
	"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert",
	"genSignedCertWithKey", "encryptAES", "randInt", "shuffle", "bcrypt", "htpasswd", "randBytes",
}

var makers = []string{
	"list", "tuple", "dict", "set", "merge", "mergeOverwrite", "mustMerge", "mustMergeOverwrite", "append", "push",
	"prepend", "mustAppend", "mustPush", "mustPrepend", "concat", "pluck", "deepCopy", "mustDeepCopy", "chunk", "mustChunk",
}

// sprigFunctions are sprig's hermetic functions, without the random ones, and
// with bounds where one call could run or grow without end.
func sprigFunctions() map[string]any {
	funcs := map[string]any(sprig.HermeticTxtFuncMap())
	for _, name := range randomFunctions {
		delete(funcs, name)
	}
	for _, name := range makers {
		funcs[name] = weighed(funcs[name])
	}
	maps.Copy(funcs, map[string]any{
		"dig":             dig,
		"keys":            sortedKeys,
		"values":          sortedValues,
		"repeat":          refusing(funcs["repeat"], func(n int, s string) error { return checkRepeat(n, len(s)) }),
		"indent":          refusing(funcs["indent"], checkIndent),
		"nindent":         refusing(funcs["nindent"], checkIndent),
		"replace":         replaceAll,
		"join":            refusing(funcs["join"], checkJoin),
		"until":           refusing(funcs["until"], func(n int) error { return steps(max(int64(n), -int64(n))) }),
		"untilStep":       refusing(funcs["untilStep"], stepsOf),
		"uniq":            uniq,
		"mustUniq":        uniq,
		"regexReplaceAll": expandAll, "mustRegexReplaceAll": expandAll,
		"regexReplaceAllLiteral": replaceLiteral, "mustRegexReplaceAllLiteral": replaceLiteral,
		"seq": refusing(funcs["seq"], checkSeq),
	})
	maps.Copy(funcs, guardedParsers(funcs))
	for name, fn := range funcs {
		funcs[name] = takesTextMaps(fn)
	}
	return funcs
}

// checkRepeat checks how often a text of some bytes is repeated.
func checkRepeat(count, size int) error {
	if count < 0 {
		return errors.New("count must not be negative")
	}
	if size > 0 && count > maxValue/size {
		return fmt.Errorf("%d bytes repeated %d times are %w", size, count, ErrTooLarge)
	}
	return nil
}

func checkIndent(spaces int, s string) error { return checkRepeat(spaces, strings.Count(s, "\n")+1) }

func checkJoin(sep string, list any) error {
	n := 0
	if v := reflect.ValueOf(list); v.Kind() == reflect.Slice {
		for i := range v.Len() {
			e := v.Index(i)
			if e.Kind() == reflect.Interface {
				e = e.Elem()
			}
			if n += len(sep); e.Kind() == reflect.String {
				n += e.Len()
			}
		}
	}
	return checkLen(n)
}

func stepsOf(start, stop, step int) error {
	if step == 0 {
		return nil
	}
	return steps(int64(min((float64(stop)-float64(start))/float64(step), 1<<62)))
}

func checkSeq(params []int) error {
	start, step, end := 1, 1, 0
	switch len(params) {
	case 1:
		end = params[0]
	case 2:
		start, end = params[0], params[1]
	case 3:
		start, step, end = params[0], params[1], params[2]
	}
	if len(params) < 3 && end < start {
		step = -1
	}
	return stepsOf(start, end, step)
}

// expandAll and replaceLiteral have sprig's order of arguments: expression, text,
// replacement.
func expandAll(re, s, replacement string) (string, error) { return regexReplaceAll(re, replacement, s) }

func replaceLiteral(re, s, replacement string) (string, error) {
	compiled, err := pattern(re)
	if err != nil {
		return "", err
	}
	return replaceBounded(compiled, s, func(dst []byte, _ []int) []byte { return append(dst, replacement...) })
}

// The labels of a member are a map of texts, but sprig's functions take a
// map[string]any. Ours also take any other map whose keys are texts, and the pairs of
// ls and tree, as keys and values.

var (
	anyMap  = reflect.TypeFor[map[string]any]()
	anyType = reflect.TypeFor[any]()
)

// takesTextMaps lets a function take maps of texts where it takes maps.
func takesTextMaps(fn any) any {
	t := reflect.TypeOf(fn)
	in := make([]reflect.Type, t.NumIn())
	found := false
	for i := range in {
		in[i] = t.In(i)
		switch {
		case in[i] == anyMap:
			in[i], found = anyType, true
		case t.IsVariadic() && i == len(in)-1 && in[i].Elem() == anyMap:
			in[i], found = reflect.SliceOf(anyType), true
		}
	}
	if !found {
		return fn
	}
	out := make([]reflect.Type, t.NumOut())
	for i := range out {
		out[i] = t.Out(i)
	}
	v := reflect.ValueOf(fn)
	return reflect.MakeFunc(reflect.FuncOf(in, out, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		args = slices.Clone(args)
		for i, a := range args {
			switch {
			case t.In(i) == anyMap:
				args[i] = reflect.ValueOf(mustMap(a.Interface()))
			case in[i] != t.In(i):
				list := make([]map[string]any, a.Len())
				for j := range list {
					list[j] = mustMap(a.Index(j).Interface())
				}
				args[i] = reflect.ValueOf(list)
			}
		}
		if t.IsVariadic() {
			return v.CallSlice(args)
		}
		return v.Call(args)
	}).Interface()
}

var errNoMap = errors.New("a map is expected, such as .Labels or the result of parseJSON for an object")

// mustMap returns a value as a map. For any other value it panics; text/template
// turns that into an error.
func mustMap(v any) map[string]any {
	m, ok := asMap(v)
	if !ok {
		panic(errNoMap)
	}
	return m
}

func asMap(v any) (map[string]any, bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case map[string]any:
		return v, true
	case map[string]string:
		m := make(map[string]any, len(v))
		for k, s := range v {
			m[k] = s
		}
		return m, true
	case []Pair:
		m := make(map[string]any, len(v))
		for _, p := range v {
			m[p.Key] = p.Value
		}
		return m, true
	}
	r := reflect.ValueOf(v)
	if r.Kind() != reflect.Map || r.Type().Key().Kind() != reflect.String {
		return nil, false
	}
	m := make(map[string]any, r.Len())
	for k, e := range r.Seq2() {
		m[k.String()] = e.Interface()
	}
	return m, true
}

// dig returns a value in nested maps, or the default: its arguments are the keys,
// the default and the map.
func dig(args ...any) (any, error) {
	if len(args) < 3 {
		return nil, errors.New("dig takes keys, a default and a map")
	}
	keys, def, v := args[:len(args)-2], args[len(args)-2], args[len(args)-1]
	for _, key := range keys {
		name, ok := key.(string)
		if !ok {
			return nil, errors.New("the keys of dig are texts; its last two arguments are the default and the map")
		}
		m, ok := asMap(v)
		if !ok {
			return nil, errNoMap
		}
		if v, ok = m[name]; !ok {
			return def, nil
		}
	}
	return v, nil
}
