package template

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

func parsed(tb testing.TB, source string) *Template {
	tb.Helper()
	tmpl, err := Parse(Config{Name: "t.tmpl", Source: source, Allow: []string{AllowEnv, AllowFile}})
	if err != nil {
		tb.Fatal(err)
	}
	return tmpl
}

func TestUses(t *testing.T) {
	for source, want := range map[string]string{
		`{{ key "web/timeout" }}`:                                      "config.web/timeout",
		`{{ "web/a/b" | key }}`:                                        "config.web/a/b",
		`{{ if keyExists "web/a" }}{{ end }}`:                          "config.web/a",
		`{{ with $x := key "web/a" }}{{ end }}`:                        "config.web/a",
		`{{ keyOrDefault "web/a" "x" | toUpper }}`:                     "config.web/a",
		`{{ range ls "web/b/" }}{{ end }}{{ range tree "db" }}{{end}}`: "config.web/b/* config.db/*",
		`{{ version "web" }}`:                                          "config.web (version)",
		`{{ range members "api" }}{{ else }}{{ key "w/x" }}{{ end }}`:  "group.api config.w/x",
		`{{ range service "api" "up" }}{{ end }}`:                      "group.api",
		`{{ members "api" | byLabel "zone" | len }}`:                   "group.api",
		`{{ range groups "all" }}{{ end }}`:                            "groups.all",
		`{{ if isLeader "n" }}{{ (leader "n").ID }}{{ end }}`:          "election.n election.n",
		`{{ define "x" }}{{ key "a/b" }}{{ end }}{{ template "x" }}`:   "config.a/b",
		`{{ template "x" key "a/b" }}{{ define "x" }}{{ end }}`:        "config.a/b",
		`{{ key (printf "web/hosts/%s/x" agent.Host) }}`:               "config.web/hosts/* agent",
		`{{ key (printf "%s/x" agent.Host) }}`:                         "dynamic:config agent",
		`{{ key .Key }}{{ members .Value }}`:                           "dynamic:config dynamic:group",
		`{{ file "a" }}{{ env "B" }}{{ agent.ID }}`:                    "agent file:a env:B",
		`{{ and (key "web/a") (isLeader "n") }}`:                       "config.web/a election.n",
	} {
		d := parsed(t, source).Uses()
		var got []string
		for _, u := range d.Uses {
			got = append(got, u.String())
		}
		for _, k := range d.Dynamic {
			got = append(got, "dynamic:"+string(k))
		}
		if d.Agent {
			got = append(got, "agent")
		}
		for _, f := range d.Files {
			got = append(got, "file:"+f)
		}
		for _, e := range d.Env {
			got = append(got, "env:"+e)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s\n got %s\nwant %s", source, s, want)
		}
	}
}

func TestDeps_Undeclared(t *testing.T) {
	d := parsed(t, "{{ key \"wbe/a\" }}\n  {{ members \"all/api\" }}{{ members \"x/y\" }}{{ leader \"n\" }}").Uses()
	declared := []view.Source{{Kind: view.KindConfig, Name: "web"}, {Kind: view.KindGroups, Name: "all"}, {Kind: view.KindElection, Name: "n"}}
	want := "t.tmpl:1:4: config \"wbe\" is not declared; did you mean \"web\"?\nt.tmpl:2:29: group \"x/y\" is not declared"
	if err := d.Undeclared(declared); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	got := fmt.Sprint(d.Sources(declared))
	if got != "[config.wbe election.n group.x/y groups.all]" {
		t.Errorf("sources %s", got)
	}
	dynamic := parsed(t, `{{ key .Key }}`).Uses().Sources(declared)
	if !slices.Equal(dynamic, declared[:1]) {
		t.Errorf("dynamic sources %v", dynamic)
	}
}

// set returns the view with one key of config web changed, sharing the rest.
func set(v view.View, key, value string) view.View {
	t, _ := v.Tree("web")
	edit := t.Keys().Edit()
	edit.Set(key, view.Key{Value: []byte(value)})
	return v.With(view.NewTree(view.Tree{Name: "web", Path: t.Path, Generation: t.Generation + 1, Layout: t.Layout, Last: t.Last + 1}, edit.Done()))
}

func TestTemplate_Stale(t *testing.T) {
	old := viewOfExamples()
	api := func(port int) view.View {
		return old.With(&view.Group{Name: "api", Path: "/api", OnEmpty: "keep", Last: 99, Members: []view.Member{{Host: "h", Port: port}}})
	}
	for _, c := range []struct {
		source   string
		old, now view.View
		want     bool
	}{
		{`{{ key "web/timeout" }}`, old, old, false},
		{`{{ key "web/timeout" }}`, old, set(old, "other", "x"), false},
		{`{{ key "web/timeout" }}`, old, set(old, "timeout", "31s"), true},
		{`{{ key "web/timeout" }}`, old, set(old, "timeout", "30s"), false},
		{`{{ keyExists "web/other" }}`, old, set(old, "other", ""), true},
		{`{{ ls "web/backends" }}`, old, set(old, "backends/z", "x"), true},
		{`{{ ls "web/backends" }}`, old, set(old, "backendsz", "x"), false},
		{`{{ tree "web" }}`, old, set(old, "x", "x"), true},
		{`{{ version "web" }}`, old, set(old, "timeout", "30s"), true},
		{`{{ key .Key }}`, old, set(old, "x", "x"), true},
		{`{{ key .Key }}`, old, api(1), false},
		{`{{ members .Key }}`, old, api(1), true},
		{`{{ members "api" }}`, api(1), api(1), false},
		{`{{ members "api" }}`, api(1), api(2), true},
		{`{{ members "all/api" }}`, old, api(2), false},
		{`{{ leader "nightly" }}`, old, old.With(&view.Leader{Name: "nightly", Path: "/nightly", ID: "host1", Term: 18}), true},
		{`{{ key "web/timeout" }}`, view.View{}, old, true},
		{`{{ key .Key }}`, old, old.Without(view.Source{Kind: view.KindConfig, Name: "web"}), true},
		{`plain`, view.View{}, old, false},
		{`{{ agent.ID }}`, view.View{}, old, true},
	} {
		if got := parsed(t, c.source).Stale(&c.old, &c.now); got != c.want {
			t.Errorf("%s: got %v, want %v", c.source, got, c.want)
		}
	}
	if !parsed(t, "plain").Stale(nil, &old) {
		t.Error("the first view is not stale")
	}
}

