package packaging_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts: the shells understand the scripts of this tree, also those that
// only a release or a machine with a systemd runs.
func TestScripts(t *testing.T) {
	n := 0
	for _, root := range []string{".", "../scripts", "../.ci"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			first, _, _ := strings.Cut(string(text), "\n")
			shell := ""
			switch {
			case strings.HasPrefix(first, "#!/bin/bash"), filepath.Base(filepath.Dir(path)) == "systemd":
				shell = "bash"
			case strings.HasPrefix(first, "#!/bin/sh"):
				shell = "sh"
			default:
				return nil
			}
			n++
			if out, err := exec.CommandContext(t.Context(), shell, "-n", path).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", path, err, out)
			}
			if info, err := e.Info(); err != nil || strings.HasPrefix(first, "#!") && !strings.HasSuffix(path, ".sh") && info.Mode()&0o111 == 0 {
				t.Errorf("%s cannot be executed (%v)", path, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 15 {
		t.Errorf("only %d scripts were found", n)
	}
}
