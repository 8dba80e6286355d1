package arrows

//go:generate go test -run TestMap -update

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the parts of the agent may grow to.
const (
	agentLines = 4400 // of package agent, which wires and holds no rule
	mostFields = 20   // of a struct of an engine, plain values apart
)

// mostMethods bounds the methods of one type, by package: a type with more is a package
// that hides in a type.
var mostMethods = map[string]int{"cmd/zkagent": 40, "agent": 76, "internal/apply": 50, "internal/files": 40, "internal/hook": 40, "internal/web": 50, "fleet": 60}

// engines are the packages whose structs are counted.
var engines = []string{"agent", "internal/apply", "internal/files", "internal/hook", "internal/web"}

// plain are structs that only carry values: configs, and what is shown as JSON.
var plain = regexp.MustCompile(`(Config|Options|Status|Block|Fixture|Record|View)$|^(Config|Options|Status|Run|Output)$`)

// room is one package of the house.
type room struct {
	name, doc    string
	files, lines int
	widest       string // struct with the most fields
	fields       int
	wide         []string // structs over the limit
	methods      map[string]int
}

// TestHouse prints the packages with their sizes (run it with -v), and keeps the
// limits.
func TestHouse(t *testing.T) {
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue
		}
		r := measure(t, name, p)
		t.Logf("%-20s %3d files %6d lines  widest %s (%d)  %s", r.name, r.files, r.lines, r.widest, r.fields, r.doc)
		if slices.Contains(engines, name) {
			for _, s := range r.wide {
				t.Errorf("%s has a struct over %d fields: %s", name, mostFields, s)
			}
		}
		for of, n := range r.methods {
			if most := mostMethods[name]; most > 0 && n > most {
				t.Errorf("%s: %s has %d methods, more than %d", name, of, n, most)
			}
		}
		if name == "agent" && r.lines > agentLines {
			t.Errorf("package agent has %d lines, more than %d: what is a rule belongs into an engine", r.lines, agentLines)
		}
	}
}

// measure parses the files of a package.
func measure(t *testing.T, name string, p listed) room {
	t.Helper()
	r := room{name: name, doc: p.Doc, files: len(p.GoFiles), methods: map[string]int{}}
	for _, file := range p.GoFiles {
		src, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		r.lines += bytes.Count(src, []byte("\n"))
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil {
				of := f.Recv.List[0].Type
				if p, ok := of.(*ast.StarExpr); ok {
					of = p.X
				}
				if id, ok := of.(*ast.Ident); ok {
					r.methods[id.Name]++
				}
			}
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			fields := 0
			for _, f := range s.Fields.List {
				fields += max(len(f.Names), 1)
			}
			if fields > r.fields {
				r.widest, r.fields = spec.Name.Name, fields
			}
			if fields > mostFields && !plain.MatchString(spec.Name.Name) {
				r.wide = append(r.wide, fmt.Sprintf("%s (%d)", spec.Name.Name, fields))
			}
			return true
		})
	}
	return r
}

// TestArrows_NoneIsUnused: an allowance that nothing uses is an arrow that
// somebody took away.
func TestArrows_NoneIsUnused(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range list(t) {
		imports[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
	for name, targets := range allowed {
		used, there := imports[name]
		if !there {
			t.Errorf("the table has %s, and there is no such package", name)
			continue
		}
		for _, target := range targets {
			if !slices.Contains(used, module+target) {
				t.Errorf("%s may import %s, and does not", name, target)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the map of CONTRIBUTING.md")

// TestMap: the map of CONTRIBUTING.md is the one of the tree.
func TestMap(t *testing.T) {
	var b strings.Builder
	b.WriteString("| package | what it is | imports of ours |\n|---|---|---|\n")
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || isFree(name) {
			continue
		}
		doc := strings.Join(strings.Fields(p.Doc), " ")
		if rest, ok := strings.CutPrefix(doc, "Package "); ok {
			_, doc, _ = strings.Cut(rest, " ")
		}
		var imports []string
		for _, target := range allowed[name] {
			imports = append(imports, "`"+target+"`")
		}
		slices.Sort(imports)
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, strings.ReplaceAll(doc, "|", "\\|"), strings.Join(imports, ", "))
	}
	b.WriteString("| `cmd/zkagent` | parses command lines, calls one function of a package, prints | anything |\n")
	file := filepath.Join("..", "..", "CONTRIBUTING.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), "## Map of the code\n\n")
	have, after, found := strings.Cut(rest, "\n\n")
	if !ok || !found {
		t.Fatal("CONTRIBUTING.md has no map of the code")
	}
	want := strings.TrimSuffix(b.String(), "\n")
	if *update {
		if err := os.WriteFile(file, []byte(before+"## Map of the code\n\n"+want+"\n\n"+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Error("the map of CONTRIBUTING.md is not that of the tree; run make gen")
	}
}

// TestArchitecture: the house of docs/architecture.md names every package, and no
// other.
func TestArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Packages")
	section, _, _ = strings.Cut(section, "\n## ")
	words := strings.FieldsFunc(section, func(r rune) bool { return strings.ContainsRune(" \n`|,;:()", r) })
	var names []string
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || isFree(name) {
			continue
		}
		names = append(names, name)
		if !slices.Contains(words, name) {
			t.Errorf("docs/architecture.md does not name %s", name)
		}
	}
	for _, word := range words {
		if strings.HasPrefix(word, "internal/") && !slices.Contains(names, strings.TrimSuffix(word, ".")) {
			t.Errorf("docs/architecture.md names %s, and there is no such package", word)
		}
	}
}
