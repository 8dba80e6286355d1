//go:build clean

package docs_test

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestClean does what the README and the quick start say, on a machine that has
// Debian's smallest system, make and Go, and nothing else. scripts/test-clean makes
// the machine: the directory $CLEAN_ROOT, with Go in it and Go modules in /proxy.
func TestClean(t *testing.T) {
	root := os.Getenv("CLEAN_ROOT")
	if root == "" {
		t.Fatal("$CLEAN_ROOT is not set: run scripts/test-clean")
	}
	version := strings.TrimSpace(read(t, "../VERSION"))
	copySource(t, root, version)
	clean := &machine{root: root, env: []string{
		"HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		// These directories stand for the network, which the machine does not have.
		"GOPROXY=file:///proxy/own,file:///proxy/modules", "GOSUMDB=off", "GOTOOLCHAIN=local",
		"DEMO_SECONDS=8", // stands for Ctrl-C
	}}
	t.Run("README", func(t *testing.T) {
		paste(t, "README.md", []block{
			{kind: pasteKind, lines: []string{said(t, "make demo"), said(t, "go install"), "~/go/bin/zkagent version"}},
			{kind: "text", lines: []string{"...1. ...", "zkagent " + version + " ..."}},
		}, clean)
	})
	t.Run("quick start", func(t *testing.T) { paste(t, "quickstart.md", blocks(read(t, "quickstart.md")), clean) })
}

// said is the line of the README that begins with a command.
func said(t *testing.T, command string) string {
	t.Helper()
	for _, bl := range blocks(read(t, "../README.md")) {
		for _, line := range bl.lines {
			if bl.kind == "indented" && strings.HasPrefix(line, command+" ") {
				return line
			}
		}
	}
	t.Fatalf("the README has no line %q", command)
	return ""
}

// copySource gives the machine the files of this repository: as a tree, and as the
// newest version of the module, which "go install" finds.
func copySource(t *testing.T, root, version string) {
	t.Helper()
	const name = "github.com/zkagent/zkagent"
	tree, module := filepath.Join(root, "root", "zkagent"), filepath.Join(root, "proxy", "own", name, "@v")
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "..").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var content bytes.Buffer
	zipped := zip.NewWriter(&content)
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(file)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted, or a link
		}
		data := []byte(read(t, file))
		path := filepath.Join("docs", file)
		write(t, filepath.Join(tree, path), data, info.Mode())
		if strings.HasPrefix(path, "grpcresolver/") || strings.HasPrefix(path, "bench/") {
			continue // modules beside this one
		}
		w, err := zipped.Create(name + "@v" + version + "/" + path)
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	for suffix, data := range map[string]string{
		"list": "v" + version + "\n", "v" + version + ".info": `{"Version":"v` + version + `"}`,
		"v" + version + ".mod": read(t, "../go.mod"), "v" + version + ".zip": content.String(),
	} {
		write(t, filepath.Join(module, suffix), []byte(data), 0o644)
	}
}

func write(t *testing.T, file string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		t.Fatal(err)
	}
}
