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

// ownUse are exported for other packages of ours: it would be worse to hide them.
// Their comments begin with "internal use".
const ownUse = "internal use"

// retired are names that said nothing to users, or that only we used.
var retired = map[string][]string{
	"session":  {"Bell", "Rung", "Cover", "WatchLists", "StopOne", "GetManyW", "Requests", "Line", "Place", "Front", "Marker", "NewGUID"},
	"recipe":   {"Line", "Place", "Front", "Marker"},
	"config":   {"FlipOps"},
	"registry": {"MaxMembers", "MaxBytes", "MaxGroups"},
	"template": {"Stage", "Staged", "Damaged", "CheckSyntax"},
	"agent":    {"NewMetrics"},
}

// short are words that a search cannot find: no package may have them at its top.
var short = []string{"open", "held", "kept", "got", "one", "few", "below", "look", "here", "there", "now", "gone", "some", "many"}

var flagWord = regexp.MustCompile(`(^|[\s("'=])--[a-z][a-z-]+`)

// TestNames: names that lied, or that only we used, do not come back, and no error of
// the library names a flag of the command line.
func TestNames(t *testing.T) {
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue
		}
		for _, file := range p.GoFiles {
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, filepath.Join(p.Dir, file), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for id, doc := range topNames(parsed) {
				if slices.Contains(short, id.Name) {
					t.Errorf("%s: a search cannot find %q: give it a name of more than one word", set.Position(id.Pos()), id.Name)
				}
				if slices.Contains(retired[name], id.Name) && !strings.Contains(strings.ToLower(doc), ownUse) {
					t.Errorf("%s: %s exports %s, which only we use", set.Position(id.Pos()), name, id.Name)
				}
			}
			if !slices.Contains(library, name) {
				continue
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

// topNames yields the names of a file's top level, methods too, with their comments.
func topNames(file *ast.File) map[*ast.Ident]string {
	names := map[*ast.Ident]string{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || d.Name.IsExported() {
				names[d.Name] = d.Doc.Text()
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name] = d.Doc.Text() + s.Doc.Text()
				case *ast.ValueSpec:
					for _, id := range s.Names {
						names[id] = d.Doc.Text() + s.Doc.Text()
					}
				}
			}
		}
	}
	return names
}
