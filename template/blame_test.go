package template

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// blamed executes a template both ways, and checks what must hold for every
// template: the same bytes, and a source for each of them.
func blamed(tb testing.TB, tmpl *Template, v *view.View, o BlameOptions) *Blame {
	tb.Helper()
	want, wantErr := tmpl.Render(tb.Context(), v, o.Each)
	b, err := tmpl.Blame(tb.Context(), v, o)
	if (err != nil) != (wantErr != nil) {
		tb.Fatalf("%s:\nblame fails with %v, render with %v", tmpl.cfg.Source, err, wantErr)
	}
	if err != nil {
		return nil
	}
	if string(b.Data) != string(want) {
		tb.Fatalf("%s:\nblame gives  %q\nrender gives %q", tmpl.cfg.Source, b.Data, want)
	}
	at := 0
	for i := range b.Parts {
		p := &b.Parts[i]
		if p.From != at || p.To <= p.From || p.Line < 1 {
			tb.Fatalf("%s: part %+v begins at %d, want %d", tmpl.cfg.Source, p, p.From, at)
		}
		if p.Literal && !strings.Contains(tmpl.cfg.Source, string(b.Data[p.From:p.To])) {
			tb.Fatalf("%s: literal part %q is not in the template", tmpl.cfg.Source, b.Data[p.From:p.To])
		}
		at = p.To
	}
	if at != len(b.Data) {
		tb.Fatalf("%s: %d of %d bytes have a source", tmpl.cfg.Source, at, len(b.Data))
	}
	return b
}

