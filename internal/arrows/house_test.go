package arrows

//go:generate go test -run TestMap -update

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
