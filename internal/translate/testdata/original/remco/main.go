// Program original renders templates with the template engine of remco, with the functions
// and filters that remco's documentation names and given keys instead of a backend.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/flosch/pongo2/v6"
	gopkgyaml "gopkg.in/yaml.v3"
	"sigs.k8s.io/yaml"
)

type trial struct {
	Template, Prefix string
	Keys             map[string]string
}

func main() {
	pongo2.SetAutoescape(false)
	filters()
	var trials []trial
	if err := json.NewDecoder(os.Stdin).Decode(&trials); err != nil {
		panic(err)
	}
	var out []map[string]string
	for _, t := range trials {
		text, err := render(t)
		if err != nil {
			out = append(out, map[string]string{"error": err.Error()})
			continue
		}
		out = append(out, map[string]string{"text": text})
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
}

func render(t trial) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	s := store{}
	for key, value := range t.Keys {
		s[path.Join("/", strings.TrimPrefix("/"+key, t.Prefix))] = value
	}
	set := pongo2.NewSet("local", pongo2.MustNewLocalFileSystemLoader(""))
	set.Options = &pongo2.Options{TrimBlocks: true, LStripBlocks: true}
	tmpl, err := set.FromString(t.Template)
	if err != nil {
		return "", err
	}
	ctx := pongo2.Context{
		"getenv": func(name string, def ...string) string {
			if v := os.Getenv(name); v != "" || len(def) == 0 {
				return v
			}
			return def[0]
		},
		"contains": strings.Contains, "replace": strings.Replace, "printf": fmt.Sprintf,
		"createMap": func() theMap { return theMap{} }, "createSet": func() theSet { return theSet{} },
		"exists": func(key string) bool { _, ok := s[key]; return ok },
		"get":    s.get, "gets": s.gets, "getv": s.getv, "getvs": s.getvs,
		"ls":    func(at string) []string { return s.below(at, 1) },
		"lsdir": func(at string) []string { return s.below(at, 2) },
	}
	return tmpl.Execute(ctx)
}

// store holds the keys. It differs from confd's: what is absent is empty, and a key
// is not listed as if it were below itself.
type store map[string]string

type pair struct{ Key, Value string }

func (s store) get(key string) pair {
	if value, ok := s[key]; ok {
		return pair{key, value}
	}
	return pair{}
}

func (s store) getv(key string, def ...string) string {
	if _, ok := s[key]; !ok && len(def) > 0 {
		return def[0]
	}
	return s[key]
}

func (s store) gets(pattern string) []pair {
	var list []pair
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if ok, err := path.Match(pattern, key); err != nil {
			break
		} else if ok {
			list = append(list, s.get(key))
		}
	}
	return list
}

func (s store) getvs(pattern string) []string {
	var list []string
	for _, p := range s.gets(pattern) {
		list = append(list, p.Value)
	}
	slices.Sort(list)
	return list
}

// below are the names below a path that have at least so many elements.
func (s store) below(at string, elements int) []string {
	var list []string
	for key := range s {
		rest, ok := strings.CutPrefix(key, path.Clean(at)+"/")
		if parts := strings.Split(rest, "/"); ok && len(parts) >= elements {
			list = append(list, parts[0])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

type theMap map[string]any

func (m theMap) Set(key string, value any) string { m[key] = value; return "" }
func (m theMap) Remove(key string) string         { delete(m, key); return "" }
func (m theMap) Get(key string) any               { return m[key] }

type theSet map[string]struct{}

func (s theSet) Append(value any) string    { s[fmt.Sprint(value)] = struct{}{}; return "" }
func (s theSet) Remove(value string) string { delete(s, value); return "" }
func (s theSet) Contains(value any) bool    { _, ok := s[fmt.Sprint(value)]; return ok }

func (s theSet) SortedSet() []string {
	var list []string
	for v := range s {
		list = append(list, v)
	}
	slices.Sort(list)
	return list
}

// filters are those that remco adds to the engine. A value that is no text stays.
func filters() {
	add := func(name string, ofText bool, fn func(in, param *pongo2.Value) (any, error)) {
		must(pongo2.RegisterFilter(name, func(in, param *pongo2.Value) (*pongo2.Value, *pongo2.Error) {
			if ofText && !in.IsString() {
				return in, nil
			}
			v, err := fn(in, param)
			if err != nil {
				return nil, &pongo2.Error{Sender: name, OrigError: err}
			}
			return pongo2.AsValue(v), nil
		}))
	}
	document := func(in, _ *pongo2.Value) (any, error) {
		var v any
		err := yaml.Unmarshal([]byte(in.String()), &v)
		return v, err
	}
	for _, name := range []string{"parseYAML", "parseJSON", "parseYAMLArray"} {
		add(name, true, document)
	}
	add("parseInt", true, func(in, _ *pongo2.Value) (any, error) {
		if in.String() == "" {
			return 0, nil
		}
		return strconv.ParseInt(in.String(), 10, 64)
	})
	add("parseFloat", true, func(in, _ *pongo2.Value) (any, error) {
		if in.String() == "" {
			return 0.0, nil
		}
		return strconv.ParseFloat(in.String(), 64)
	})
	add("toJSON", false, func(in, _ *pongo2.Value) (any, error) {
		b, err := json.Marshal(in.Interface())
		return string(b), err
	})
	add("toPrettyJSON", false, func(in, _ *pongo2.Value) (any, error) {
		b, err := json.MarshalIndent(in.Interface(), "", "    ")
		return string(b), err
	})
	add("toYAML", false, func(in, _ *pongo2.Value) (any, error) {
		b, err := gopkgyaml.Marshal(in.Interface())
		return string(b), err
	})
	add("dir", true, func(in, _ *pongo2.Value) (any, error) { return path.Dir(in.String()), nil })
	add("base", true, func(in, _ *pongo2.Value) (any, error) { return path.Base(in.String()), nil })
	add("base64", true, func(in, _ *pongo2.Value) (any, error) {
		return base64.StdEncoding.EncodeToString([]byte(in.String())), nil
	})
	add("index", false, func(in, param *pongo2.Value) (any, error) {
		if !in.CanSlice() {
			return in.Interface(), nil
		}
		i := param.Integer()
		if i < 0 {
			i += in.Len()
		}
		return in.Index(i).Interface(), nil
	})
	add("mapValue", false, func(in, param *pongo2.Value) (any, error) {
		m := reflect.ValueOf(in.Interface())
		if m.Kind() != reflect.Map || m.Type().Key().Kind() != reflect.ValueOf(param.Interface()).Kind() {
			return nil, nil
		}
		if v := m.MapIndex(reflect.ValueOf(param.Interface())); v.IsValid() {
			return v.Interface(), nil
		}
		return nil, nil
	})
	add("sortByLength", false, func(in, _ *pongo2.Value) (any, error) {
		switch list := in.Interface().(type) {
		case []string:
			sort.SliceStable(list, func(i, j int) bool { return len(list[i]) < len(list[j]) })
		case []pair:
			sort.SliceStable(list, func(i, j int) bool { return len(list[i].Key) < len(list[j].Key) })
		}
		return in.Interface(), nil
	})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
