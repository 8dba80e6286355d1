package template

import (
	"errors"
	"reflect"
	"slices"
)

// The labels of a member are a map of texts; sprig's functions take maps of
// anything. A function that takes such a map takes a map of texts, too, any other
// map whose keys are texts, and pairs of ls and tree: their keys and values.

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

var errNoMap = errors.New("a map is wanted, such as .Labels or what parseJSON gives for an object")

// mustMap is the map that a value is; it panics for another, of which
// text/template makes an error.
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
