package template

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// TestFields_AreInTheTable: docs/security.md says of each field that a template can print
// who writes it, what it may contain and what bounds it.
func TestFields_AreInTheTable(t *testing.T) {
	data, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | "); ok && strings.HasPrefix(line, "| `") && strings.Contains(name, ".") && !strings.Contains(name, "/") && strings.Count(rest, " |") >= 3 {
			rows[name] = true
		}
	}
	todo, fields := slices.Collect(maps.Keys(checked)), map[string]bool{}
	todo = append(todo, reflect.TypeFor[Each]())
	seen := map[reflect.Type]bool{}
	for len(todo) > 0 {
		typ := todo[0]
		todo = todo[1:]
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if seen[typ] || typ.Kind() != reflect.Struct || !strings.Contains(typ.PkgPath(), "zkagent") {
			continue
		}
		seen[typ] = true
		for f := range typ.Fields() {
			if f.IsExported() {
				fields[typ.Name()+"."+f.Name] = true
				todo = append(todo, f.Type)
			}
		}
		for m := range reflect.PointerTo(typ).Methods() {
			if m.Type.NumIn() == 1 && m.Type.NumOut() > 0 {
				fields[typ.Name()+"."+m.Name] = true
				todo = append(todo, m.Type.Out(0))
			}
		}
	}
	for name := range fields {
		if !rows[name] {
			t.Errorf("docs/security.md has no row for %s", name)
		}
	}
	for name := range rows {
		if !fields[name] {
			t.Errorf("docs/security.md has a row for %s, which does not exist", name)
		}
	}
}

// A template that prints a whole member, or a whole leader, prints no raw text.
func TestFields_WholeValuesHaveNoRawText(t *testing.T) {
	const hostile = "x;\x60id\x60 }"
	m := view.Member{ID: "a", Host: "10.0.0.1", Port: 1, Status: view.StatusUp}
	m.SetLabels(map[string]string{"zone": hostile})
	v := view.View{}.With(&view.Group{Name: "api", Members: []view.Member{m}}).
		With(&view.Leader{Name: "e", RawID: hostile, Znode: "/e/" + hostile, Term: 1}).
		With(&view.Groups{Name: "all", RawNames: []string{hostile}, Groups: []*view.Group{{Name: "g", Members: []view.Member{m}}}})
	text := "{{ range members \"api\" }}{{ . }}{{ print . }}{{ .RawLabels }}{{ end }}{{ leader \"e\" }}{{ groups \"all\" }}{{ members \"api\" }}"
	data, err := parsed(t, text).Render(t.Context(), &v, nil)
	if err != nil || strings.Contains(string(data), "id") || !strings.Contains(string(data), "10.0.0.1") {
		t.Errorf("got %q, %v", data, err)
	}
	data, err = parsed(t, "{{ rawLeaderID \"e\" | toJSON }} {{ rawGroupNames \"all\" | toJSON }}").Render(t.Context(), &v, nil)
	if err != nil || strings.Count(string(data), "id") != 2 {
		t.Errorf("got %q, %v", data, err)
	}
}