// TestBlame_CostsNothingUntilAsked: a template that was asked for the sources of its
// lines executes as before, with as many allocations as one that was never asked.
func TestBlame_CostsNothingUntilAsked(t *testing.T) {
	v := bigView(500)
	const source = `{{range tree "web"}}{{if .Value}}{{.Key | toUpper}}={{.Value}};{{end}}{{end}}{{range $i, $k := ls "web/dir01"}}{{$i}}{{end}}`
	render := func(tmpl *Template) float64 {
		return testing.AllocsPerRun(20, func() {
			if _, err := tmpl.Render(t.Context(), &v, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	asked, never := parsed(t, source), parsed(t, source)
	before := render(asked)
	allocations := testing.AllocsPerRun(1, func() {
		if _, err := asked.Blame(t.Context(), &v, BlameOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	if after, other := render(asked), render(never); after > before+2 || after > other+2 {
		t.Errorf("%v allocations after it was asked, %v before, %v of one that was never asked", after, before, other)
	}
	if allocations < 2*before {
		t.Errorf("blame makes %v allocations, a plain execution %v: the test measures nothing", allocations, before)
	}
}

// TestBlame_Corpus executes every template of the tests and examples.
func TestBlame_Corpus(t *testing.T) {
	t.Parallel()
	v := viewOfExamples()
	golden, err := filepath.Glob("testdata/golden/*.tmpl")
	if err != nil || len(golden) < 3 {
		t.Fatal("there are no templates", err)
	}
	for _, name := range golden {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Parse(Config{Name: name, Source: string(source)})
		if err != nil {
			t.Fatal(err)
		}
		blamed(t, tmpl, &v, BlameOptions{})
	}
	n := 0
	for _, file := range []string{"testdata/cases.json", "testdata/edges.json"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct{ Tpl string }
		if err := json.Unmarshal(raw, &cases); err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			if strings.Contains(c.Tpl, "timestamp") {
				continue // It gives another text at each call.
			}
			tmpl, err := Parse(Config{Name: "case", Source: c.Tpl, Allow: []string{AllowEnv, AllowFile}, Dir: t.TempDir(), LookupEnv: func(string) (string, bool) { return "west", true }})
			if err != nil {
				continue
			}
			blamed(t, tmpl, &v, BlameOptions{})
			n++
		}
	}
	if n < 100 {
		t.Fatalf("only %d cases were executed", n)
	}
}

// blameSource is a random template that is made of everything through which a
// value may decide text.
func (w *writer) blameSource() string {
	var b strings.Builder
	b.WriteString(`{{$x := 1}}{{$y := "q"}}{{define "pair"}}[{{with .}}{{print .}}{{end}}]{{end}}{{define "one"}}<{{.}}{{if eq (print .) "7"}}!{{end}}{{key "b/two"}}>{{end}}{{$m := dict "k" "v"}}`)
	for range 1 + w.IntN(4) {
		b.WriteString("line\n" + w.blamePart(0))
	}
	return b.String() + "{{$x}}{{$y}}\nend\n"
}

func (w *writer) blamePart(depth int) string {
	parts := []string{
		`{{key "b/one"}}`, `{{$y = key "b/two"}}`, `{{keyOrDefault "a/d0/e0/k1" "none"}}`, `{{$y}}`, `{{$x}}`, `{{len (tree "a/d1")}}`, `{{leader "night"}}`,
		`{{isLeader "night"}}`, `{{template "one" (key "b/one")}}`, `{{executeTemplate "one" $y | toUpper}}`, `{{version "b"}}`, `{{agent.ID}}`, `{{template "pair" $y}}`,
		`{{(index (members "api" "any") 0).Host}}`, `{{$_ := set $m "k" (key "b/one")}}`, `{{index $m "k"}}`, `{{scratch.Set "a" (key "b/two")}}`, `{{scratch.Get "a"}}`,
		`{{$s := scratch}}{{$s.Set "b" (key "b/one")}}{{$s.Get "b"}}`, `{{with scratch}}{{.Set "c" (key "b/two")}}{{.Get "b"}}{{end}}`, `{{with scratch}}{{"c" | .Get}}{{end}}`,
		`{{$x = add $x 1}}`, "text\n", w.loop(), `{{$p := key "b/one"}}{{$p | sha256Hex}}`, `{{members "api" | len}}`,
	}
	if depth > 3 || w.IntN(3) == 0 {
		return w.pick(parts...)
	}
	inner := w.blamePart(depth+1) + w.blamePart(depth+1)
	if depth == 0 {
		inner += w.blamePart(depth + 1)
	}
	cond := w.pick(`keyExists "a/d1/e1/k1"`, `eq (key "b/one") "7"`, `$x`, `eq $y "7"`, `isLeader "night"`, `gt (len (members "api" "any")) 2`, `.`, `and (key "b/one") (key "b/two")`)
	other := w.pick("", "", "{{else}}no\n", "{{else}}"+w.blamePart(depth+1), `{{else if eq $y "v"}}v`)
	loop := w.pick(`members "api" "any"`, `$e := members "api" "any"`, `$i, $e := tree "a/d1"`, `loop 3`, `split "/" (key "b/one")`, `$k, $v := tree "b" | byKey`, `ls "a"`, `$x = loop 2`, `tree "a" | explode`)
	leave := w.pick("", "", "", "{{if "+cond+"}}{{break}}{{end}}", "{{if "+cond+"}}{{continue}}{{end}}", `{{if eq (print .) "7"}}{{continue}}{{end}}`, "{{$y}}{{if "+cond+"}}{{$y = \"z\"}}{{continue}}{{end}}", "{{if $y}}{{$x = 3}}{{continue}}{{else}}{{if $x}}{{break}}{{end}}{{end}}")
	return w.pick(
		"{{if "+cond+"}}"+inner+other+"{{end}}", "{{with "+cond+"}}"+inner+"{{.}}"+other+"{{end}}",
		"{{range "+loop+"}}"+leave+inner+"{{.}}\n"+leave+inner+w.pick("", "", "{{else}}none\n")+"{{end}}",
		"{{range members \"api\" \"any\"}}server {{.Host}}:{{.Port}};"+leave+"\n{{if eq .Weight 2}}two{{$y = .Host}}{{end}}{{end}}",
	)
}

// without is the output without what names a value.
func (b *Blame) without(v Value) string {
	var text strings.Builder
	names := func(u Value) bool { return u.Covers(v) || v.Covers(u) }
	for i := range b.Parts {
		p := &b.Parts[i]
		if slices.ContainsFunc(p.Values, names) || slices.ContainsFunc(p.Why(), func(r Reason) bool { return slices.ContainsFunc(r.Values, names) }) {
			continue
		}
		text.Write(b.Data[p.From:p.To])
	}
	return text.String()
}

// change changes one value of the view, and names it.
func (w *writer) change(v view.View) (view.View, Value) {
	switch w.IntN(4) {
	case 0:
		g, _ := v.Group("api")
		next := *g
		next.Members = slices.Clone(g.Members)
		i := w.IntN(len(next.Members))
		name := next.Members[i].Znode
		switch w.IntN(3) {
		case 0:
			next.Members = slices.Delete(next.Members, i, i+1)
		case 1:
			next.Members[i].Weight = 1 + w.IntN(3)
		default:
			next.Members[i].Host = fmt.Sprintf("10.1.0.%d", w.IntN(9))
		}
		return v.With(&next), Value{ValueMember, "api", name}
	case 1:
		return v.With(&view.Leader{Name: "night", ID: w.pick("x", "y"), Mine: w.IntN(2) == 0, Term: 3}), Value{Kind: ValueElection, Name: "night"}
	case 2:
		path := w.pick("one", "two")
		return changedKey2(v, "b", path, w.pick("", "7", "v", "a/b/7")), Value{ValueKey, "b", path}
	}
	path := w.pick("d1/e1/k1", "d0/e0/k1", "d1", "d1/e2/k9")
	return changedKey2(v, "a", path, w.pick("", "7", "v", "-")), Value{ValueKey, "a", path}
}

// changedKey2 sets a key; "-" deletes it.
func changedKey2(v view.View, name, path, value string) view.View {
	tree, _ := v.Tree(name)
	e := tree.Keys().Edit()
	if value == "-" {
		e.Delete(path)
	} else {
		e.Set(path, view.Key{Value: []byte(value)})
	}
	next := *tree
	return v.With(view.NewTree(next, e.Done()))
}

func blameView() view.View {
	v := view.View{Agent: view.Agent{ID: "h1", Host: "h1"}}
	v = v.With(view.TreeOf("a", "/a", map[string]string{"d0/e0/k1": "7", "d1/e1/k1": "v", "d1/e2/k2": "7", "d2/e1": "", "one": "x"}))
	v = v.With(view.TreeOf("b", "/b", map[string]string{"one": "7", "two": "v"}))
	v = v.With(&view.Leader{Name: "night", ID: "x", Term: 3, Mine: true})
	g := &view.Group{Name: "api"}
	for i := range 4 {
		g.Members = append(g.Members, view.Member{Host: fmt.Sprintf("10.0.0.%d", i), Port: 80, Znode: fmt.Sprintf("m%d", i), Status: view.StatusUp, Weight: 1 + i%2, Czxid: int64(i)})
	}
	return v.With(g)
}

// blameProgram executes a random template, changes one value, and executes it
// again: what does not name the value is the same.
func blameProgram(tb testing.TB, seed uint64) bool {
	tb.Helper()
	w := &writer{rand.New(rand.NewPCG(seed, 3))}
	source := w.blameSource()
	tmpl, err := Parse(Config{Name: "t.tmpl", Source: source, MissingKeyOK: w.IntN(2) == 0})
	if err != nil {
		return false
	}
	v := blameView()
	before := blamed(tb, tmpl, &v, BlameOptions{})
	compared := false
	for range 4 {
		next, value := w.change(v)
		after := blamed(tb, tmpl, &next, BlameOptions{})
		if before != nil && after != nil {
			compared = true
			if a, b := before.without(value), after.without(value); a != b {
				tb.Fatalf("seed %d: %s\na change of %v changes what does not name it:\n%q\n%q\nwhole:\n%q\n%q", seed, source, value, a, b, before.Data, after.Data)
			}
		}
		v, before = next, after
	}
	return compared
}

// TestBlame_Random executes random templates.
func TestBlame_Random(t *testing.T) {
	t.Parallel()
	n := 0
	for seed := range uint64(testhelp.Rounds(100, 300)) {
		if blameProgram(t, seed) {
			n++
		}
	}
	if n < testhelp.Rounds(33, 100) {
		t.Fatalf("only %d templates were executed twice", n)
	}
}

// FuzzBlame executes further random templates.
func FuzzBlame(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(7200)) // A break keeps what {{range $x = ...}} has set last.
	f.Fuzz(func(t *testing.T, seed uint64) { blameProgram(t, seed) })
}

// TestBlame_Examples executes the templates of the examples on random data. Each
// printed value has a name, and a change of one value changes only what names it.
func TestBlame_Examples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../examples/*/*.tmpl")
	if err != nil || len(files) < 3 {
		t.Fatal("there are no examples", err)
	}
	changed := map[string]int{}
	for seed := range uint64(50) {
		w := &writer{rand.New(rand.NewPCG(seed, 7))}
		v := view.View{Agent: view.Agent{ID: "h1", Host: "h1"}}
		v = v.With(view.TreeOf("shop", "/shop", map[string]string{"timeouts/connect": "2s", "timeouts/read": "3s", "banner": "hi", "other": "1"}))
		for _, name := range []string{"api", "web"} {
			g := &view.Group{Name: name}
			for i := range 1 + w.IntN(4) {
				g.Members = append(g.Members, view.Member{ID: fmt.Sprint("m", i), Znode: fmt.Sprint("m", i), Host: fmt.Sprintf("10.0.0.%d", i), Port: 80, Status: view.StatusUp, Weight: 1, Czxid: int64(i)})
			}
			v = v.With(g)
		}
		for _, name := range files {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := Parse(Config{Name: name, Source: string(source), Allow: []string{AllowEnv}})
			if err != nil {
				t.Fatal(err)
			}
			now := v
			before := blamed(t, tmpl, &now, BlameOptions{})
			for range 4 {
				next, value := w.changeShop(now)
				after := blamed(t, tmpl, &next, BlameOptions{})
				if before != nil && after != nil {
					if string(before.Data) != string(after.Data) {
						changed[name]++
					}
					if a, b := before.without(value), after.without(value); a != b {
						t.Fatalf("seed %d: %s: a change of %v changes what does not name it:\n%q\n%q", seed, name, value, a, b)
					}
				}
				now, before = next, after
				if after == nil {
					continue
				}
				for i := range after.Parts {
					if p := &after.Parts[i]; !p.Literal && len(p.Values) == 0 {
						t.Fatalf("seed %d: %s: %q has no source", seed, name, after.Data[p.From:p.To])
					}
				}
			}
		}
	}
	if len(changed) < 2 {
		t.Errorf("only %v were changed", changed)
	}
}

// changeShop changes one value of the examples' data, and names it.
func (w *writer) changeShop(v view.View) (view.View, Value) {
	if w.IntN(2) == 0 {
		path := w.pick("timeouts/connect", "timeouts/read", "banner", "other")
		return changedKey2(v, "shop", path, w.pick("1s", "2s", "9s", "-")), Value{ValueKey, "shop", path}
	}
	name := w.pick("api", "web")
	g, _ := v.Group(name)
	next := *g
	next.Members = slices.Clone(g.Members)
	i := w.IntN(len(next.Members))
	znode := next.Members[i].Znode
	switch {
	case w.IntN(3) == 0 && len(next.Members) > 1:
		next.Members = slices.Delete(next.Members, i, i+1)
	case w.IntN(2) == 0:
		next.Members[i].Weight = 1 + w.IntN(5)
	default:
		next.Members[i].Host = fmt.Sprintf("10.1.0.%d", w.IntN(9))
	}
	return v.With(&next), Value{ValueMember, name, znode}
}

// A scratch in a variable or in the dot carries keys as the function scratch does.
func TestBlame_ScratchByAnotherName(t *testing.T) {
	t.Parallel()
	v := view.View{}.With(view.TreeOf("b", "/b", map[string]string{"one": "1"}))
	for _, source := range []string{
		`{{$s := scratch}}{{$s.Set "a" (key "b/one")}}{{$s.Get "a"}}`,
		`{{with scratch}}{{.Set "a" (key "b/one")}}{{.Get "a"}}{{end}}`,
		`{{with scratch}}{{key "b/one" | .Set "a"}}{{end}}{{with scratch}}{{"a" | .Get}}{{end}}`,
		`{{$s := scratch}}{{$s.MapSet "m" "k" (key "b/one")}}{{range $s.MapValues "m"}}{{.}}{{end}}`,
		`{{define "put"}}{{.Set "a" (key "b/one")}}{{end}}{{template "put" scratch}}{{(scratch).Get "a"}}`,
	} {
		tmpl, err := Parse(Config{Name: "t", Source: source})
		if err != nil {
			t.Fatal(err)
		}
		b, err := tmpl.Blame(t.Context(), &v, BlameOptions{})
		if err != nil {
			t.Fatal(err)
		}
		named := false
		for i := range b.Parts {
			p := &b.Parts[i]
			named = named || string(b.Data[p.From:p.To]) == "1" && slices.Contains(p.Values, Value{ValueKey, "b", "one"})
		}
		if !named {
			t.Errorf("%s: no part names the key: %+v", source, b.Parts)
		}
	}
}
