package template

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	texttemplate "text/template"
	"text/template/parse"
	"time"

	"github.com/zkagent/zkagent/view"
)

// plainly executes a template by text/template alone, as it was written.
func plainly(tb testing.TB, source string, v *view.View) (string, error) {
	tb.Helper()
	st := &state{t: &Template{cfg: Config{Name: "t.tmpl", Source: source}}, view: v, last: -1}
	funcs := texttemplate.FuncMap{}
	for name, f := range functionTable() {
		funcs[name] = f.make(st)
	}
	tmpl, err := texttemplate.New("t.tmpl").Funcs(funcs).Option("missingkey=error").Parse(source)
	if err != nil {
		tb.Fatalf("%s: %v", source, err)
	}
	st.tmpl, st.t.trees = tmpl, map[string]*parse.Tree{}
	for _, t := range tmpl.Templates() {
		st.t.trees[t.Name()] = t.Tree
	}
	var out bytes.Buffer
	st.out = &limited{st: st, buf: &out, max: DefaultMaxOutput}
	err = tmpl.Execute(&out, nil)
	return out.String(), err
}

// writer makes random templates.
type writer struct{ *rand.Rand }

func (w *writer) pick(list ...string) string { return list[w.IntN(len(list))] }

// loop is a loop over keys.
func (w *writer) loop() string {
	list := w.pick(
		`tree "a"`, `tree "a"`, `tree "/a/"`, `tree "a/d1"`, `tree "a/d2/e1"`, `ls "a"`, `ls "a/d0"`, `ls "a/d1/e2"`, `safeTree "a"`,
		`safeLs "a/d2"`, `tree "b"`, `tree (printf "%s/d1" "a")`, `tree "a/none"`, `tree "a" | len | loop`, `(tree "a")`,
	)
	decl := w.pick("", "", "", "$p := ", "$p := ", "$i, $p := ")
	var b strings.Builder
	for range 1 + w.IntN(4) {
		b.WriteString(w.part(decl))
	}
	end := w.pick("", "", "", "", "{{else}}none")
	return "{{range " + decl + list + "}}" + b.String() + end + "{{end}}"
}

// part is a part of the body of a loop.
func (w *writer) part(decl string) string {
	parts := []string{
		"text\n", "{{/* nothing */}} - ", "{{print .}};", "{{if $x}}x{{end}}", "{{$.}}", "{{$y := 1}}{{$y}}",
	}
	field := w.pick("Key", "Value", "Path")
	if decl != "" && !strings.HasPrefix(decl, "$i") {
		parts = append(parts, "{{$p."+field+"}}", "{{printf \"%T\" $p}}", "{{with $p}}{{."+field+"}}{{end}}")
	}
	if strings.HasPrefix(decl, "$i") {
		parts = append(parts, "{{$i}}:")
	}
	return w.pick(append(parts,
		"{{with .}}{{printf \"%v\" .}}{{end}}", "{{break}}", "{{$x = 2}}", "{{key \"b/one\"}}", "{{template \"pair\" .}}",
		"{{executeTemplate \"pair\" .}}", "{{"+"print . | len}}", "{{range loop 2}}{{.}}{{end}}", "{{version \"b\"}}",
		w.fields(field), w.fields(field), w.fields(field), w.fields(field), w.fields(field), w.fields(field),
	)...)
}

// fields prints fields of the key in some way.
func (w *writer) fields(f string) string {
	return strings.ReplaceAll(w.pick(
		"<{{.F}}>", "{{.F}}={{.F}}\n", "{{.F | toUpper}}", "{{if .F}}{{.F}}{{else}}no{{end}}", "{{with .F}}{{.}}{{end}}",
		"{{$x := .F}}{{$x | toJSON}}", "{{range split \"/\" .F}}{{.}};{{end}}", "{{if eq .F \"7\"}}seven{{end}}",
		"{{range $i, $e := split \"/\" .F}}{{$i}}{{$e}}{{if $i}}{{break}}{{end}}{{end}}", "{{- .F -}}", "{{.F | shellQuote}}",
		"{{if gt (len .F) 9}}{{.F | parseInt}}{{end}}", "{{index (split \"/\" .F) 1}}", "{{.F | sha256Hex | printf \"%.8s\"}}",
	), ".F", "."+f)
}

