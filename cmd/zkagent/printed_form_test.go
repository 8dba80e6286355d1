package main

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// literals are the texts in the Go files of the program, by place. What is not known
// before it runs is "x" in them: values that are joined to a text, and verbs of fmt.
func literals(t *testing.T) map[string]string {
	t.Helper()
	verb := regexp.MustCompile(`%[-+# 0-9.]*[a-z]`)
	texts, files := map[string]string{}, token.NewFileSet()
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
				return verb.ReplaceAllString(s, "x")
			}
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		}
		return "x"
	}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr: // help speaks of commands, it does not ask people to run them
				key, _ := n.Key.(*ast.Ident)
				return key == nil || key.Name != "Long" && key.Name != "Example"
			case *ast.BinaryExpr, *ast.BasicLit:
				texts[files.Position(n.Pos()).String()] = text(n.(ast.Expr))
				return false
			}
			return true
		})
		return nil
	})
	if err != nil || len(texts) < 1000 {
		t.Fatalf("%d texts, %v", len(texts), err)
	}
	return texts
}

// formError parses a command line without running it. It returns what is wrong with it.
func formError(command string) error {
	args := strings.Fields(command)[1:]
	root := newRoot(newGlobals(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}))
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(args)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err == nil && c.Runnable() {
		err = c.ValidateArgs(c.Flags().Args())
	}
	return err
}

// TestPrintedCommands_Form: every command that the program asks people to run has
// the arguments that it needs.
func TestPrintedCommands_Form(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile("[\"`](zkagent [a-z-][^\"`\\\\]*)[\"`]")
	n := 0
	for place, text := range literals(t) {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			n++
			if err := formError(m[1]); err != nil {
				t.Errorf("%s: %q: %v", place, m[1], err)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d commands found", n)
	}
}
