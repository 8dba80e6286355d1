package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// The complete programs of the pages are built in a module of their own and run,
// and print what their last comment says.
func TestLibraryPrograms(t *testing.T) {
	testhelp.OnlyAll(t, "it links every program of the pages")
	t.Parallel()
	for page, least := range map[string]int{"library.md": 5, "tutorials.md": 1} {
		testPrograms(t, page, least)
	}
}

func testPrograms(t *testing.T, page string, least int) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	programs := 0
	for _, b := range blocks(read(t, page)) {
		if b.kind != "go" || b.lines[0] != "package main" {
			continue
		}
		programs++
		text := strings.Join(b.lines, "\n") + "\n"
		_, comment, found := strings.Cut(text, "// Output:\n")
		if !found {
			t.Errorf("%s:%d: the program does not say what it prints", page, b.line)
			continue
		}
		var want strings.Builder
		for line := range strings.Lines(comment) {
			out, isComment := strings.CutPrefix(strings.TrimSpace(line), "// ")
			if !isComment {
				break
			}
			want.WriteString(out + "\n")
		}
		if got := runProgram(t, root, text); got != want.String() {
			t.Errorf("%s:%d: got\n%swant\n%s", page, b.line, got, want.String())
		}
	}
	if programs < least {
		t.Errorf("%s: got %d programs, want %d", page, programs, least)
	}
}

// TestReadmeProgram: the lines of Go in the README stand in that order in a program that is run.
func TestReadmeProgram(t *testing.T) {
	programs := read(t, "library.md")
	lines := 0
	for _, b := range blocks(read(t, "../README.md")) {
		if b.kind != "go part" {
			continue
		}
		for i, line := range b.lines {
			_, rest, found := strings.Cut(programs, strings.TrimSpace(line)+"\n")
			if !found {
				t.Fatalf("README.md:%d: %q is not in library.md", b.line+1+i, line)
			}
			programs = rest
			lines++
		}
	}
	if lines == 0 {
		t.Error("README.md has no Go")
	}
}

// runProgram runs a program of an outside module against an embedded ZooKeeper.
func runProgram(t *testing.T, root, text string) string {
	t.Helper()
	srv := memzk.New(memzk.Options{})
	defer srv.Close()
	addr, err := srv.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	module := strings.Replace(string(mod), "module github.com/zkagent/zkagent", "module example.org/program", 1) +
		"\nrequire github.com/zkagent/zkagent v0.0.0\n\nreplace github.com/zkagent/zkagent => " + root + "\n"
	dir := t.TempDir()
	for name, data := range map[string]string{"go.mod": module, "go.sum": string(sum), "main.go": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ZK="+addr.String(), "GOWORK=off", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}
