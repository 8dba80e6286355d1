package template

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"dario.cat/mergo"
)

// Pair is one key of a config tree as ls and tree return it.
type Pair struct {
	Path  string // whole: "web/backends/a"
	Key   string // below the prefix that was asked for: "a"
	Value string
}

var mapFunctions = map[string]any{
	"byKey":                byKey,
	"explode":              explode,
	"explodeMap":           explodeMap,
	"pathMatch":            pathMatch,
	"mergeMap":             func(dst, src map[string]any) (map[string]any, error) { return mergeMaps(dst, src) },
	"mergeMapWithOverride": func(dst, src map[string]any) (map[string]any, error) { return mergeMaps(dst, src, mergo.WithOverride) },
}

// byKey groups pairs by the first element of their keys; pairs with one
// element are left out.
func byKey(pairs []Pair) map[string]map[string]Pair {
	m := map[string]map[string]Pair{}
	for _, p := range pairs {
		top, rest, _ := strings.Cut(p.Key, "/")
		if rest == "" {
			continue
		}
		if m[top] == nil {
			m[top] = map[string]Pair{}
		}
		p.Key = rest
		m[top][rest] = p
	}
	return m
}

// pathMatch keeps the pairs whose path matches a pattern of [path.Match].
func pathMatch(pattern string, pairs []Pair) ([]Pair, error) {
	kept := []Pair{}
	for _, p := range pairs {
		ok, err := path.Match(pattern, p.Path)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		if ok {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

func explode(pairs []Pair) (map[string]any, error) {
	m := map[string]any{}
	for _, p := range pairs {
		if err := insert(m, p.Key, p.Value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func explodeMap(in map[string]any) (map[string]any, error) {
	m := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if err := insert(m, k, in[k]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func insert(m map[string]any, path string, v any) error {
	parts := strings.Split(path, "/")
	for i, part := range parts[:len(parts)-1] {
		if _, ok := m[part]; !ok {
			m[part] = map[string]any{}
		}
		next, ok := m[part].(map[string]any)
		if !ok {
			return failf(nil, path, "explode: %q is below %q, which has a value", path, strings.Join(parts[:i+1], "/"))
		}
		m = next
	}
	if last := parts[len(parts)-1]; last != "" {
		m[last] = v
	}
	return nil
}

func mergeMaps(dst, src map[string]any, options ...func(*mergo.Config)) (map[string]any, error) {
	dst, src = cloneMaps(dst), cloneMaps(src)
	if err := mergo.Map(&dst, src, options...); err != nil {
		return nil, errors.New("maps do not merge: their values have different types")
	}
	return dst, weigh(dst)
}

func cloneMaps(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		if inner, ok := v.(map[string]any); ok {
			v = cloneMaps(inner)
		}
		out[k] = v
	}
	return out
}

// textKeys gives the maps that YAML made (whose keys may be anything) text
// keys, so that they can be written as JSON.
func textKeys(v any) any {
	switch v := v.(type) {
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[fmt.Sprint(k)] = textKeys(e)
		}
		return out
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = textKeys(e)
		}
		return out
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = textKeys(e)
		}
		return out
	}
	return v
}

// Scratch keeps values within one execution. Its methods that change it
// return an empty text, so that they can stand in a template.
type Scratch struct {
	values map[string]any
}

// Key reports whether there is a value.
func (s *Scratch) Key(k string) bool {
	_, ok := s.values[k]
	return ok
}

// Get returns a value, nil when there is none.
func (s *Scratch) Get(k string) any { return s.values[k] }

// Set stores a value.
func (s *Scratch) Set(k string, v any) (string, error) {
	s.values[k] = v
	return "", weigh(v)
}

// SetX stores a value unless there is one.
func (s *Scratch) SetX(k string, v any) (string, error) {
	if s.Key(k) {
		return "", nil
	}
	return s.Set(k, v)
}

// MapSet stores a value in the map of that name.
func (s *Scratch) MapSet(k, mapKey string, v any) (string, error) {
	return s.mapSet(k, mapKey, v, true)
}

// MapSetX stores a value in the map of that name unless there is one.
func (s *Scratch) MapSetX(k, mapKey string, v any) (string, error) {
	return s.mapSet(k, mapKey, v, false)
}

func (s *Scratch) mapSet(k, mapKey string, v any, replace bool) (string, error) {
	if !s.Key(k) {
		s.values[k] = map[string]any{}
	}
	m, ok := s.values[k].(map[string]any)
	if !ok {
		return "", fmt.Errorf("scratch value %q is not a map", k)
	}
	if _, exists := m[mapKey]; exists && !replace {
		return "", nil
	}
	m[mapKey] = v
	return "", weigh(v) // Endless depth, too, if v contains the map.
}

// MapValues returns the values of the map of that name, in order of its keys.
func (s *Scratch) MapValues(k string) []any {
	m, _ := s.values[k].(map[string]any)
	return sortedValues(m)
}

func (st *state) scratchPad() *Scratch {
	if st.scratch == nil {
		st.scratch = &Scratch{values: map[string]any{}}
	}
	return st.scratch
}
