package template

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// statusView has a group with one member of each status, one that is held, and a
// group without members that are up.
func statusView(t *testing.T) view.View {
	t.Helper()
	v, err := LoadFixture([]byte(`
groups:
  api:
    members:
      - {id: a, host: 10.0.0.1, port: 80}
      - {id: b, host: 10.0.0.2, port: 80, status: draining, weight: 0}
      - {id: c, host: 10.0.0.3, port: 80, status: maintenance}
      - {id: d, host: 10.0.0.4, port: 80, status: down}
      - {id: e, host: 10.0.0.5, port: 80, held: true}
      - {id: f, host: 10.0.0.6, port: 80, held: true, status: draining}
  away: {members: [{id: b, host: 10.0.0.2, port: 80, status: draining}]}
  none: {}
  keep: {on_empty: keep}
  fail: {on_empty: fail}
  render: {on_empty: render}
group_sets:
  all: {api: {members: [{id: a, host: h, port: 1}, {id: b, host: h, port: 2, status: down}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMembers_Status: a template gets what may get traffic, and the rest by name.
func TestMembers_Status(t *testing.T) {
	v := statusView(t)
	for _, c := range []struct{ source, want string }{
		{`{{ range members "api" }}{{ .ID }}{{ end }}`, "ae"},
		{`{{ range service "api" }}{{ .ID }}{{ if .Held }}!{{ end }}{{ end }}`, "ae!"},
		{`{{ range members "api" "any" }}{{ .ID }}{{ end }}`, "abcdef"},
		{`{{ range members "api" "draining" }}{{ .ID }}{{ end }}`, "bf"},
		{`{{ range members "api" "up" "draining" }}{{ .ID }}{{ end }}`, "abef"},
		{`{{ range members "api" "maintenance" "down" }}{{ .ID }}{{ end }}`, "cd"},
		{`[{{ range members "none" "draining" }}{{ .ID }}{{ end }}]`, "[]"}, // no member drains, which is no error
		{`{{ range groups "all" }}{{ .Name }}{{ range .Members }}{{ .ID }}{{ end }}{{ end }}`, "apia"},
		{`{{ range members "all/api" }}{{ .ID }}{{ end }}`, "a"},
	} {
		if got, err := render(t, Config{Source: c.source}, &v, nil); err != nil || got != c.want {
			t.Errorf("%s: got %q %v, want %q", c.source, got, err, c.want)
		}
	}
	for _, c := range []struct{ word, want string }{
		{"passing", "members that are up are what"}, {"drain", `"draining"`}, {"maint", `"maintenance"`}, {"nothing", "any, up, draining, maintenance, down"},
	} {
		_, err := render(t, Config{Source: `{{ members "api" "` + c.word + `" }}`}, &v, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.word, err)
		}
	}
}

// TestMembers_Else: while no member of a group is up, a template with an else for it is
// rendered, and one without keeps its file.
func TestMembers_Else(t *testing.T) {
	v := statusView(t)
	for _, c := range []struct {
		source, want string
		class        error
	}{
		{`{{ range members "none" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range members "away" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ with members "none" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ if members "none" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ if gt (len (service "none")) 0 }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range $z, $m := members "none" | byLabel "zone" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ $m := members "none" }}{{ range $m }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range members (print "no" "ne") }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ "none" | members | len }}{{ range members "none" }}{{ else }}{{ end }}`, "0", nil},
		{`{{ range members "all/none" }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range members "render" }}x{{ end }}`, "", nil},
		{`{{ range members "none" }}x{{ end }}`, "", ErrEmptyGroup},
		{`{{ range members "away" }}x{{ end }}`, "", ErrEmptyGroup},
		{`{{ range members "api" }}x{{ else }}y{{ end }}{{ range members "none" }}x{{ end }}`, "", ErrEmptyGroup},
		{`{{ range members (print "api") }}x{{ else }}y{{ end }}{{ range members "none" }}x{{ end }}`, "", ErrEmptyGroup},
		{`{{ range members "keep" }}x{{ else }}down{{ end }}`, "", ErrEmptyGroup},
		{`{{ range members "all/none" }}x{{ end }}`, "", ErrEmptyGroup},
	} {
		got, err := render(t, Config{Source: c.source}, &v, nil)
		if got != c.want || !errors.Is(err, c.class) {
			t.Errorf("%s: got %q %v, want %q %v", c.source, got, err, c.want, c.class)
		}
	}
	if _, err := render(t, Config{Source: `{{ range members "fail" }}x{{ else }}y{{ end }}`}, &v, nil); err == nil || errors.Is(err, ErrEmptyGroup) {
		t.Errorf("on_empty = fail: %v", err)
	}
}

// TestMembers_Each: for_each goes over who may get traffic, and an element
// without members is rendered where the template has an else.
func TestMembers_Each(t *testing.T) {
	v := statusView(t)
	list, err := Elements(&v, view.Source{Kind: view.KindGroup, Name: "api"})
	if err != nil || len(list) != 2 || list[0].Key != "a" || list[1].Key != "e" {
		t.Errorf("elements of a group: %v %v", list, err)
	}
	if _, err = Elements(&v, view.Source{Kind: view.KindGroup, Name: "away"}); !errors.Is(err, ErrEmptyGroup) {
		t.Errorf("elements of a group without members that are up: %v", err)
	}
	twice := view.View{}.With(&view.Group{Name: "api", Members: []view.Member{
		{ID: "a", Host: "10.0.0.1", Status: view.StatusUp, Czxid: 5}, {ID: "a", Host: "10.0.0.2", Status: view.StatusUp, Czxid: 7}, {ID: "a", Host: "10.0.0.3", Status: view.StatusUp, Czxid: 6},
	}})
	list, err = Elements(&twice, view.Source{Kind: view.KindGroup, Name: "api"})
	if err != nil || len(list) != 1 || list[0].Value.(view.Member).Host != "10.0.0.2" { //nolint:forcetypeassert // a panic fails the test
		t.Errorf("members with one id: %v %v", list, err)
	}
	empty := &Each{Key: "web", Value: []view.Member{}}
	for _, c := range []struct {
		source, want string
		class        error
	}{
		{`{{ range .Value }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range $.Value }}x{{ else }}down{{ end }}`, "down", nil},
		{`{{ range .Value }}x{{ end }}`, "", ErrEmptyGroup},
		{`{{ range .Value }}{{ if .Value }}x{{ else }}y{{ end }}{{ end }}`, "", ErrEmptyGroup},
	} {
		got, err := render(t, Config{Source: c.source}, &v, empty)
		if got != c.want || !errors.Is(err, c.class) {
			t.Errorf("%s: got %q %v, want %q %v", c.source, got, err, c.want, c.class)
		}
	}
}

// TestKey_Holds: a key that is not there is of a class of its own, whatever
// error_on_missing_key says.
func TestKey_Holds(t *testing.T) {
	v := view.View{}.With(view.TreeOf("web", "/web", map[string]string{"a": "", "b/c": "1"}))
	for _, missing := range []bool{false, true} {
		for _, c := range []struct {
			source, want string
			class        error
		}{
			{`{{ key "web/a" }}.`, ".", nil},
			{`{{ keyOrDefault "web/x" "d" }}`, "d", nil},
			{`{{ keyOrAbsent "web/x" "d" }}`, "d", nil},
			{`{{ keyOrAbsent "web/a" "d" }}.{{ keyOrDefault "web/a" "d" }}`, ".d", nil},
			{`{{ keyExists "web/x" }}`, "false", nil},
			{`{{ key "web/x" }}`, "", ErrNoKey},
			{`{{ with key "web/x" }}{{ . }}{{ end }}`, "", ErrNoKey},
			{`{{ define "x" }}{{ key "web/x" }}{{ end }}{{ executeTemplate "x" }}`, "", ErrNoKey},
			{`{{ safeLs "web/x" }}`, "", ErrNoKey},
			{`{{ safeTree "web/x" }}`, "", ErrNoKey},
			{`{{ range safeTree "web/x" }}{{ .Key }}{{ end }}`, "", ErrNoKey},
		} {
			got, err := render(t, Config{Source: c.source, MissingKeyOK: !missing}, &v, nil)
			if got != c.want || !errors.Is(err, c.class) {
				t.Errorf("%s (%v): got %q %v, want %q %v", c.source, missing, got, err, c.want, c.class)
			}
		}
	}
}

// TestLabels_Maps: sprig's functions on maps take the labels of a member.
func TestLabels_Maps(t *testing.T) {
	v, err := LoadFixture([]byte(`groups: {api: {members: [{id: a, host: h, port: 1, labels: {zone: eu, rack: r1}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, want, wrong string }{
		{`{{ get .Labels "zone" }}`, "eu", ""},
		{`{{ get .Labels "none" }}`, "", ""},
		{`{{ hasKey .Labels "zone" }} {{ hasKey .Labels "none" }}`, "true false", ""},
		{`{{ keys .Labels | join "," }}`, "rack,zone", ""},
		{`{{ values .Labels | toJSON }}`, `["r1","eu"]`, ""},
		{`{{ dig "zone" "none" .Labels }} {{ dig "x" "none" .Labels }}`, "eu none", ""},
		{`{{ pick .Labels "zone" | toJSON }}`, `{"zone":"eu"}`, ""},
		{`{{ merge (dict "a" "b") .Labels | toJSON }}`, `{"a":"b","rack":"r1","zone":"eu"}`, ""},
		{`{{ dig "a" "x" "none" (dict "a" .Labels) }}`, "none", ""},
		{`{{ dig "zone" "b" "none" .Labels }}`, "", "a map is expected"},
		{`{{ dig 1 "none" .Labels }}`, "", "the keys of dig are texts"},
		{`{{ dig .Labels "none" }}`, "", "dig takes keys, a default and a map"},
		{`{{ get "x" "zone" }}`, "", "a map is expected"},
	} {
		got, err := render(t, Config{Source: `{{ range members "api" }}` + c.source + `{{ end }}`}, &v, nil)
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: got %q %v, want %q %q", c.source, got, err, c.want, c.wrong)
		}
		if err != nil && strings.Contains(err.Error(), "interface") {
			t.Errorf("%s: the error names Go's types: %v", c.source, err)
		}
	}
}

// TestLabels_Missing: a member lacks a label that the template names. The error names
// the member and the ways out, and each way out works.
func TestLabels_Missing(t *testing.T) {
	v, err := LoadFixture([]byte(`
groups:
  api: {members: [{id: a, host: h, port: 1, labels: {zone: eu}}, {id: b, host: h, port: 2}]}
  other: {members: [{id: unread, host: h, port: 1}]}
group_sets:
  all: {one: {members: [{id: c, host: h, port: 1}, {id: d, host: h, port: 1}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, want, wrong string }{
		{`{{ range members "api" }}{{ .Labels.zone }},{{ end }}`, "", `t.tmpl:1:36: member "b" of group "api" has no label "zone": `},
		{`{{ range groups "all" }}{{ range .Members }}{{ .Labels.zone }}{{ end }}{{ end }}`, "", `member "c" of group "one" (and 1 more) has no label`},
		{`{{ range members "api" }}{{ .Labels.zone }}{{ (parseJSON "{}").port }}{{ end }}`, "", `no entry for key "port"`},
		{`{{ range members "api" }}{{ get .Labels "zone" }},{{ end }}`, "eu,,", ""},
		{`{{ range members "api" }}{{ dig "zone" "none" .Labels }},{{ end }}`, "eu,none,", ""},
	} {
		got, err := render(t, Config{Source: c.source}, &v, nil)
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && (!strings.Contains(err.Error(), c.wrong) || !errors.Is(err, ErrMissing)) {
			t.Errorf("%s: got %q %v, want %q %q", c.source, got, err, c.want, c.wrong)
		}
	}
	got, err := render(t, Config{Source: `{{ range members "api" }}{{ .Labels.zone }},{{ end }}`, MissingKeyOK: true}, &v, nil)
	if got != "eu,," || err != nil {
		t.Errorf("got %q %v", got, err)
	}
}

// TestDecodeJSON: integers stay integers, and parseJSON stays as it is.
func TestDecodeJSON(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{`{{ (parseJSON "{\"n\":10000000}").n }}`, "1e+07"},
		{`{{ (decodeJSON "{\"n\":10000000}").n }}`, "10000000"},
		{`{{ (decodeJSON "{\"n\":[{\"m\":9007199254740993}]}").n }}`, "[map[m:9007199254740993]]"},
		{`{{ (decodeJSON "{\"n\":1.5,\"e\":1e3}") | toJSON }}`, `{"e":1000,"n":1.5}`},
		{`{{ decodeJSON "" }}`, "map[]"},
		{`{{ (decodeJSON "{\"n\":99999999999999999999}").n }}`, "1e+20"},
	} {
		if got, err := render(t, Config{Source: c.source}, &view.View{}, nil); err != nil || got != c.want {
			t.Errorf("%s: got %q %v, want %q", c.source, got, err, c.want)
		}
	}
	if _, err := render(t, Config{Source: `{{ decodeJSON "{" }}`}, &view.View{}, nil); err == nil || !strings.Contains(err.Error(), "not JSON") {
		t.Errorf("got %v", err)
	}
}

// TestCredential: a credential of the unit, where the template is allowed to.
func TestCredential(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "db"), []byte("s3cret-word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) { return dir, name == "CREDENTIALS_DIRECTORY" }
	got, err := render(t, Config{Source: `{{ credential "db" }}.`, Allow: []string{AllowCredential}, LookupEnv: env}, &view.View{}, nil)
	if err != nil || got != "s3cret-word." {
		t.Errorf("got %q %v", got, err)
	}
	for _, name := range []string{"none", "../x", "", ".."} {
		if _, err = render(t, Config{Source: `{{ credential "` + name + `" }}`, Allow: []string{AllowCredential}, LookupEnv: env}, &view.View{}, nil); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
	if _, err = Parse(Config{Source: `{{ credential "db" }}`, Allow: []string{AllowEnv, AllowFile}}); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("without allow: %v", err)
	}
	_, err = render(t, Config{Source: `{{ credential "db" | parseInt }}`, Allow: []string{AllowCredential}, LookupEnv: env}, &view.View{}, nil)
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error shows the credential: %v", err)
	}
}

// TestMembers_ByNode: the order of consul-template, also of a loop that is not stored.
func TestMembers_ByNode(t *testing.T) {
	members := "[{id: s2, node: b, host: 10.0.0.1, port: 1}, {id: s3, node: a, host: 10.0.0.2, port: 1}, {id: s1, node: b, host: 10.0.0.3, port: 1}]"
	drained := strings.ReplaceAll(members, "port: 1", "port: 1, status: draining")
	v, err := LoadFixture([]byte("groups: {api: {members: " + members + "}, drained: {members: " + drained + "}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{
		`{{ range members "api" }}{{ .ID }} {{ end }}`, `{{ range $m := service "api" "up" }}{{ $m.ID }} {{ end }}`, `{{ $l := members "api" "any" }}{{ range $l }}{{ .ID }} {{ end }}`,
		`{{ range members "drained" "draining" }}{{ .ID }} {{ end }}`,
	} {
		for byNode, want := range map[bool]string{true: "s3 s1 s2 ", false: "s2 s3 s1 "} {
			if got, err := render(t, Config{Source: source, ByNode: byNode}, &v, nil); err != nil || got != want {
				t.Errorf("%s, %v: got %q, %v, want %q", source, byNode, got, err, want)
			}
		}
	}
}