// source is a whole template.
func (w *writer) source() string {
	var b strings.Builder
	b.WriteString("{{$x := 1}}{{define \"pair\"}}[{{with .}}{{print .}}{{end}}]{{end}}")
	for range 1 + w.IntN(3) {
		loop := w.loop()
		switch w.IntN(6) {
		case 0: // In a loop of another kind.
			loop = "{{range loop 3}}" + loop + "{{end}}"
		case 1: // In a template that is called twice, in both ways.
			loop = strings.ReplaceAll(loop, "$x", "$")
			name := fmt.Sprintf("n%d", b.Len())
			loop = fmt.Sprintf("{{define %q}}%s{{end}}{{template %q}}{{executeTemplate %q | toUpper}}{{template %q}}", name, strings.ReplaceAll(loop, "$ = 2", "$"), name, name, name)
		case 2:
			loop = "{{if keyExists \"b/one\"}}" + loop + "{{end}}"
		}
		b.WriteString("line\n" + loop)
	}
	return b.String()
}

// edit changes a tree at random.
func (w *writer) edit(v view.View, name string) view.View {
	tree, _ := v.Tree(name)
	e := tree.Keys().Edit()
	for range 1 + w.IntN(1<<w.IntN(8)) {
		path := fmt.Sprintf("d%d/e%d/k%d", w.IntN(3), w.IntN(3), w.IntN(60))
		switch w.IntN(8) {
		case 0, 1:
			e.Delete(path)
		case 2:
			e.Set(w.pick("d1", "d0/e1", "one", "two"), view.Key{Value: []byte(w.pick("", "v", "12"))})
		default:
			e.Set(path, view.Key{Value: []byte(w.pick("", "7", "12345678901", "a/b/c", "x\n<&>{{", "\xff\x00", "long/text "+fmt.Sprint(w.IntN(99))))})
		}
	}
	next := *tree
	next.Generation++
	return v.With(view.NewTree(next, e.Done()))
}

var plainPlace = regexp.MustCompile(`t\.tmpl:(\d+):(\d+): executing`)

// memoProgram renders a random template for a series of random views. What comes
// out is what text/template alone makes of each; errors have the same place.
func memoProgram(tb testing.TB, seed uint64) (kept int) {
	tb.Helper()
	w := &writer{Rand: rand.New(rand.NewPCG(seed, 1))}
	source := w.source()
	tmpl, err := Parse(Config{Name: "t.tmpl", Source: source, Timeout: time.Hour})
	if err != nil {
		return 0 // Such as a break in a wrong place.
	}
	v := view.View{}.With(view.TreeOf("a", "/a", map[string]string{"two": "2"})).With(view.TreeOf("b", "/b", map[string]string{"one": "1"}))
	first := v
	for range 8 {
		switch w.IntN(12) {
		case 0:
			v = w.edit(v, "b")
		case 1:
			v, first = first, v // A former state comes back.
		default:
			v = w.edit(v, "a")
		}
		want, wantErr := plainly(tb, source, &v)
		got, err := tmpl.Render(tb.Context(), &v, nil)
		if (err == nil) != (wantErr == nil) {
			tb.Fatalf("seed %d: %s\ngot error %v, want %v", seed, source, err, wantErr)
		}
		if err == nil && string(got) != want {
			tb.Fatalf("seed %d: %s\ngot  %q\nwant %q", seed, source, got, want)
		}
		if err != nil {
			samePlace(tb, source, err, wantErr)
		}
		if tmpl.memo.Load() != nil {
			kept++
		}
	}
	return kept
}

// samePlace compares the place of an error with that of text/template.
func samePlace(tb testing.TB, source string, err, want error) {
	tb.Helper()
	all := plainPlace.FindAllStringSubmatch(want.Error(), -1)
	e, ok := errors.AsType[*Error](err)
	if !ok || len(all) == 0 {
		tb.Fatalf("%s\ngot %v, want %v", source, err, want)
	}
	last := all[len(all)-1]
	if got := fmt.Sprintf("%d:%d", e.Line, e.Column-1); got != last[1]+":"+last[2] {
		tb.Fatalf("%s\ngot %v, want %v", source, err, want)
	}
}

