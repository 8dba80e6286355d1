package template

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"dario.cat/mergo"
	"github.com/davecgh/go-spew/spew"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/view"
)

var listFunctions = map[string]any{
	"in":             in,
	"contains":       func(v, list any) bool { return in(list, v) },
	"containsAll":    containsSome(true, true),
	"containsAny":    containsSome(false, false),
	"containsNone":   containsSome(true, false),
	"containsNotAll": containsSome(false, true),
	"loop":           loop,
	"sortByLength":   sortByLength,
	// Members without the label are under the empty text.
	"byLabel": func(label string, members []view.Member) map[string][]view.Member {
		return grouped(members, func(m view.Member) []string { return []string{m.Labels[label]} })
	},
	"byMeta": byMeta,
	"byPort": func(members []view.Member) map[int][]view.Member {
		return grouped(members, func(m view.Member) []int { return []int{m.Port} })
	},
	"byTag":        byTag,
	"spew_sdump":   dumper.Sdump,
	"spew_sprintf": dumpf,
}

var dumper = spew.ConfigState{Indent: " ", SortKeys: true}

func dumpf(format string, args ...any) (string, error) {
	if n := formatWidth(format, args); n > maxValue {
		return "", tooLarge(n)
	}
	return dumper.Sprintf(format, args...), nil
}

// in reports whether a list has an element that equals v, or a text contains
// the text v. Values of different kinds are never equal.
func in(list, v any) bool {
	l, want := reflect.ValueOf(list), reflect.ValueOf(v)
	if !want.IsValid() {
		return false
	}
	switch l.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range l.Len() {
			e := l.Index(i)
			if e.Kind() == reflect.Interface {
				e = e.Elem()
			}
			if sameValue(e, want) {
				return true
			}
		}
	case reflect.String:
		return want.Type() == l.Type() && strings.Contains(l.String(), want.String())
	default: // Nothing else has elements.
	}
	return false
}

func sameValue(a, b reflect.Value) bool {
	switch {
	case !a.IsValid():
		return false
	case a.CanInt():
		return b.CanInt() && a.Int() == b.Int()
	case a.CanFloat():
		return b.CanFloat() && a.Float() == b.Float()
	case a.Kind() == reflect.String:
		return a.Type() == b.Type() && a.String() == b.String()
	}
	return false
}

// containsSome makes the four functions that compare a list of wanted values
// with a list: all, any, none, not all.
func containsSome(atEnd, invert bool) func([]any, any) (bool, error) {
	return func(wanted []any, list any) (bool, error) {
		if l := reflect.ValueOf(list); l.Kind() == reflect.Slice && len(wanted)*l.Len() > maxPairs {
			return false, tooManyPairs(len(wanted), l.Len())
		}
		for _, v := range wanted {
			if in(list, v) != invert {
				return !atEnd, nil
			}
		}
		return atEnd, nil
	}
}

// maxPairs bounds the comparisons of one call: nothing stops a call from within.
const maxPairs = 1 << 22

func tooManyPairs(n, m int) error {
	return fmt.Errorf("lists of %d and %d elements to compare are %w", n, m, ErrTooLarge)
}

// uniq is sprig's uniq, which compares each element with each. Those that a map can
// hold need one look each.
func uniq(list any) ([]any, error) {
	l := reflect.ValueOf(list)
	if l.Kind() != reflect.Slice && l.Kind() != reflect.Array {
		return nil, fmt.Errorf("cannot find unique elements of %T", list)
	}
	seen := map[any]bool{}
	unique, others := []any{}, []any{}
	for i := range l.Len() {
		v := l.Index(i).Interface()
		if kind := reflect.ValueOf(v).Kind(); kind <= reflect.Complex128 || kind == reflect.String {
			if !seen[v] {
				seen[v] = true
				unique = append(unique, v)
			}
			continue
		}
		if len(others)*l.Len() > maxPairs {
			return nil, tooManyPairs(len(others), l.Len())
		}
		if !slices.ContainsFunc(others, func(o any) bool { return reflect.DeepEqual(o, v) }) {
			others, unique = append(others, v), append(unique, v)
		}
	}
	return unique, nil
}

func grouped[E any, K comparable](list []E, keys func(E) []K) map[K][]E {
	m := map[K][]E{}
	for _, e := range list {
		for _, key := range keys(e) {
			m[key] = append(m[key], e)
		}
	}
	return m
}

func byTag(list any) (any, error) {
	switch list := list.(type) {
	case nil:
		return map[string][]view.Member{}, nil
	case []view.Member:
		return grouped(list, view.Member.Tags), nil
	case []Group:
		return grouped(list, func(g Group) []string { return g.Tags }), nil
	}
	return nil, failf(nil, "", "byTag of %T, which is no list of members or groups", list)
}

var notMetaKey = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// byMeta groups members by several labels, joined with "_"; a label followed
// by "|int" is a number, written with five digits.
func byMeta(labels string, members []view.Member) (map[string][]view.Member, error) {
	m := map[string][]view.Member{}
	for _, member := range members {
		var parts []string
		for label := range strings.SplitSeq(labels, ",") {
			part, err := metaPart(label, member)
			if err != nil {
				return nil, err
			}
			parts = append(parts, notMetaKey.ReplaceAllString(part, "_"))
		}
		key := strings.Join(parts, "_")
		m[key] = append(m[key], member)
	}
	return m, nil
}

