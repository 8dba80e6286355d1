package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// plantVariable is the environment variable that names the patch of the fault that
// happens.
const plantVariable = "ZKAGENT_PLANT"

// fault is one patch.
type fault struct {
	file, name string
	foundBy    []string
	target     string            // the file that it changes
	bodies     map[string]string // of the functions that it changes
}

var (
	namedAs = regexp.MustCompile(`(?m)^Fault: (.*)$`)
	foundBy = regexp.MustCompile(`(?m)^Found by: (.*)$`)
	target  = regexp.MustCompile(`(?m)^\+\+\+ b/(.*)$`)
)

// readFault reads a patch. With an error, only the names of the fault are valid.
func readFault(ctx context.Context, file string) (*fault, error) {
	f := &fault{file: file, name: file, bodies: map[string]string{}}
	text, err := os.ReadFile(file) //nolint:gosec // our own file
	if err != nil {
		return f, err
	}
	name, tests, changes := namedAs.FindSubmatch(text), foundBy.FindSubmatch(text), target.FindSubmatch(text)
	if name == nil || tests == nil || changes == nil {
		return f, errors.New(`it lacks "Fault:", "Found by:" or "+++ b/"`)
	}
	f.name, f.target = string(name[1]), string(changes[1])
	f.foundBy = strings.Fields(strings.ReplaceAll(string(tests[1]), ",", " "))
	patched, err := exec.CommandContext(ctx, "patch", "-s", "-p1", "--fuzz=2", "-r-", "-o-", f.target, file).Output() //nolint:gosec // our own file
	if err != nil {
		return f, errors.New("it does not apply")
	}
	source, err := os.ReadFile(f.target) //nolint:gosec // our own source
	if err != nil {
		return f, err
	}
	before, rest, err := bodies(source)
	if err != nil {
		return f, err
	}
	after, restAfter, err := bodies(patched)
	if err != nil {
		return f, fmt.Errorf("it does not compile: %w", err)
	}
	if rest != restAfter {
		return f, errors.New("it changes more than the bodies of functions")
	}
	for key, body := range after {
		if body != before[key] {
			f.bodies[key] = body
		}
	}
	return f, nil
}

// bodies returns the bodies of the functions of a file, and the file without them.
func bodies(source []byte) (map[string]string, string, error) {
	var rest strings.Builder
	all, end := map[string]string{}, 0
	err := eachFunction(source, func(key string, from, to int) {
		all[key] = string(source[from:to])
		rest.Write(source[end:from])
		end = to
	})
	rest.Write(source[end:])
	return all, rest.String(), err
}

// eachFunction calls fn for each function with its key, and where its body begins and
// ends, braces excluded.
func eachFunction(source []byte, fn func(key string, from, to int)) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			fn(string(source[offset(f.Pos()):offset(f.Body.Lbrace)]), offset(f.Body.Lbrace)+1, offset(f.Body.Rbrace))
		}
	}
	return nil
}

// writeOverlay writes an overlay for the go command, in which each function that faults
// change begins with the bodies that the faults give it.
func writeOverlay(dir string, faults []*fault) (string, error) {
	replace := map[string]string{}
	for i, f := range faults {
		path, err := filepath.Abs(f.target)
		if err != nil {
			return "", err
		}
		if replace[path] != "" {
			continue
		}
		source, err := os.ReadFile(f.target)
		if err != nil {
			return "", err
		}
		planted, err := withBranches(source, f.target, faults)
		if err != nil {
			return "", err
		}
		pkg := filepath.Base(filepath.Dir(path))
		selected := fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar plantedFault = os.Getenv(%q)\n", pkg, plantVariable)
		for name, text := range map[string]string{path: planted, filepath.Join(filepath.Dir(path), "planted.go"): selected} {
			replace[name] = filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(name)))
			if err := os.WriteFile(replace[name], []byte(text), 0o600); err != nil {
				return "", err
			}
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// withBranches returns the source of a file with the faults that change it. An error of
// the compiler in a fault names its patch.
func withBranches(source []byte, file string, faults []*fault) (string, error) {
	type branch struct {
		at   int
		text string
	}
	var branches []branch
	err := eachFunction(source, func(key string, from, _ int) {
		for _, f := range faults {
			if body, ok := f.bodies[key]; ok && f.target == file {
				branches = append(branches, branch{at: from, text: fmt.Sprintf("\n//line %s:1\nif plantedFault == %q {%s\n%s}\n", f.file, f.file, body, returns(key))})
			}
		}
		if n := len(branches); n > 0 && branches[n-1].at == from {
			branches[n-1].text += fmt.Sprintf("//line %s:%d\n", file, 1+strings.Count(string(source[:from]), "\n"))
		}
	})
	for _, b := range slices.Backward(branches) {
		source = slices.Concat(source[:b.at], []byte(b.text), source[b.at:])
	}
	return string(source), err
}

// returns ends the branch of a function without results.
func returns(signature string) string {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+signature+"{}", parser.SkipObjectResolution)
	if err != nil {
		return ""
	}
	if f, ok := file.Decls[0].(*ast.FuncDecl); ok && f.Type.Results == nil {
		return "return\n"
	}
	return ""
}
