package e2e

import (
	"path/filepath"
	"syscall"
	"testing"
)

// `zkagent test --watch` runs the tests again when the template, the settings, or
// a new test file changes the result, and goes on after a file that is wrong.
func TestTemplateTests_Watch(t *testing.T) {
	a := newAgent(t, "watch", "")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  source = \"a.tmpl\"\n  destination = \"/etc/a\"\n}\n")
	a.write(t, "s/a.tmpl", "old\n")
	a.write(t, "s/a_test.yaml", "settings: zkagent.hcl\ntests: [{name: one, template: a, want: \"new\\n\"}]\n")
	d := startTalking(t, binary, nil, "test", "--watch", filepath.Join(a.dir, "s"))
	d.says(t, "1 of 1 test failed")
	a.write(t, "s/a.tmpl", "new\n")
	d.says(t, "1 test passed")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  nonsense = 1\n}\n")
	d.says(t, "nonsense")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  source = \"a.tmpl\"\n  destination = \"/etc/a\"\n}\n")
	a.write(t, "s/b_test.yaml", "tests: [{name: two, contents: x, want: x}]\n")
	d.says(t, "2 tests passed")
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := d.ends(t); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}