func metaPart(label string, member view.Member) (string, error) {
	name, isInt := strings.CutSuffix(label, "|int")
	v := member.Labels[name]
	if !isInt {
		return cmp.Or(v, "_no_"+name+"_"), nil
	}
	n, err := strconv.Atoi(cmp.Or(v, "0"))
	if err != nil {
		return "", failf(nil, "", "byMeta: label %q of member %q is not an integer", name, member.ID)
	}
	return fmt.Sprintf("%05d", n), nil
}

func sortByLength(list any) ([]any, error) {
	l := reflect.ValueOf(list)
	if l.Kind() != reflect.Slice {
		return nil, failf(nil, "", "sortByLength of %T, which is not a list", list)
	}
	sorted := make([]any, l.Len())
	for i := range sorted {
		sorted[i] = l.Index(i).Interface()
	}
	length := func(v any) int {
		if p, ok := v.(Pair); ok {
			return len(p.Path)
		}
		return len(fmt.Sprint(v))
	}
	slices.SortFunc(sorted, func(a, b any) int { return length(a) - length(b) })
	return sorted, nil
}

// sortedKeys and sortedValues replace functions of sprig that depend on the
// random order of maps, which would rewrite the file at every render.
func sortedKeys(dicts ...map[string]any) []string {
	keys := []string{}
	for _, d := range dicts {
		for k := range d {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func sortedValues(dict map[string]any) []any {
	return lists.Map(sortedKeys(dict), func(k string) any { return dict[k] })
}

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
		return lists.Map(v, textKeys)
	}
	return v
}

// Scratch keeps values within one execution. Methods that change it return an empty
// text, so that a template can call them anywhere.
type Scratch struct {
	values map[string]any
}

// Key reports whether there is a value.
func (s *Scratch) Key(k string) bool {
	_, ok := s.values[k]
	return ok
}

// Get returns the value of a name, or nil if the name has no value.
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

// mathFunctions calculate. In a pipe the piped number is the left one:
// "5 | subtract 2" is 3. Integers stay integers; a fraction makes both floats.
func mathFunctions() map[string]any {
	funcs := map[string]any{
		"minimum": func(b, a any) (any, error) { return choose(a, b, true) },
		"maximum": func(b, a any) (any, error) { return choose(a, b, false) },
	}
	for name, operator := range map[string]byte{"add": '+', "subtract": '-', "multiply": '*', "divide": '/', "modulo": '%'} {
		funcs[name] = func(b, a any) (any, error) { return calculate(a, operator, b) }
	}
	return funcs
}

func calculate(a any, operator byte, b any) (any, error) {
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	if err := numbers(av, bv); err != nil {
		return nil, err
	}
	switch {
	case (av.CanFloat() || bv.CanFloat()) && operator == '%':
		return nil, errors.New("modulo is for integers only")
	case av.CanFloat() || bv.CanFloat():
		return operate(toFloat(av), operator, toFloat(bv)), nil
	case (operator == '/' || operator == '%') && bv.IsZero():
		return nil, errors.New("division by zero")
	case av.CanUint() && bv.CanUint():
		return operate(av.Uint(), operator, bv.Uint()), nil
	}
	return operate(toInt(av), operator, toInt(bv)), nil
}

func operate[T int64 | uint64 | float64](a T, operator byte, b T) T {
	switch operator {
	case '+':
		return a + b
	case '-':
		return a - b
	case '*':
		return a * b
	case '%': // Of integers.
		return a - a/b*b
	}
	return a / b
}

func choose(a, b any, smaller bool) (any, error) {
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	if err := numbers(av, bv); err != nil {
		return nil, err
	}
	var less, more bool
	switch {
	case av.CanFloat() || bv.CanFloat():
		less, more = toFloat(av) < toFloat(bv), toFloat(av) > toFloat(bv)
	case av.CanUint() && bv.CanUint():
		less, more = av.Uint() < bv.Uint(), av.Uint() > bv.Uint()
	default:
		less, more = toInt(av) < toInt(bv), toInt(av) > toInt(bv)
	}
	if smaller && less || !smaller && more {
		return widened(av), nil
	}
	return widened(bv), nil
}

func numbers(vs ...reflect.Value) error {
	for _, v := range vs {
		if !v.IsValid() {
			return errors.New("nothing is not a number")
		}
		if !v.CanInt() && !v.CanUint() && !v.CanFloat() {
			return fmt.Errorf("%s is not a number: use parseInt or parseFloat for a text", v.Type())
		}
	}
	return nil
}

func toFloat(v reflect.Value) float64 { return v.Convert(reflect.TypeFor[float64]()).Float() }

func toInt(v reflect.Value) int64 { return v.Convert(reflect.TypeFor[int64]()).Int() }

func widened(v reflect.Value) any {
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return v.Uint()
	}
	return v.Float()
}
