package template

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exampleDir has the file that the example of the function file reads.
func exampleDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "motd"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "db"), []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func exampleEnv(dir string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name == "CREDENTIALS_DIRECTORY" {
			return dir, true
		}
		return "west", name == "ZONE"
	}
}

// TestFunctions_Examples runs the example of every function, under its own
// and its second name.
func TestFunctions_Examples(t *testing.T) {
	v, dir := viewOfExamples(), exampleDir(t)
	run := func(f Function, text string) {
		t.Helper()
		tmpl, err := Parse(Config{
			Name: f.Name, Source: text, Dir: dir, Allow: []string{AllowEnv, AllowFile, AllowCredential}, LookupEnv: exampleEnv(dir),
		})
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			return
		}
		for range 2 { // The second execution uses the same executor.
			got, err := tmpl.Render(t.Context(), &v, nil)
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
			} else if string(got) != f.Result && !f.Varies {
				t.Errorf("%s: %s\n got %q\nwant %q", f.Name, text, got, f.Result)
			}
		}
	}
	for _, f := range Functions() {
		if f.Summary == "" || f.Signature == "" || f.Group == "" || !strings.Contains(f.Example, strings.TrimPrefix(f.Name, "sprig_")) {
			t.Errorf("%s: an incomplete line: %+v", f.Name, f)
		}
		run(f, f.Example)
		if f.Alias != "" {
			run(f, strings.Replace(f.Example, f.Name, f.Alias, 1))
		}
	}
}

// TestFunctions_Complete compares the catalog with the functions there are.
func TestFunctions_Complete(t *testing.T) {
	listed := map[string]bool{}
	for _, f := range Functions() {
		for _, name := range []string{f.Name, f.Alias} {
			if name == "" {
				continue
			}
			if _, ok := functionTable()[name]; !ok && builtins[name] == "" {
				t.Errorf("%s is listed and does not exist", name)
			}
			if listed[name] {
				t.Errorf("%s is listed twice", name)
			}
			listed[name] = true
		}
	}
	for name := range functionTable() {
		if !listed[name] {
			t.Errorf("%s is not in the catalog", name)
		}
	}
	for name := range builtins {
		if !listed[name] {
			t.Errorf("%s is not in the catalog", name)
		}
	}
}
