package template

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/davecgh/go-spew/spew"

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

// dumper prints values for debugging, maps in order.
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

// grouped groups members, or groups, by their keys.
func grouped[E any, K comparable](list []E, keys func(E) []K) map[K][]E {
	m := map[K][]E{}
	for _, e := range list {
		for _, key := range keys(e) {
			m[key] = append(m[key], e)
		}
	}
	return m
}

// byTag groups members, or the groups of a set, by their tags.
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
	switch {
	case v == "" && isInt:
		v = "0"
	case v == "":
		return "_no_" + name + "_", nil
	}
	if !isInt {
		return v, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return "", failf(nil, "", "byMeta: label %q of member %q is not an integer", name, member.ID)
	}
	return fmt.Sprintf("%05d", n), nil
}

// sortByLength sorts texts by how long they are, and pairs by how long their paths are.
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
	values := make([]any, 0, len(dict))
	for _, k := range sortedKeys(dict) {
		values = append(values, dict[k])
	}
	return values
}

var errNegative = errors.New("count must not be negative")
