package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// habits are words that have a plainer one. A page, a help text (which the
// reference repeats) and the documentation of an exported name use the plain one.
var habits = map[string]*regexp.Regexp{
	"previous":          regexp.MustCompile(`(?i)\bformer(ly)?\b`),
	"latest":            regexp.MustCompile(`(?i)\bnewest\b`),
	"is created":        regexp.MustCompile(`(?i)\b(is|are) made\b`),
	"continue":          regexp.MustCompile(`(?i)\b(go|goes|going|went) on\b`),
	"the text contains": regexp.MustCompile(`(?i)\bthe text has\b`),
	"without limit":     regexp.MustCompile(`(?i)\bfor ever\b`),
	"exits with N":      regexp.MustCompile(`(?i)\bends with \d`),
}

// code is what a page sets in code type: names that a text cannot change.
var code = regexp.MustCompile("`[^`]*`")

func habitsIn(t *testing.T, place, text string) {
	t.Helper()
	for plain, habit := range habits {
		if found := habit.FindString(text); found != "" {
			t.Errorf("%s: %q: write %q: %s", place, found, plain, text)
		}
	}
}

// TestHabits: the pages and the documentation of exported names use plain words.
func TestHabits(t *testing.T) {
	for _, page := range pages(t) {
		for line := range strings.SplitSeq(read(t, page), "\n") {
			habitsIn(t, page, code.ReplaceAllString(line, ""))
		}
	}
	for _, name := range []string{"agent", "config", "election", "fleet", "grpcresolver", "recipe", "registry", "session", "template", "view", "zktest"} {
		p := exported(t, filepath.Join("..", name))
		documents(p, func(what, text string) {
			for line := range strings.SplitSeq(text, "\n") {
				habitsIn(t, name+"."+what, line)
			}
		})
	}
}

// exported reads the documentation of a package.
func exported(t *testing.T, dir string) *doc.Package {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir:
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/zkagent/zkagent/"+filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// documents calls fn with each document of a package: its own, and those of its
// exported names, fields and methods.
func documents(p *doc.Package, fn func(what, text string)) {
	fn("doc", p.Doc)
	values := slices.Concat(p.Consts, p.Vars)
	funcs := p.Funcs
	for _, typ := range p.Types {
		fn(typ.Name, typ.Doc)
		values = append(append(values, typ.Consts...), typ.Vars...)
		funcs = append(append(funcs, typ.Funcs...), typ.Methods...)
		ast.Inspect(typ.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				fn(typ.Name+"'s field", f.Doc.Text()+f.Comment.Text())
			}
			return true
		})
	}
	for _, v := range values {
		fn(v.Names[0], v.Doc)
	}
	for _, f := range funcs {
		fn(f.Name, f.Doc)
	}
}
