package template

import (
	"fmt"
	"maps"
	"slices"
)

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
	values := make([]any, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		values = append(values, m[key])
	}
	return values
}

func (st *state) scratchPad() *Scratch {
	if st.scratch == nil {
		st.scratch = &Scratch{values: map[string]any{}}
	}
	return st.scratch
}