func TestElements(t *testing.T) {
	v := viewOfExamples()
	for kind, want := range map[view.Source]string{
		{Kind: view.KindGroups, Name: "all"}: "api=2;",
		{Kind: view.KindGroup, Name: "api"}:  "api-1=10.0.0.1:8080;api-2=[2001:db8::2]:8080;",
		{Kind: view.KindConfig, Name: "web"}: "backends/a=10.0.0.1:80;backends/b=10.0.0.2:80;backends/pool/c=10.0.0.3:80;json={\"port\":80};timeout=30s;",
	} {
		elements, err := Elements(&v, kind)
		if err != nil {
			t.Fatal(err)
		}
		source := `{{ .Key }}={{ .Value }};`
		switch kind.Kind {
		case view.KindGroups:
			source = `{{ .Key }}={{ len .Value }};`
		case view.KindGroup:
			source = `{{ .Key }}={{ .Value.Address }};`
		default:
		}
		var got strings.Builder
		for i := range elements {
			text, err := parsed(t, source).Render(t.Context(), &v, &elements[i])
			if err != nil {
				t.Fatal(err)
			}
			got.Write(text)
			if !elements[i].Equal(&elements[i]) || elements[i].Equal(nil) {
				t.Errorf("%s does not equal itself", elements[i].Key)
			}
		}
		if got.String() != want {
			t.Errorf("%v: got %s, want %s", kind, got.String(), want)
		}
	}
	if _, err := Elements(&v, view.Source{Kind: view.KindGroup, Name: "none"}); err == nil {
		t.Error("no error for a source that is not there")
	}
	for onEmpty, ok := range map[string]bool{"": false, "keep": false, "fail": false, "render": true} {
		_, err := parsed(t, "x").Render(t.Context(), &v, &Each{Key: "a", Value: []view.Member{}, OnEmpty: onEmpty})
		if (err == nil) != ok || errors.Is(err, ErrEmptyGroup) != (onEmpty == "" || onEmpty == "keep") {
			t.Errorf("an element without members, on_empty %q: %v", onEmpty, err)
		}
	}
	empty := v.With(&view.Group{Name: "api", OnEmpty: "keep"})
	if _, err := Elements(&empty, view.Source{Kind: view.KindGroup, Name: "api"}); err == nil {
		t.Error("an empty group with on_empty = keep removes its files")
	}
}

func TestLoadFixture_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"groups: {a: {members: [{port: 1}]}}":              "has no host",
		"groups: {a: {members: [{host: h, port: 70000}]}}": "port 70000",
		"gruops: {}":             "gruops",
		"configs: {a: {k: [1]}}": "is a list",
		"group_sets: {s: {a: {members: [{host: ''}]}}}": "has no host",
		"elections: {n: {term: x}}":                     "is not of the type",
	} {
		if _, err := LoadFixture([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// bigView has config web with n keys.
func bigView(n int) view.View {
	edit := (*view.Keys)(nil).Edit()
	for i := range n {
		edit.Set(fmt.Sprintf("dir%02d/key%05d", i%50, i), view.Key{Value: fmt.Appendf(nil, "value %d", i)})
	}
	return view.View{}.With(view.NewTree(view.Tree{Name: "web", Path: "/web", Generation: 1}, edit.Done()))
}

// BenchmarkOneKeyOf10000 changes one key of 10,000 with 50 templates of which
// one uses it: what is executed is counted.
func BenchmarkOneKeyOf10000(b *testing.B) {
	v := bigView(10000)
	var templates []*Template
	for i := range 50 {
		templates = append(templates, parsed(b, fmt.Sprintf(`{{ key "web/dir%02d/key%05d" }} {{ key "web/dir%02d/key%05d" }}`, i, i, i, i+50)))
	}
	executed := 0
	for i := 0; b.Loop(); i++ {
		next := set(v, "dir07/key00007", strconv.Itoa(i))
		for _, t := range templates {
			if !t.Stale(&v, &next) {
				continue
			}
			executed++
			if _, err := t.Render(b.Context(), &next, nil); err != nil {
				b.Fatal(err)
			}
		}
		v = next
	}
	b.ReportMetric(float64(executed)/float64(b.N), "executions/op")
}

// BenchmarkRenderTree renders all of 1,000 keys.
func BenchmarkRenderTree(b *testing.B) {
	v := bigView(1000)
	t := parsed(b, `{{ range tree "web" }}{{ .Key }} = {{ .Value }}
{{ end }}`)
	for b.Loop() {
		if _, err := t.Render(b.Context(), &v, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestStale_OneExecution counts what the benchmark above measures.
func TestStale_OneExecution(t *testing.T) {
	v := bigView(1000)
	next := set(v, "dir07/key00007", "new")
	executed := 0
	for i := range 50 {
		if parsed(t, fmt.Sprintf(`{{ key "web/dir%02d/key%05d" }}`, i, i)).Stale(&v, &next) {
			executed++
		}
	}
	if executed != 1 {
		t.Errorf("%d templates are executed", executed)
	}
}
