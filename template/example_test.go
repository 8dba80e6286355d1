package template_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// A template renders a view: a config and the leader of an election here.
func ExampleParse() {
	page, err := template.Parse(template.Config{
		Name: "page", Source: `color = {{ key "site/color" }}{{ with (leader "db").ID }}, db = {{ . }}{{ end }}`,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var data view.View
	data = data.With(view.TreeOf("site", "/config/site", map[string]string{"color": "green"}))
	data = data.With(&view.Leader{Name: "db", ID: "db-2"})
	text, err := page.Render(context.Background(), &data, nil)
	fmt.Println(string(text), err)
	_, err = template.Parse(template.Config{Name: "page", Source: "{{ colour }}"})
	var wrong *template.Error
	fmt.Println(errors.As(err, &wrong))
	// Output:
	// color = green, db = db-2 <nil>
	// true
}

// data is the view that a fixture describes.
func data(fixture string) view.View {
	v, err := template.LoadFixture([]byte(fixture))
	if err != nil {
		panic(err)
	}
	return v
}

// render renders a template for the data of a fixture.
func render(source, fixture string) string {
	t, err := template.Parse(template.Config{Name: "page", Source: source})
	if err != nil {
		panic(err)
	}
	v := data(fixture)
	text, err := t.Render(context.Background(), &v, nil)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// A program renders a template again only when data that it uses has changed.
func ExampleTemplate() {
	page, err := template.Parse(template.Config{Name: "page", Source: `{{ key "site/color" }}`})
	if err != nil {
		panic(err)
	}
	var before view.View
	for _, keys := range []map[string]string{{"color": "blue", "size": "7"}, {"color": "blue", "size": "8"}, {"color": "green", "size": "8"}} {
		now := before.With(view.TreeOf("site", "/config/site", keys))
		if !page.Stale(&before, &now) {
			fmt.Println("nothing to do")
			continue
		}
		text, err := page.Render(context.Background(), &now, nil)
		fmt.Println(string(text), err)
		before = now
	}
	// Output:
	// blue <nil>
	// nothing to do
	// green <nil>
}

// The text of a template shows what it depends on, and which names the settings do not declare.
func ExampleDeps() {
	page, err := template.Parse(template.Config{
		Name: "page", Source: `{{ key "site/color" }}` + "\n" + `{{ range members "api" }}{{ .Address }}{{ end }}{{ env "HOME" }}`, Allow: []string{template.AllowEnv},
	})
	if err != nil {
		panic(err)
	}
	deps := page.Uses()
	show := func(use template.Use) { fmt.Printf("line %d: %s\n", use.Line, use) }
	for _, use := range deps.Uses {
		show(use)
	}
	fmt.Println("environment:", deps.Env)
	fmt.Println(deps.Undeclared([]view.Source{{Kind: view.KindConfig, Name: "site"}}))
	// Output:
	// line 1: config.site/color
	// line 2: group.api
	// environment: [HOME]
	// page:2:10: group "api" is not declared
}

// A template with for_each is rendered for each member of a group.
func ExampleEach() {
	host, err := template.Parse(template.Config{Name: "host", Source: `{{ .Key }} = {{ .Value.Address }}`})
	if err != nil {
		panic(err)
	}
	v := data(`groups: {api: {members: [{id: api-1, host: 10.0.0.1, port: 80}, {id: api-2, host: 10.0.0.2, port: 80}]}}`)
	elements, err := template.Elements(&v, view.Source{Kind: view.KindGroup, Name: "api"})
	if err != nil {
		panic(err)
	}
	for _, each := range elements {
		text, err := host.Render(context.Background(), &v, &each)
		fmt.Println(string(text), err)
	}
	// Output:
	// api-1 = 10.0.0.1:80 <nil>
	// api-2 = 10.0.0.2:80 <nil>
}

// A test of a template lays its own data over those that all tests have in common.
func ExampleFixture() {
	common, err := template.ParseFixture([]byte("agent: {id: web-1}\nconfigs: {site: {color: blue, port: 0644}}"))
	if err != nil {
		panic(err)
	}
	own, err := template.ParseFixture([]byte("configs: {site: {color: green}}"))
	if err != nil {
		panic(err)
	}
	v, err := own.Over(common).View()
	if err != nil {
		panic(err)
	}
	site, _ := v.Tree("site")
	color, _ := site.Get("color")
	port, _ := site.Get("port")
	fmt.Printf("%s %s %s\n", v.Agent.ID, color.Value, port.Value)
	// Output: web-1 green 0644
}

// Tests of a template add up to a report of the lines and branches that none of them rendered.
func ExampleCoverage() {
	var coverage template.Coverage
	page, err := template.Parse(template.Config{Name: "page", Coverage: &coverage, Source: `{{ with (leader "db").ID }}led by {{ . }}{{ else }}
no leader
{{ end }}`})
	if err != nil {
		panic(err)
	}
	v := data(`elections: {db: {id: db-1, term: 7}}`)
	if _, err = page.Render(context.Background(), &v, nil); err != nil {
		panic(err)
	}
	percent := func(c template.Covered) int { return 100 * c.BranchesTaken / c.Branches }
	describe := func(m template.Missed) string {
		if m.Branch == "" {
			return fmt.Sprintf("line %d", m.Line)
		}
		return fmt.Sprintf("%d:%d: %s", m.Line, m.Column, m.Branch)
	}
	covered := coverage.Covered()
	fmt.Println(percent(covered), "% of the branches")
	for _, missed := range covered.Missed {
		fmt.Println(describe(missed))
	}
	// Output:
	// 50 % of the branches
	// 1:9: with is never empty
	// line 2
}

// Each line of the output has the values that stand in it, and the conditions that let it in.
func ExampleBlame() {
	page, err := template.Parse(template.Config{Name: "page", Source: `{{ if eq (key "site/color") "blue" }}{{ range members "api" -}}
server {{ .Address }};
{{ end }}{{ end }}`})
	if err != nil {
		panic(err)
	}
	v := data(`{configs: {site: {color: blue}}, groups: {api: {members: [{id: api-1, host: 10.0.0.1, port: 80}]}}}`)
	blame, err := page.Blame(context.Background(), &v, template.BlameOptions{})
	if err != nil {
		panic(err)
	}
	because := func(r template.Reason) { fmt.Println("  because of", r.Text, r.Values) }
	from := func(p *template.Part) {
		fmt.Printf("  %q from %d:%d %s\n", blame.Data[p.From:p.To], p.Line, p.Column, p.Values)
	}
	explain := func(line template.Line) {
		fmt.Printf("line %d has %s\n", line.Number, line.Values())
		for _, reason := range line.Why() {
			because(reason)
		}
		for _, part := range line.Parts {
			from(part)
		}
	}
	for _, line := range blame.Lines(1, 0) {
		explain(line)
	}
	// Output:
	// line 1 has [group.api member api-1]
	//   because of if eq (key "site/color") "blue" [config.site/color]
	//   because of range members "api" [group.api]
	//   "server " from 2:1 []
	//   "10.0.0.1:80" from 2:11 [group.api member api-1]
	//   ";\n" from 2:22 []
}

// The condition that left a text out explains why a member is missing in a file.
func ExampleUnmet() {
	page, err := template.Parse(template.Config{Name: "page", Source: `{{ range members "api" }}{{ if eq .Labels.zone "north" }}server {{ .Address }};{{ end }}{{ end }}`})
	if err != nil {
		panic(err)
	}
	v := data(`groups: {api: {members: [{id: api-1, host: 10.0.0.1, port: 80, labels: {zone: south}}]}}`)
	blame, err := page.Blame(context.Background(), &v, template.BlameOptions{Missing: "10.0.0.1"})
	if err != nil {
		panic(err)
	}
	for _, unmet := range blame.Unmet {
		fmt.Printf("line %d: not %s, of %s\n", unmet.Line, unmet.Text, unmet.Of)
	}
	// Output: line 1: not if eq .Labels.zone "north", of [group.api member api-1]
}

// A value covers another one when a change of that one is its change, too.
func ExampleValue() {
	prefix := template.Value{Kind: template.ValueKeys, Name: "site", Path: "limits"}
	for _, key := range []string{"limits/read", "color"} {
		value := template.Value{Kind: template.ValueKey, Name: "site", Path: key}
		fmt.Println(prefix, "covers", value, prefix.Covers(value))
	}
	// Output:
	// config.site/limits/* covers config.site/limits/read true
	// config.site/limits/* covers config.site/color false
}

// An editor shows what a function does.
func ExampleFunction() {
	for _, f := range template.Functions() {
		if f.Name == "keyOrDefault" {
			fmt.Println(f.Signature)
			fmt.Println(f.Summary)
			fmt.Println(f.Example, "->", f.Result)
		}
	}
	// Output:
	// keyOrDefault(string, string) string
	// value of a key, or the default when it is absent or empty
	// {{ keyOrDefault "web/color" "blue" }} -> blue
}

// A warning is about text that its author may have meant as an action.
func ExampleWarning() {
	page, err := template.Parse(template.Config{Name: "page", Source: `{% if debug %}verbose{% endif %}`})
	if err != nil {
		panic(err)
	}
	for _, w := range page.Warnings() {
		fmt.Printf("%s:%d:%d: %s\n", w.Template, w.Line, w.Column, w.Text)
	}
	// Output: page:1:1: {% if is written to the file as it is: actions are Go's text/template, as in {{ if ... }}{{ end }}
}

// The function groups returns the groups of a set. Each has the tags of its members.
func ExampleGroup() {
	fmt.Print(render(`{{ range groups "all" }}{{ .Name }} {{ len .Members }} {{ join "," .Tags }}
{{ end }}`, `
group_sets:
  all:
    api: {members: [{id: api-1, host: 10.0.0.1, port: 80, labels: {canary: "true"}}]}
    db: {members: [{id: db-1, host: 10.0.0.2, port: 80}]}
`))
	// Output:
	// api 1 canary
	// db 1
}

// The function leader always returns a Leader. Its ID is empty while nobody leads.
func ExampleLeader() {
	for _, fixture := range []string{"elections: {db: {id: db-1, term: 7}}", "elections: {db: {}}"} {
		fmt.Println(render(`{{ $db := leader "db" }}{{ if $db.ID }}{{ $db.ID }} in term {{ $db.Term }}, here: {{ $db.Mine }}{{ else }}nobody{{ end }}`, fixture))
	}
	// Output:
	// db-1 in term 7, here: false
	// nobody
}

// The functions ls and tree return pairs: a key has its whole path, and the rest after the prefix.
func ExamplePair() {
	fmt.Print(render(`{{ range tree "web/backends" }}{{ .Path }} {{ .Key }} = {{ .Value }}
{{ end }}`, "configs: {web: {backends: {a: 10.0.0.1, pool: {b: 10.0.0.2}}}}"))
	// Output:
	// web/backends/a a = 10.0.0.1
	// web/backends/pool/b pool/b = 10.0.0.2
}

// The function scratch keeps values while the template is executed, such as the first member of each zone.
func ExampleScratch() {
	fmt.Print(render(`{{ range members "api" }}{{ scratch.MapSetX "first" .Labels.zone .ID }}{{ end -}}
{{ range scratch.MapValues "first" }}{{ . }}
{{ end }}`, `
groups:
  api:
    members:
      - {id: api-1, host: 10.0.0.1, port: 80, labels: {zone: north}}
      - {id: api-2, host: 10.0.0.2, port: 80, labels: {zone: north}}
      - {id: api-3, host: 10.0.0.3, port: 80, labels: {zone: east}}
`))
	// Output:
	// api-3
	// api-1
}
