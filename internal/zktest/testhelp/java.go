package testhelp

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// JavaClasses compiles a Java program and returns the directory of its classes. It
// compiles a program once on a machine: it keeps the classes in .cache of the module,
// because javac takes ten times as long as the program needs to start.
func JavaClasses(tb testing.TB, classPath, name string, source []byte) string {
	tb.Helper()
	root, err := ModuleRoot()
	if err != nil {
		tb.Fatal(err)
	}
	sum := sha256.Sum256(append([]byte(classPath+"\x00"), source...))
	dir := filepath.Join(root, ".cache", "java-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	// MkdirAll would look at .cache: go test would run the test again when .cache changes.
	_ = os.Mkdir(filepath.Dir(dir), 0o755)                //nolint:gosec // as make does
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "javac-") //nolint:usetesting // it is renamed to dir
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	file := filepath.Join(tmp, name+".java")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		tb.Fatal(err)
	}
	out, err := exec.CommandContext(tb.Context(), "javac", "-nowarn", "-proc:none", "-cp", classPath, "-d", tmp, file).CombinedOutput() //nolint:gosec // the tests' own programs
	if err != nil {
		tb.Fatalf("javac (apt-get install default-jdk-headless): %v\n%s", err, out)
	}
	_ = os.Rename(tmp, dir) // Another test may have been faster.
	return dir
}
