package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// library are the packages for users: what they export is for users.
var library = []string{"session", "session/kerberos", "view", "recipe", "election", "registry", "config", "fleet", "template", "zktest"}

var flagWord = regexp.MustCompile(`(^|[\s("'=])--[a-z][a-z-]+`)

// TestLibrary_NamesNoFlag: an error of the library names no flag of the command line,
// which its users do not have.
func TestLibrary_NamesNoFlag(t *testing.T) {
	for _, p := range list(t) {
		if !slices.Contains(library, strings.TrimPrefix(p.ImportPath, module)) {
			continue
		}
		for _, file := range p.GoFiles {
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && flagWord.MatchString(strings.Trim(lit.Value, "`\"")) {
					t.Errorf("%s: the library names a flag of the command line: %s", set.Position(lit.Pos()), lit.Value)
				}
				return true
			})
		}
	}
}