func TestMemo_AgainstPlain(t *testing.T) {
	t.Parallel()
	kept := 0
	for seed := range uint64(24) {
		kept += memoProgram(t, seed)
	}
	if kept < 20 {
		t.Errorf("in %d renders only something was kept", kept)
	}
}

func FuzzMemo(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(1000 + seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { memoProgram(t, seed) })
}

// changedKey is the view with another value of one key.
func changedKey(v view.View, path, value string) view.View {
	tree, _ := v.Tree("web")
	e := tree.Keys().Edit()
	e.Set(path, view.Key{Value: []byte(value)})
	return v.With(view.NewTree(*tree, e.Done()))
}

// A change of one key of 4,000 executes the body for the keys of one chunk, for plain
// text and for templates. The allocations show it: text/template allocates for each key
// whose body it executes.
func TestMemo_Allocations(t *testing.T) {
	v := bigView(4000)
	source := `{{range $p := tree "web"}}{{if $p.Value}}{{$p.Key | toUpper}}={{.Value}}{{end}}{{end}}`
	tmpl, err := Parse(Config{Name: "t", Source: source, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	render := func() {
		if _, err := tmpl.Render(t.Context(), &v, nil); err != nil {
			t.Fatal(err)
		}
	}
	whole := testing.AllocsPerRun(1, func() {
		tmpl.memo.Store(nil)
		render()
	})
	i := 0
	got := testing.AllocsPerRun(10, func() {
		i++
		v = changedKey(v, "dir07/key00007", fmt.Sprint(i))
		render()
	})
	if got > whole/10 || whole < 8000 {
		t.Errorf("%v allocations for one changed key, %v for all", got, whole)
	}
}

// What is kept is bounded, and goes when nothing is printed by a loop any more.
func TestMemo_Bounds(t *testing.T) {
	t.Parallel()
	const loops = maxPieces + 100
	keys := map[string]string{"on": "1"}
	for i := range loops {
		keys[fmt.Sprintf("d%d/k", i)] = "v"
	}
	v := view.View{}.With(view.TreeOf("web", "/web", keys))
	source := fmt.Sprintf(`{{if keyExists "web/on"}}{{range $i := loop %d}}{{range tree (printf "web/d%%d" $i)}}{{.Value | toLower}}{{end}}{{end}}{{end}}`, loops)
	tmpl, err := Parse(Config{Name: "t", Timeout: time.Hour, Source: source})
	if err != nil {
		t.Fatal(err)
	}
	data, err := tmpl.Render(t.Context(), &v, nil)
	if err != nil || len(data) != loops {
		t.Fatalf("got %d bytes, %v", len(data), err)
	}
	if m := tmpl.memo.Load(); m == nil || len(m.pieces) > maxPieces || &m.data[0] != &data[0] {
		t.Error("more is kept than the output and a bounded number of pieces")
	}
	delete(keys, "on")
	v = v.With(view.TreeOf("web", "/web", keys))
	if _, err := tmpl.Render(t.Context(), &v, nil); err != nil || tmpl.memo.Load() != nil {
		t.Errorf("the former output is kept, %v", err)
	}
}

// BenchmarkMemo changes one key of many that are all in the file.
func BenchmarkMemo(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		for name, body := range map[string]string{"fields": "{{.Key}}={{.Value}}\n", "template": "{{.Key | toUpper}}={{.Value}}\n"} {
			for _, kept := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/kept=%v", name, n, kept), func(b *testing.B) {
					v, tmpl := bigView(n), parsed(b, `{{range tree "web"}}`+body+`{{end}}`)
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						v = changedKey(v, "dir07/key00007", fmt.Sprint(i%10))
						if !kept {
							tmpl.memo.Store(nil)
						}
						if _, err := tmpl.Render(b.Context(), &v, nil); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
